"""Several captures on one order, payment links, late money, callbacks and operators' decisions: the reducer's rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

from models.facts import CallbackFact, DecisionFact, Fact, LinkFact, RefFact, RefundFact
from models.terms import Expectation
from tests.unit.test_reducer import EXPECTED, Order, fact, pending

LINK = "plink_A"
FIRST = fact("captured", "pay_A", amount=20_000, created_at=1_790_000_000)
SECOND = fact("captured", "pay_B", amount=29_900, created_at=1_790_000_100)
THIRD = fact("captured", "pay_C", amount=10_000, created_at=1_790_000_200)
BY_LINK: dict[str, Any] = {"paymentLinkId": LINK}


def link(status: str, link_id: str = LINK, **changes: Any) -> LinkFact:
    known: dict[str, Any] = {"amount": 49_900, "currency": "INR", "accept_partial": True, "order_id": None}
    return LinkFact(id=link_id, status=status, **{**known, **changes})


def decision(reason: str, state: Any = "accepted", ref: str = "pay_A") -> DecisionFact:
    return DecisionFact(reason, ref, state, by="asha", why="agreed by phone", at=1_790_001_000)


def in_every_order(payment: dict[str, Any], facts: Iterable[Fact], **terms: Any) -> Order:
    """The order after the facts, which must not depend on the order in which they come."""
    ends = []
    for arrival in itertools.permutations(facts):
        order = pending(**payment)
        for each in arrival:
            order.add(each, **terms)
        ends.append(order)
    assert all(end.payment == ends[0].payment for end in ends)
    assert all(sorted(end.ledger) == sorted(ends[0].ledger) for end in ends)
    assert len({end.fulfilled for end in ends}) == 1
    return ends[0]


def test_parts_add_up_to_a_completed_order() -> None:
    order = in_every_order(BY_LINK, [FIRST, SECOND, link("partially_paid"), link("paid")])
    assert (order.status, order.payment["amountPaid"], order.reviews) == ("completed", 49_900, set())
    assert (order.payment["razorpayPaymentId"], order.fulfilled) == ("pay_A", 1)
    assert sorted(order.ledger) == ["capture:pay_A", "capture:pay_B"]
    assert order.payment["paidAt"].timestamp() == SECOND.created_at
    completed = next(entry for entry in order.history if entry["fact"] == "payment_completed")
    assert (completed["ref"], completed["amount"]) == ("pay_A", 49_900)


def test_a_part_leaves_the_order_pending_and_shows_what_came() -> None:
    order = in_every_order(BY_LINK, [FIRST, link("partially_paid")])
    assert (order.status, order.payment["amountPaid"], order.reviews) == ("pending", 20_000, set())
    assert "razorpayPaymentId" not in order.payment
    assert ("payment_part_captured", "pay_A") in order.facts


def test_the_shops_own_word_allows_or_forbids_parts_whatever_a_link_says() -> None:
    allowed = in_every_order({"acceptPartial": True, "razorpayOrderId": "order_A"}, [FIRST, SECOND])
    assert (allowed.status, allowed.reviews) == ("completed", set())
    forbidden = in_every_order({**BY_LINK, "acceptPartial": False}, [FIRST, link("partially_paid")])
    assert (forbidden.status, forbidden.reviews) == ("pending", {("amount_mismatch", "pay_A")})


def test_an_order_with_a_checkout_of_its_own_is_never_paid_in_parts() -> None:
    order = in_every_order({"razorpayOrderId": "order_A"}, [FIRST, SECOND, link("paid")])
    assert (order.status, order.payment.get("amountPaid")) == ("pending", None)
    assert order.reviews >= {("amount_mismatch", "pay_A"), ("amount_mismatch", "pay_B")}


def test_a_link_that_takes_the_whole_only_makes_a_part_a_mismatch() -> None:
    order = in_every_order(BY_LINK, [FIRST, link("created", accept_partial=False)])
    assert (order.status, order.reviews) == ("pending", {("amount_mismatch", "pay_A")})


def test_while_the_links_terms_are_not_known_less_money_waits() -> None:
    order = pending(**BY_LINK)
    change = order.add(FIRST)
    assert change is not None
    assert change.waiting == {"pay_A"}
    assert (change.reviews, order.ledger) == ((), ["capture:pay_A"])
    again = order.add(fact("authorized", "pay_A", amount=20_000))
    assert again is not None
    assert not again.waiting, "only what is new is waited for"


def test_the_providers_paid_order_says_that_a_smaller_payment_was_a_part() -> None:
    """An order known by its number only: `order.paid` names that, and only then the other payments find it."""
    last = fact("captured", "pay_B", amount=29_900, created_at=1_790_000_100, order_amount=49_900)
    order = pending()
    for each in (last, SECOND, FIRST):
        order.add(each)
    assert (order.status, order.payment["amountPaid"], order.reviews) == ("completed", 49_900, set())


def test_more_than_was_expected_is_found_in_the_same_payment_whatever_comes_first() -> None:
    order = in_every_order(BY_LINK, [FIRST, SECOND, THIRD, link("paid")])
    assert (order.status, order.reviews) == ("completed", {("duplicate_capture", "pay_C")})
    assert order.payment["amountPaid"] == 49_900


def test_refunds_of_parts_add_up_against_all_that_was_paid() -> None:
    one = RefundFact("rfnd_A", "pay_A", "processed", 20_000, "INR")
    two = RefundFact("rfnd_B", "pay_B", "processed", 29_900, "INR")
    partly = in_every_order(BY_LINK, [FIRST, SECOND, link("paid"), one])
    assert (partly.status, partly.payment["amountRefunded"]) == ("partially_refunded", 20_000)
    wholly = in_every_order(BY_LINK, [FIRST, SECOND, one, two, link("paid")])
    assert (wholly.status, wholly.payment["amountRefunded"]) == ("refunded", 49_900)


@pytest.mark.parametrize("end", ["expired", "cancelled"])
def test_money_on_a_link_that_ended_completes_the_order_and_is_looked_at(end: str) -> None:
    order = in_every_order(BY_LINK, [fact("captured"), link(end)])
    assert (order.status, order.reviews) == ("completed", {(f"paid_after_link_{end}", "pay_A")})
    part = in_every_order(BY_LINK, [FIRST, link(end)])
    assert (part.status, part.reviews) == ("pending", {(f"paid_after_link_{end}", "pay_A")})


def test_only_the_end_of_the_link_that_the_order_names_makes_money_late() -> None:
    replaced = in_every_order(BY_LINK, [link("expired", "plink_Old"), fact("captured"), link("paid")])
    assert (replaced.status, replaced.reviews) == ("completed", set())
    nameless = in_every_order({}, [link("expired", "plink_Old"), fact("captured")])
    assert nameless.reviews == {("paid_after_link_expired", "pay_A")}


def test_money_on_the_shops_own_checkout_is_late_only_for_a_link_that_the_order_names() -> None:
    """A shop may keep the link's own provider order as `razorpayOrderId`: rather one look too many than silence."""
    checkout = fact("captured", order_id="order_A")
    own = in_every_order({"razorpayOrderId": "order_A"}, [link("expired"), checkout])
    assert (own.status, own.reviews) == ("completed", set())
    both = in_every_order({**BY_LINK, "razorpayOrderId": "order_A"}, [link("expired"), checkout])
    assert (both.status, both.reviews) == ("completed", {("paid_after_link_expired", "pay_A")})


