"""What an operator's rejection means for later: money that did not fit stays out, and nothing paid is taken back."""

from __future__ import annotations

from typing import Any

import pytest

from models.facts import RefFact, RefundFact
from models.terms import Expectation
from tests.unit.test_parts import BY_LINK, FIRST, SECOND, decision, link
from tests.unit.test_reducer import Order, fact, pending

LESS = fact("captured", amount=40_000)
CORRECTED = Expectation(40_000, "INR")
LATER = fact("captured", "pay_B", created_at=1_790_000_100)


def test_rejected_money_stays_out_when_the_expectation_is_corrected_to_it() -> None:
    order = pending()
    order.add(LESS)
    order.add(decision("amount_mismatch", "rejected"))
    assert order.add(LESS, expected=CORRECTED) is None
    assert (order.status, order.fulfilled) == ("pending", 0)
    change = order.add(fact("captured", "pay_B", amount=40_000, created_at=1_790_000_100), expected=CORRECTED)
    assert change is not None
    assert (order.status, order.payment["razorpayPaymentId"], order.payment["amountPaid"]) == (
        "completed",
        "pay_B",
        40_000,
    )
    assert ("duplicate_capture", "pay_B") not in order.reviews, "the rejected one is no first payment"


def test_a_rejection_in_the_moment_of_the_correction_counts() -> None:
    order = pending()
    order.add(LESS)
    change = order.add(decision("amount_mismatch", "rejected"), expected=CORRECTED)
    assert change is not None
    assert (order.status, change.fulfil) == ("pending", False)


@pytest.mark.parametrize(
    ("first", "reason", "again"),
    [
        (fact("captured", amount=None), "amount_unreadable", fact("captured")),
        (fact("captured", currency="USD"), "currency_mismatch", fact("captured", currency="USD")),
    ],
)
def test_every_reason_of_a_misfit_keeps_rejected_money_out(first: Any, reason: str, again: Any) -> None:
    order = pending()
    order.add(first)
    assert order.reviews == {(reason, "pay_A")}
    order.add(decision(reason, "rejected"))
    order.add(again, expected=Expectation(49_900, again.currency))
    assert (order.status, order.fulfilled) == ("pending", 0)


def test_money_rejected_after_the_shop_cancelled_pays_for_nothing_once_the_shop_takes_the_order_up_again() -> None:
    order = Order(status="cancelled")
    order.add(fact("captured"))
    order.add(decision("paid_after_cancelled", "rejected"))
    order.payment["status"] = "pending"
    order.add(RefundFact("rfnd_A", "pay_A", "processed", 49_900, "INR"))
    assert order.status == "pending"
    order.add(LATER)
    assert (order.status, order.payment["razorpayPaymentId"]) == ("completed", "pay_B")
    assert {reason for reason, _ in order.reviews} == {"paid_after_cancelled"}


@pytest.mark.parametrize("end", ["expired", "cancelled"])
def test_rejecting_what_is_only_late_takes_back_nothing(end: str) -> None:
    order = pending(**BY_LINK)
    order.add(fact("captured"), link(end, accept_partial=False))
    assert order.status == "completed"
    order.add(decision(f"paid_after_link_{end}", "rejected"))
    order.add(RefundFact("rfnd_A", "pay_A", "processed", 900, "INR"))
    assert (order.status, order.payment["amountPaid"]) == ("partially_refunded", 49_900)


def test_rejecting_a_part_that_is_too_much_leaves_the_order_paid_by_it() -> None:
    order = pending(**BY_LINK)
    more = fact("captured", "pay_B", amount=40_000, created_at=1_790_000_100)
    order.add(FIRST, more, link("paid"))
    assert order.reviews == {("duplicate_capture", "pay_B")}
    order.add(decision("duplicate_capture", "rejected", "pay_B"))
    order.add(RefundFact("rfnd_B", "pay_B", "processed", 10_100, "INR"))
    assert (order.status, order.payment["amountPaid"]) == ("partially_refunded", 60_000)


