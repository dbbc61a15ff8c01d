from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from models.entries import MOST_FAILED_ATTEMPTS
from models.errors import OrderUnreadable
from models.facts import Fact, PaymentFact, RefundFact
from models.reducer import MISSING, Change, numbered, reduce
from models.terms import Expectation
from webhook.providers.razorpay import _payment_fact

NOW = datetime(2026, 10, 1, 12, tzinfo=UTC)
EXPECTED = Expectation(49_900, "INR")
CAUSE = {"eventId": "E1", "eventType": "payment.captured", "origin": "webhook"}


def fact(status: str, payment_id: str = "pay_A", **changes: Any) -> PaymentFact:
    known: dict[str, Any] = {
        "id": payment_id,
        "status": status,
        "captured": status == "captured",
        "amount": 49_900,
        "currency": "INR",
        "created_at": 1_790_000_000,
        "method": "upi",
    }
    return PaymentFact(**{**known, **changes})


AUTHORIZED, CAPTURED, FAILED = fact("authorized"), fact("captured"), fact("failed", error={"code": "BAD"})


class Order:
    """An order's `payment` and `history` as the database would hold them after each change."""

    def __init__(self, **payment: Any) -> None:
        self.payment: dict[str, Any] = payment
        self.history: list[dict[str, Any]] = []
        self.ledger: list[str] = []
        self.fulfilled = 0

    def add(
        self,
        *facts: Fact,
        expected: Expectation = EXPECTED,
        taken: Iterable[str] = (),
        doubts: Mapping[str, str] | None = None,
    ) -> Change | None:
        change = reduce(self.payment, facts, expected, NOW, frozenset(taken), doubts or {})
        if change is not None:
            self.payment |= {path.removeprefix("payment."): value for path, value in change.set.items()}
            self.history += numbered(change, self.history, NOW, CAUSE)
            self.ledger += [entry.id for entry in change.ledger]
            self.fulfilled += change.fulfil
        return change

    @property
    def status(self) -> Any:
        return self.payment["status"]

    @property
    def reviews(self) -> set[tuple[str, str]]:
        return {(entry["reason"], entry["ref"]) for entry in self.payment.get("review", ())}

    @property
    def facts(self) -> list[tuple[str, str]]:
        return sorted((entry["fact"], entry["ref"]) for entry in self.history)


def pending(**payment: Any) -> Order:
    return Order(status="pending", **payment)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ([AUTHORIZED], "pending"),
        ([fact("created")], "pending"),
        ([FAILED], "failed"),
        ([CAPTURED], "completed"),
        ([AUTHORIZED, CAPTURED], "completed"),
        ([CAPTURED, AUTHORIZED], "completed"),
        ([FAILED, CAPTURED], "completed"),
        ([CAPTURED, FAILED], "completed"),
        ([FAILED, AUTHORIZED], "failed"),
        ([FAILED, AUTHORIZED, CAPTURED], "completed"),
        ([fact("failed", "pay_B"), CAPTURED], "completed"),
        ([fact("refunded")], "pending"),
        ([fact("refunded", captured=True)], "completed"),
        ([fact("status_of_tomorrow")], "pending"),
    ],
    ids=lambda value: "+".join(f.status for f in value) if isinstance(value, list) else None,
)
def test_the_status_follows_from_the_statuses_seen(facts: list[PaymentFact], status: str) -> None:
    one_by_one, at_once = pending(), pending()
    for each in facts:
        one_by_one.add(each)
    at_once.add(*facts)
    assert (one_by_one.status, at_once.status) == (status, status)


def test_a_late_authorized_never_undoes_a_capture() -> None:
    order = pending()
    order.add(CAPTURED)
    before = dict(order.payment)
    change = order.add(fact("authorized", method="card", amount=1))
    assert change is not None
    assert change.set == {"payment.attempts": order.payment["attempts"]}
    assert order.payment["attempts"] == [{**before["attempts"][0], "statuses": ["authorized", "captured"]}]
    assert {name: order.payment[name] for name in before if name != "attempts"} == {
        name: value for name, value in before.items() if name != "attempts"
    }