def test_a_link_over_another_amount_than_the_orders_is_looked_at_once_money_came() -> None:
    order = in_every_order(BY_LINK, [FIRST, link("partially_paid", amount=20_000)])
    assert (order.status, order.reviews) == ("pending", {("link_amount_differs", "pay_A")})
    quiet = in_every_order(BY_LINK, [link("created", amount=20_000)])
    assert quiet.reviews == set()


def test_the_fee_on_top_is_no_mismatch_where_the_customer_bears_it() -> None:
    expected = Expectation(49_900, "INR", fee_on_customer=True)
    captured, paid = fact("captured", amount=51_078), fact("captured", amount=51_078, order_amount=49_900)
    order = in_every_order({}, [captured, paid], expected=expected)
    assert (order.status, order.payment["amountPaid"], order.reviews) == ("completed", 51_078, set())
    other = in_every_order({}, [captured, fact("captured", amount=51_078, order_amount=50_000)], expected=expected)
    assert (other.status, other.reviews) == ("pending", {("amount_mismatch", "pay_A")})
    alone = pending()
    change = alone.add(captured, expected=expected)
    assert change is not None
    assert change.waiting == {"pay_A"}


def test_a_callback_is_an_attempt_that_moves_nothing_and_keeps_its_signature() -> None:
    order = in_every_order({}, [CallbackFact("pay_A", "5ig")])
    assert (order.status, order.payment["razorpaySignature"]) == ("pending", "5ig")
    assert order.payment["attempts"][0]["statuses"] == ["callback"]
    assert (order.ledger, order.facts) == ([], [("checkout_callback", "pay_A")])
    paid = in_every_order({}, [CallbackFact("pay_A", "5ig"), fact("authorized"), fact("captured"), fact("failed")])
    assert (paid.status, paid.payment["razorpaySignature"]) == ("completed", "5ig")
    assert paid.payment["attempts"][0]["amount"] == 49_900