def test_a_rejected_part_is_not_added_up() -> None:
    order = pending(acceptPartial=False)
    order.add(FIRST)
    order.add(decision("amount_mismatch", "rejected"))
    order.payment["acceptPartial"] = True
    order.add(SECOND)
    assert (order.status, order.payment["amountPaid"]) == ("pending", 29_900)


@pytest.mark.parametrize("lost", ["captured", "amount", "currency", "createdAt", "method", "methodDetails"])
def test_an_entry_that_the_shops_code_left_in_pieces_is_kept_and_made_anew_by_its_event(lost: str) -> None:
    order = pending()
    order.add(fact("captured"))
    pieces = {name: value for name, value in order.payment["attempts"][0].items() if name != lost}
    order.payment["attempts"] = [pieces]
    order.add(fact("captured"))
    assert order.payment["attempts"][0] == pieces
    assert order.payment["attempts"][1]["captured"] is True
    assert order.status == "completed"


@pytest.mark.parametrize(
    ("name", "value"),
    [("statuses", []), ("statuses", [7]), ("statuses", {}), ("amount", "49900"), ("amount", [1]), ("amount", 1.5)],
)
def test_an_entry_with_values_that_cannot_be_counted_is_none_of_ours(name: str, value: object) -> None:
    order = pending()
    order.add(fact("authorized"))
    order.payment["attempts"] = [{**order.payment["attempts"][0], name: value}]
    order.add(fact("captured"))
    assert (order.status, len(order.payment["attempts"])) == ("completed", 2)


def test_whole_numbers_that_a_script_stored_as_floats_still_count() -> None:
    order = pending()
    order.add(fact("captured"))
    order.payment["attempts"][0]["amount"] = 49_900.0
    assert order.add(fact("captured")) is None


@pytest.mark.parametrize("name", ["refunds", "links"])
def test_foreign_refunds_and_links_stay_in_front(name: str) -> None:
    foreign = [{"refundId": "rfnd_X", "statuses": ["processed"]}, {"linkId": "plink_X", "statuses": ["paid"]}, 7]
    order = pending(**{name: list(foreign)}, **BY_LINK)
    order.add(fact("captured"), RefundFact("rfnd_A", "pay_A", "processed", 900, "INR"), link("paid"))
    assert order.payment[name][:3] == foreign
    assert (order.status, order.payment["amountRefunded"]) == ("partially_refunded", 900)


@pytest.mark.parametrize("odd", [{}, [], {"id": "order_1"}, 7, None])
def test_ids_of_the_shop_that_are_no_text_are_no_ids(odd: object) -> None:
    order = pending(razorpayOrderId=odd, paymentLinkId=odd)
    order.add(fact("captured"), RefFact("razorpay", "order", "order_2"))
    assert [ref["id"] for ref in order.payment["refs"]] == ["order_2"]
    assert order.status == "completed"


# --- what acceptance may not do --------------------------------------------------------------------------------------


def test_accepting_what_is_only_odd_about_a_part_does_not_make_it_the_whole() -> None:
    order = pending(**BY_LINK)
    order.add(FIRST, link("partially_paid", amount=20_000))
    assert order.reviews == {("link_amount_differs", "pay_A")}
    order.add(decision("link_amount_differs"))
    assert (order.status, order.fulfilled, order.payment["amountPaid"]) == ("pending", 0, 20_000)


def test_the_whole_sum_after_a_part_is_one_too_many() -> None:
    order = pending(**BY_LINK)
    order.add(FIRST, fact("captured", "pay_B", created_at=1_790_000_100), link("paid"))
    assert (order.status, order.payment["amountPaid"]) == ("completed", 69_900)
    assert order.reviews == {("duplicate_capture", "pay_B")}


def test_an_order_that_accepted_money_completed_stays_so_when_a_part_comes_later() -> None:
    order = pending(acceptPartial=True)
    order.add(fact("captured", amount=20_000, currency="USD"))
    order.add(decision("currency_mismatch"))
    order.add(fact("captured", "pay_B", amount=10_000, created_at=1_790_000_100))
    order.add(RefundFact("rfnd_A", "pay_A", "processed", 20_000, "USD"))
    assert (order.status, order.payment["amountPaid"]) == ("refunded", 20_000)
    assert ("duplicate_capture", "pay_B") in order.reviews