def test_a_late_authorisation_completes_a_failed_order_with_its_details() -> None:
    order = pending()
    order.add(FAILED)
    change = order.add(fact("captured", fee=1_178, tax=180, method_details={"vpaMasked": "a***@okbank"}))
    assert change is not None
    assert (change.status_from, change.status_to, change.fulfil) == ("failed", "completed", True)
    assert {name: order.payment[name] for name in order.payment if name != "attempts"} == {
        "status": "completed",
        "razorpayPaymentId": "pay_A",
        "amountPaid": 49_900,
        "method": "upi",
        "methodDetails": {"vpaMasked": "a***@okbank"},
        "paidAt": datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC),
    }
    (attempt,) = order.payment["attempts"]
    assert (attempt["statuses"], attempt["captured"], attempt["error"], attempt["fee"]) == (
        ["captured", "failed"],
        True,
        None,
        1_178,
    )


@pytest.mark.parametrize("flag", [True, 1, "1"])
@pytest.mark.parametrize("status", ["failed", "authorized", "created"])
def test_the_captured_flag_of_a_payment_that_is_not_captured_never_completes(status: str, flag: object) -> None:
    seen = _payment_fact({"id": "pay_A", "status": status, "captured": flag, "amount": 49_900, "currency": "INR"}, {})
    assert seen is not None
    order = pending()
    order.add(seen)
    assert order.status != "completed"
    assert (order.ledger, order.fulfilled) == ([], 0)


@pytest.mark.parametrize(
    ("change", "expected", "reason"),
    [
        ({"amount": 49_899}, EXPECTED, "amount_mismatch"),
        ({"amount": 49_901}, EXPECTED, "amount_mismatch"),
        ({"amount": None}, EXPECTED, "amount_unreadable"),
        ({"currency": "USD"}, EXPECTED, "currency_mismatch"),
        ({"currency": None}, EXPECTED, "currency_mismatch"),
        ({"currency": None}, Expectation(49_900, None), "currency_mismatch"),
        ({}, Expectation(49_900, None), "currency_mismatch"),
        ({}, Expectation(None, "INR"), "expected_amount_missing"),
        ({"amount": 0}, Expectation(None, None), "expected_amount_missing"),
    ],
)
def test_money_that_does_not_fit_goes_to_review_and_completes_nothing(
    change: dict[str, Any], expected: Expectation, reason: str
) -> None:
    order = pending()
    made = order.add(fact("captured", **change), expected=expected)
    assert made is not None
    assert (order.status, order.fulfilled, made.reviews) == ("pending", 0, ((reason, "pay_A"),))
    (entry,) = order.payment["review"]
    assert entry == {
        "reason": reason,
        "ref": "pay_A",
        "amount": change.get("amount", 49_900),
        "currency": change.get("currency", "INR"),
        "expectedAmount": expected.amount,
        "expectedCurrency": expected.currency,
        "state": "open",
    }
    assert "razorpayPaymentId" not in order.payment
    assert order.facts == [("payment_review", "pay_A")]
    assert order.ledger == ([] if change.get("amount", 1) is None else ["capture:pay_A"]), (
        "the money moved all the same"
    )


def test_a_correction_of_the_expectation_completes_the_order_and_keeps_the_review_entry() -> None:
    order = pending()
    order.add(CAPTURED, expected=Expectation(100, "INR"))
    order.add(CAPTURED, expected=EXPECTED)
    assert (order.status, order.fulfilled, order.ledger) == ("completed", 1, ["capture:pay_A"])
    assert order.reviews == {("amount_mismatch", "pay_A")}


@pytest.mark.parametrize("arrival", list(itertools.permutations(range(3))))
def test_of_several_captures_the_earliest_made_is_accepted_in_every_order(arrival: tuple[int, ...]) -> None:
    captures = [
        fact("captured", "pay_C", created_at=1_790_000_000),
        fact("captured", "pay_B", created_at=1_790_000_001),
        fact("captured", "pay_A", created_at=None),
    ]
    order = pending()
    for place in arrival:
        order.add(captures[place])
    assert (order.payment["razorpayPaymentId"], order.status) == ("pay_C", "completed")
    assert order.reviews == {("duplicate_capture", "pay_A"), ("duplicate_capture", "pay_B")}
    assert order.fulfilled == 1
    assert sorted(order.ledger) == ["capture:pay_A", "capture:pay_B", "capture:pay_C"]
    assert [fact for fact, _ in order.facts].count("payment_completed") == 1