def test_of_two_callbacks_the_accepted_payments_signature_is_the_orders() -> None:
    order = in_every_order({}, [CallbackFact("pay_A", "a"), CallbackFact("pay_B", "b"), fact("captured", "pay_B")])
    assert order.payment["razorpaySignature"] == "b"


def test_further_ids_of_the_order_are_kept_once_and_never_the_shops_own() -> None:
    facts = [RefFact("razorpay", "order", "order_B"), RefFact("razorpay", "payment_link", LINK)]
    order = in_every_order({**BY_LINK, "razorpayOrderId": "order_A"}, [*facts, RefFact("razorpay", "order", "order_A")])
    assert order.payment["refs"] == [{"provider": "razorpay", "kind": "order", "id": "order_B"}]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (fact("captured", amount=40_000), "amount_mismatch"),
        (fact("captured", amount=60_000), "amount_mismatch"),
        (fact("captured", currency="USD"), "currency_mismatch"),
    ],
)
def test_an_accepted_review_completes_the_order_once_with_what_came(wrong: Any, reason: str) -> None:
    order = pending()
    order.add(wrong)
    assert order.status == "pending"
    change = order.add(decision(reason))
    assert change is not None
    assert (change.fulfil, order.status, order.payment["amountPaid"]) == (True, "completed", wrong.amount)
    (entry,) = order.payment["review"]
    assert (entry["state"], entry["by"], entry["why"]) == ("accepted", "asha", "agreed by phone")
    assert ("review_accepted", "pay_A") in order.facts
    assert order.add(decision(reason, "rejected")) is None, "closed is closed"
    assert order.add(wrong) is None
    assert order.fulfilled == 1


def test_money_of_an_order_that_expects_nothing_completes_it_when_accepted() -> None:
    order, unknown = pending(), Expectation(None, "INR")
    order.add(fact("captured"), expected=unknown)
    change = order.add(decision("expected_amount_missing"), expected=unknown)
    assert change is not None
    assert (change.fulfil, order.status, order.payment["amountPaid"]) == (True, "completed", 49_900)


def test_a_rejected_review_is_closed_and_moves_nothing() -> None:
    order = pending()
    order.add(fact("captured", amount=1))
    change = order.add(decision("amount_mismatch", "rejected"))
    assert change is not None
    assert (order.status, change.fulfil, order.payment["review"][0]["state"]) == ("pending", False, "rejected")


def test_accepting_money_of_an_order_that_the_shop_cancelled_completes_it_in_that_moment_only() -> None:
    order = Order(status="cancelled")
    order.add(fact("captured"))
    assert order.status == "cancelled"
    change = order.add(decision("paid_after_cancelled"))
    assert change is not None
    assert (change.status_from, order.status, change.fulfil) == ("cancelled", "completed", True)
    order.payment["status"] = "cancelled"
    order.add(RefundFact("rfnd_A", "pay_A", "processed", 49_900, "INR"))
    assert order.status == "cancelled", "what the shop writes later stays"


@pytest.mark.parametrize("reason", ["amount_unreadable", "payment_on_two_orders"])
def test_money_that_cannot_be_counted_or_is_anothers_completes_nothing_even_when_accepted(reason: str) -> None:
    order, taken = pending(), ["pay_A"] if reason == "payment_on_two_orders" else []
    amount = None if reason == "amount_unreadable" else 49_900
    order.add(fact("captured", amount=amount), taken=taken)
    order.add(decision(reason), taken=taken)
    assert (order.status, order.payment["review"][0]["state"]) == ("pending", "accepted")


def test_a_decision_about_nothing_changes_nothing() -> None:
    order = pending()
    order.add(fact("captured", amount=1))
    assert order.add(decision("currency_mismatch")) is None


def test_a_corrected_expectation_completes_the_order_and_closes_its_review() -> None:
    order = pending()
    order.add(fact("captured", amount=40_000))
    change = order.add(fact("captured", amount=40_000), expected=Expectation(40_000, "INR"))
    assert change is not None
    assert (order.status, change.fulfil) == ("completed", True)
    (entry,) = order.payment["review"]
    assert (entry["state"], entry["by"]) == ("resolved", "the shop")
    assert order.add(fact("captured", amount=40_000), expected=Expectation(40_000, "INR")) is None
    assert EXPECTED.amount == 49_900


def test_an_order_corrected_to_what_its_link_asks_is_complete_and_closes_that_review_too() -> None:
    order = pending(**BY_LINK)
    for each in (FIRST, link("paid", amount=20_000)):
        order.add(each)
    assert order.reviews == {("link_amount_differs", "pay_A")}
    change = order.add(FIRST, expected=Expectation(20_000, "INR"))
    assert change is not None
    assert (order.status, change.fulfil, order.payment["review"][0]["state"]) == ("completed", True, "resolved")