@pytest.mark.parametrize("arrival", [("pay_A", "pay_B"), ("pay_B", "pay_A")])
def test_captures_of_the_same_second_are_told_apart_by_their_ids(arrival: tuple[str, ...]) -> None:
    order = pending()
    for payment_id in arrival:
        order.add(fact("captured", payment_id))
    assert order.payment["razorpayPaymentId"] == "pay_A"
    assert order.reviews == {("duplicate_capture", "pay_B")}


def test_a_capture_that_does_not_fit_leaves_room_for_one_that_does() -> None:
    order = pending()
    order.add(fact("captured", "pay_A", amount=1, created_at=1))
    order.add(fact("captured", "pay_B"))
    assert (order.status, order.payment["razorpayPaymentId"]) == ("completed", "pay_B")
    assert order.reviews == {("amount_mismatch", "pay_A")}


@pytest.mark.parametrize(
    ("status", "name"),
    [
        ("cancelled", "cancelled"),
        ("COD", "COD"),
        (None, "null"),
        (7, "7"),
        (True, "true"),
        (False, "false"),
        ("", "other"),
        ("to be $decided.later", "other"),
        ("x" * 41, "other"),
        (7.5, "other"),
        (["pending"], "other"),
        ({"a": 1}, "other"),
    ],
)
def test_a_status_of_the_shops_own_is_kept_and_the_money_goes_to_review(status: object, name: str) -> None:
    order = Order(status=status)
    change = order.add(CAPTURED)
    assert change is not None
    assert (change.status_from, change.status_to, "payment.status" in change.set) == (status, status, False)
    assert order.status == status
    assert change.reviews == ((f"paid_after_{name}", "pay_A"),)
    assert (order.ledger, order.fulfilled) == (["capture:pay_A"], 0)
    assert order.facts == [("payment_review", "pay_A")]
    assert order.add(CAPTURED) is None, "the same capture again changes nothing and credits nothing"
    assert order.add(AUTHORIZED) is not None
    assert (order.status, order.ledger) == (status, ["capture:pay_A"])


@pytest.mark.parametrize("arrival", [("pay_A", "pay_B"), ("pay_B", "pay_A")])
def test_two_captures_of_a_cancelled_order_end_in_the_same_reviews_in_either_order(arrival: tuple[str, ...]) -> None:
    order = Order(status="cancelled")
    for payment_id in arrival:
        order.add(fact("captured", payment_id))
    assert order.reviews == {
        ("paid_after_cancelled", "pay_A"),
        ("paid_after_cancelled", "pay_B"),
        ("duplicate_capture", "pay_B"),
    }


def test_a_failed_payment_of_a_cancelled_order_needs_no_review() -> None:
    order = Order(status="cancelled")
    order.add(FAILED)
    assert (order.status, order.reviews, order.facts) == ("cancelled", set(), [("payment_failed", "pay_A")])


@pytest.mark.parametrize("born", ["completed", "partially_refunded", "refunded"])
@pytest.mark.parametrize("seen", [FAILED, AUTHORIZED, CAPTURED], ids=lambda seen: seen.status)
def test_an_order_born_paid_is_never_lowered(born: str, seen: PaymentFact) -> None:
    order = Order(status=born)
    change = order.add(seen)
    assert change is not None
    assert "payment.status" not in change.set
    assert order.status == born
    assert order.fulfilled == (seen is CAPTURED)


def test_an_order_born_failed_is_completed_by_a_capture() -> None:
    order = Order(status="failed")
    order.add(CAPTURED)
    assert order.status == "completed"


def test_an_order_without_a_status_counts_as_pending_and_the_precondition_says_so() -> None:
    order = Order()
    change = order.add(CAPTURED)
    assert change is not None
    assert change.status_from is MISSING
    assert order.status == "completed"
    assert order.history[0]["from"] == "pending"


@pytest.mark.parametrize("facts", [[AUTHORIZED], [FAILED], [CAPTURED], [AUTHORIZED, FAILED, CAPTURED]])
def test_the_same_facts_again_change_nothing(facts: list[PaymentFact]) -> None:
    order = pending()
    order.add(*facts)
    assert order.add(*facts) is None
    assert [order.add(each) for each in reversed(facts)] == [None] * len(facts)


def test_no_facts_change_nothing() -> None:
    assert pending(attempts=[]).add() is None


def test_after_a_hundred_failed_payments_only_a_counter_grows() -> None:
    order = pending()
    order.add(*(fact("failed", f"pay_{number:04d}") for number in range(MOST_FAILED_ATTEMPTS)))
    entries = len(order.history)
    change = order.add(fact("failed", "pay_x"), fact("failed", "pay_y"))
    assert change is not None
    assert change.set == {"payment.attemptsOverflow": 2}
    order.add(fact("failed", "pay_z"))
    assert order.payment["attemptsOverflow"] == 3
    assert (len(order.payment["attempts"]), len(order.history)) == (MOST_FAILED_ATTEMPTS, entries)


def test_after_a_hundred_failed_payments_known_and_captured_ones_still_count() -> None:
    order = pending()
    order.add(*(fact("failed", f"pay_{number:04d}") for number in range(MOST_FAILED_ATTEMPTS)))
    assert order.add(fact("failed", "pay_0000")) is None
    order.add(fact("captured", "pay_x"))
    assert (order.status, len(order.payment["attempts"])) == ("completed", MOST_FAILED_ATTEMPTS + 1)


def test_a_doubt_about_a_payment_that_is_only_counted_is_dropped_with_it() -> None:
    order = pending()
    order.add(*(fact("failed", f"pay_{number:04d}") for number in range(MOST_FAILED_ATTEMPTS)))
    change = order.add(fact("failed", "pay_x"), doubts={"pay_x": "order_keys_disagree"})
    assert change is not None
    assert (change.reviews, order.payment["attemptsOverflow"]) == ((), 1)


@pytest.mark.parametrize("stored", ["none", {"paymentId": "pay_A"}, 7, True])
@pytest.mark.parametrize("name", ["attempts", "review"])
def test_a_list_that_is_none_makes_the_order_unreadable(name: str, stored: object) -> None:
    with pytest.raises(OrderUnreadable, match=f"payment.{name} is not a list"):
        pending(**{name: stored}).add(CAPTURED)


def test_entries_that_are_not_ours_are_kept() -> None:
    foreign_attempts = ["note", None, {"paymentId": 7, "statuses": []}, {"by": "the shop", "statuses": ["failed"]}]
    foreign_reviews = ["look at this", 7, {"by": "the shop"}]
    order = pending(attempts=list(foreign_attempts), review=list(foreign_reviews))
    order.add(fact("captured", amount=1))
    assert order.payment["attempts"][:-1] == foreign_attempts
    assert order.payment["attempts"][-1]["paymentId"] == "pay_A"
    assert [entry for entry in order.payment["review"] if entry in foreign_reviews] == [
        "look at this",
        7,
        {"by": "the shop"},
    ]
    assert len(order.payment["review"]) == 4
    assert order.status == "pending"


@pytest.mark.parametrize("arrival", list(itertools.permutations([AUTHORIZED, FAILED, CAPTURED])))
def test_every_fact_of_a_payment_is_in_the_history_once_in_every_order(arrival: tuple[PaymentFact, ...]) -> None:
    order = pending()
    for seen in (*arrival, *reversed(arrival)):
        order.add(seen)
    assert order.facts == [("payment_authorized", "pay_A"), ("payment_completed", "pay_A"), ("payment_failed", "pay_A")]
    assert [entry["seq"] for entry in order.history] == [1, 2, 3]


def test_the_history_tells_who_moved_the_status() -> None:
    order = pending()
    for seen in (AUTHORIZED, FAILED, CAPTURED):
        order.add(seen)
    assert [(entry["fact"], entry["from"], entry["to"]) for entry in order.history] == [
        ("payment_authorized", "pending", "pending"),
        ("payment_failed", "pending", "failed"),
        ("payment_completed", "failed", "completed"),
    ]
    assert order.history[2] == {
        "seq": 3,
        "at": NOW,
        "fact": "payment_completed",
        "ref": "pay_A",
        "amount": 49_900,
        "currency": "INR",
        "from": "failed",
        "to": "completed",
        "cause": CAUSE,
    }


def test_a_review_is_told_after_the_status_moved() -> None:
    order = pending()
    order.add(fact("captured", "pay_A"), fact("captured", "pay_B"))
    assert [(entry["fact"], entry["ref"], entry["from"], entry["to"]) for entry in order.history] == [
        ("payment_completed", "pay_A", "pending", "completed"),
        ("payment_review", "pay_B", "completed", "completed"),
    ]


@pytest.mark.parametrize(("stored", "first"), [([], 1), ([{"seq": 1}, {"seq": 2}], 3), (None, 1)])
def test_the_sequence_goes_on_where_the_stored_history_ends(stored: object, first: int) -> None:
    change = reduce({"status": "pending"}, [AUTHORIZED, FAILED], EXPECTED, NOW)
    assert change is not None
    assert [entry["seq"] for entry in numbered(change, stored, NOW, CAUSE)] == [first, first + 1]


def test_a_history_that_is_no_list_is_refused() -> None:
    change = reduce({"status": "pending"}, [AUTHORIZED], EXPECTED, NOW)
    assert change is not None
    with pytest.raises(OrderUnreadable, match="history is not a list"):
        numbered(change, "odd", NOW, CAUSE)


def test_a_payment_of_another_order_goes_to_review_and_completes_nothing() -> None:
    order = pending()
    change = order.add(CAPTURED, taken=["pay_A"])
    assert change is not None
    assert (order.status, change.reviews, order.fulfilled) == ("pending", (("payment_on_two_orders", "pay_A"),), 0)
    assert "razorpayPaymentId" not in order.payment
    order.add(fact("captured", "pay_B"), taken=["pay_A"])
    assert order.payment["razorpayPaymentId"] == "pay_B"


def test_a_doubt_goes_to_review_once_and_the_payment_still_counts() -> None:
    order, doubts = pending(), {"pay_A": "order_keys_disagree"}
    change = order.add(CAPTURED, doubts=doubts)
    assert change is not None
    assert (order.status, change.reviews) == ("completed", (("order_keys_disagree", "pay_A"),))
    assert order.add(CAPTURED, doubts=doubts) is None


def test_a_closed_review_entry_stays_as_it_is_and_is_not_opened_again() -> None:
    order = pending()
    order.add(fact("captured", amount=1))
    order.payment["review"][0] |= {"state": "rejected", "by": "asha"}
    assert order.add(fact("captured", amount=1)) is None
    order.add(fact("captured", "pay_B", amount=2))
    assert [(entry["ref"], entry["state"]) for entry in order.payment["review"]] == [
        ("pay_A", "rejected"),
        ("pay_B", "open"),
    ]


def test_without_a_time_of_the_provider_paid_at_is_when_we_first_heard_of_it() -> None:
    order, undated = pending(), fact("captured", created_at=None)
    order.add(undated)
    assert order.payment["paidAt"] == NOW
    later = reduce(order.payment, [undated, AUTHORIZED], EXPECTED, datetime(2027, 1, 1, tzinfo=UTC))
    assert later is not None
    assert "payment.paidAt" not in later.set


def test_a_capture_is_credited_when_its_amount_becomes_known() -> None:
    order = pending()
    order.add(fact("captured", amount=None))
    order.add(CAPTURED)
    order.add(CAPTURED)
    assert order.ledger == ["capture:pay_A"]
    assert order.status == "completed"


def test_the_ledger_entry_carries_the_amount_that_moved_not_the_expected_one() -> None:
    change = reduce({"status": "pending"}, [fact("captured", amount=100, currency="USD")], EXPECTED, NOW)
    assert change is not None
    (entry,) = change.ledger
    assert (entry.id, entry.entry_type, entry.ref_id, entry.amount, entry.currency) == (
        "capture:pay_A",
        "capture",
        "pay_A",
        100,
        "USD",
    )


def test_the_input_is_never_changed() -> None:
    order = pending()
    order.add(FAILED)
    stored = {**order.payment, "attempts": [{**order.payment["attempts"][0]}]}
    reduce(order.payment, [CAPTURED], EXPECTED, NOW)
    assert order.payment == stored


# --- refunds ---


def refund(refund_id: str, amount: int, status: str = "processed", payment_id: str = "pay_A") -> RefundFact:
    return RefundFact(refund_id, payment_id, status, amount, "INR", 1_790_000_100)


def test_partial_refunds_add_up_until_the_order_is_refunded() -> None:
    order = pending()
    order.add(CAPTURED)
    order.add(refund("rfnd_1", 20_000))
    assert (order.status, order.payment["amountRefunded"]) == ("partially_refunded", 20_000)
    order.add(refund("rfnd_2", 29_900))
    assert (order.status, order.payment["amountRefunded"]) == ("refunded", 49_900)
    assert order.ledger == ["capture:pay_A", "refund:rfnd_1", "refund:rfnd_2"]
    assert order.fulfilled == 1


def test_a_refund_that_is_not_processed_moves_no_money() -> None:
    order = pending()
    order.add(CAPTURED)
    order.add(refund("rfnd_1", 49_900, "pending"))
    assert (order.status, order.payment["amountRefunded"], order.ledger) == ("completed", 0, ["capture:pay_A"])
    order.add(refund("rfnd_1", 49_900, "processed"))
    assert order.status == "refunded"
    assert order.add(refund("rfnd_1", 49_900, "pending")) is None, "a late `created` undoes nothing"


def test_a_refund_that_turns_out_failed_gives_the_status_back_and_reverses_the_debit() -> None:
    for arrival in itertools.permutations(["pending", "processed", "failed"]):
        order = pending()
        order.add(CAPTURED)
        for status in arrival:
            order.add(refund("rfnd_1", 49_900, status))
        assert (order.status, order.payment["amountRefunded"]) == ("completed", 0), arrival
        assert set(order.ledger) == {"capture:pay_A", "refund:rfnd_1", "refund_reversal:rfnd_1"}, arrival
        assert {("refund_processed", "rfnd_1"), ("refund_failed", "rfnd_1")} <= set(order.facts)


def test_a_refund_before_its_capture_counts_when_the_capture_comes() -> None:
    order = pending()
    order.add(refund("rfnd_1", 20_000))
    assert (order.status, order.ledger) == ("pending", [])
    order.add(CAPTURED)
    assert (order.status, order.payment["amountRefunded"]) == ("partially_refunded", 20_000)
    assert set(order.ledger) == {"capture:pay_A", "refund:rfnd_1"}


def test_the_snapshot_beside_a_refund_is_a_capture_of_its_own() -> None:
    order = pending()
    order.add(fact("refunded", captured=True), refund("rfnd_1", 49_900))
    assert (order.status, order.fulfilled) == ("refunded", 1)
    assert set(order.ledger) == {"capture:pay_A", "refund:rfnd_1"}


def test_an_auto_refund_of_a_payment_that_was_never_captured_moves_nothing() -> None:
    order = pending()
    order.add(fact("refunded", captured=False), refund("rfnd_1", 49_900))
    assert (order.status, order.ledger, order.fulfilled) == ("pending", [], 0)
    assert ("refund_processed", "rfnd_1") in order.facts, "the customer is told all the same"


def test_the_refund_of_a_duplicate_payment_leaves_the_order_paid() -> None:
    order = pending()
    order.add(CAPTURED)
    order.add(fact("captured", "pay_B", created_at=1_790_000_050))
    order.add(refund("rfnd_1", 49_900, payment_id="pay_B"))
    assert (order.status, order.payment["amountRefunded"]) == ("completed", 0)
    assert set(order.ledger) == {"capture:pay_A", "capture:pay_B", "refund:rfnd_1"}


def test_more_refunded_than_captured_goes_to_review() -> None:
    order = pending()
    order.add(CAPTURED)
    order.add(refund("rfnd_1", 30_000))
    order.add(refund("rfnd_2", 30_000))
    assert ("refunded_more_than_captured", "pay_A") in order.reviews
    assert order.status == "refunded"


def test_a_refunded_status_that_the_shop_set_itself_is_not_taken_back_by_a_late_capture() -> None:
    order = pending()
    order.add(CAPTURED)
    order.payment["status"] = "refunded"
    order.add(fact("captured", fee=1178))
    assert order.status == "refunded"


def test_what_is_stored_beside_our_refunds_is_kept_and_what_is_no_list_is_refused() -> None:
    order = pending(refunds=["a note of the shop"])
    order.add(CAPTURED, refund("rfnd_1", 1))
    assert order.payment["refunds"][0] == "a note of the shop"
    with pytest.raises(OrderUnreadable, match="refunds is not a list"):
        pending(refunds=7).add(CAPTURED)


def test_the_refund_of_an_order_that_the_shop_had_paid_itself_ships_nothing() -> None:
    order = Order(status="completed", razorpayPaymentId="pay_A")
    order.add(fact("refunded", captured=True), refund("rfnd_1", 49_900))
    assert (order.status, order.fulfilled) == ("refunded", 0)
    assert "payment_completed" not in {name for name, _ in order.facts}
    assert set(order.ledger) == {"capture:pay_A", "refund:rfnd_1"}
