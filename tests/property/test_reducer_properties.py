"""Rule 5: arrival order and repetition do not matter."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.facts import CallbackFact, Fact, LinkFact, PaymentFact, RefundFact
from models.reducer import MISSING, numbered, reduce
from models.states import PAID
from models.terms import Expectation
from watcher.notices import REFS

NOW = datetime(2026, 10, 1, 12, tzinfo=UTC)
AMOUNT = 49_900
STATUSES = (
    "created",
    "authorized",
    "captured",
    "captured",
    "captured",
    "refunded",
    "failed",
    "pending",
    "status_of_tomorrow",
)
REFUNDED = ("pending", "processed", "processed", "failed")
SUMS = (AMOUNT, AMOUNT // 2, AMOUNT // 3, 1)
ORDERS: tuple[object, ...] = ("pending", "failed", "completed", "refunded", "cancelled", "COD", None, 7, MISSING)

# The same examples on every run, so that a failure is a change of ours.
repeatable = settings(
    max_examples=int(os.environ.get("PAYLATCH_TEST_EXAMPLES", "400")),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@dataclass
class Result:
    """An order after all deliveries."""

    payment: dict[str, Any]
    history: list[dict[str, Any]]
    ledger: list[str]
    fulfilments: int


@st.composite
def snapshots(draw: st.DrawFn) -> list[Fact]:
    """Snapshots of a few payments; what a provider never changes about a payment is the same in all of one's."""
    found: list[Fact] = []
    for payment_id in draw(
        st.sampled_from([("pay_A",), ("pay_A", "pay_B"), ("pay_A", "pay_B"), ("pay_A", "pay_B", "pay_C")])
    ):
        fixed = PaymentFact(
            id=payment_id,
            status="created",
            captured=False,
            amount=draw(st.sampled_from([*[AMOUNT] * 8, AMOUNT - 1, 0, None])),
            currency=draw(st.sampled_from([*["INR"] * 8, "USD", None])),
            created_at=draw(st.one_of(st.none(), st.integers(1_790_000_000, 1_790_000_002))),
        )
        found += [_seen(draw, fixed) for _ in range(draw(st.integers(1, 4)))]
        for place in range(draw(st.integers(0, 2))):
            made = RefundFact(
                f"rfnd_{payment_id[-1]}{place}", payment_id, "pending", draw(st.sampled_from(SUMS)), "INR"
            )
            found += [replace(made, status=draw(st.sampled_from(REFUNDED))) for _ in range(draw(st.integers(1, 3)))]
        if draw(st.booleans()):
            found.append(CallbackFact(payment_id, f"signature of {payment_id}"))
    return [*found, *draw(links())]


LINK = "plink_A"
LINKED = ("created", "partially_paid", "paid", "expired", "cancelled")


@st.composite
def links(draw: st.DrawFn) -> list[Fact]:
    """Snapshots of the order's payment link, whose terms never change; often there is none."""
    terms = LinkFact(LINK, "created", AMOUNT, "INR", draw(st.sampled_from([True, True, False])))
    return [
        replace(terms, status=status, order_id=draw(st.sampled_from([None, "order_L"])))
        for status in draw(st.one_of(st.just([]), st.lists(st.sampled_from(LINKED), max_size=3)))
    ]


SHOPS: tuple[dict[str, Any], ...] = (
    {"razorpayOrderId": "order_A"},
    {"paymentLinkId": LINK},
    {"paymentLinkId": LINK, "razorpayOrderId": "order_A"},
    {"acceptPartial": True},
    {"acceptPartial": False, "paymentLinkId": LINK},
)
"""What a shop may have written beside the status; it says whether captures may add up."""


def _seen(draw: st.DrawFn, fixed: PaymentFact) -> PaymentFact:
    status = draw(st.sampled_from(STATUSES))
    return replace(
        fixed,
        status=status,
        captured=status == "captured" or (status == "refunded" and draw(st.booleans())),
        method=draw(st.sampled_from([None, "upi", "card"])),
        method_details=draw(st.sampled_from([{}, {"last4": "1111"}, {"network": "Visa", "last4": "1111"}])),
        fee=draw(st.sampled_from([None, 9, 100])),
        tax=draw(st.sampled_from([None, 9, 100])),
        error=draw(st.sampled_from([{}, {"code": "A"}, {"code": "B", "step": "s"}])) if status == "failed" else {},
    )


Case = tuple[dict[str, Any], Expectation, list[Fact], list[Fact]]


@st.composite
def deliveries(draw: st.DrawFn) -> Case:
    """An order's payment, its expectation, the facts, and another order of arrival with repetitions."""
    facts, status = draw(snapshots()), draw(st.sampled_from(ORDERS))
    if status in ("completed", "refunded"):  # by the shop itself: whether that is news then depends on the first event
        facts = [fact for fact in facts if isinstance(fact, PaymentFact)]
    again = [*facts, *draw(st.lists(st.sampled_from(facts), max_size=4))]
    for arrival in (facts, again):
        draw(st.randoms(use_true_random=False)).shuffle(arrival)
    expected = draw(
        st.sampled_from([Expectation(AMOUNT, "INR")] * 4 + [Expectation(None, "INR"), Expectation(AMOUNT, None)])
    )
    written = {} if status is MISSING else {"status": status}
    return {**draw(st.sampled_from(SHOPS)), **written}, expected, facts, again


def captures(facts: list[Fact]) -> list[PaymentFact]:
    return [fact for fact in facts if isinstance(fact, PaymentFact) and fact.captured]


def deliver(payment: dict[str, Any], expected: Expectation, facts: list[Fact]) -> Result:
    """One event per fact, each a minute after the other, stored as the settlement does."""
    result = Result(dict(payment), [], [], 0)
    for minute, fact in enumerate(facts):
        at = NOW + timedelta(minutes=minute)
        change = reduce(result.payment, [fact], expected, at)
        if change is None:
            continue
        result.payment |= {path.removeprefix("payment."): value for path, value in change.set.items()}
        result.history += numbered(change, result.history, at, {"eventId": f"E{minute}"})
        result.ledger += [entry.id for entry in change.ledger]
        result.fulfilments += change.fulfil
    return result


def lasting(payment: dict[str, Any]) -> bytes:
    """The payment without what is allowed to depend on the arrival: a payment time the provider did not give.

    Null and absent say the same.
    """
    given_by_us = {"paidAt"} if any(attempt["createdAt"] is None for attempt in payment.get("attempts", ())) else set()
    kept = {name: value for name, value in payment.items() if name not in given_by_us and value is not None}
    return orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)


def notices(result: Result) -> set[tuple[object, ...]]:
    """What the watcher makes notices of; `payment_completed` belongs to the order, all else to its payment."""
    return {
        (entry["fact"],) if entry["fact"] == "payment_completed" else (entry["fact"], entry["ref"], entry.get("reason"))
        for entry in result.history
        if entry["fact"] in REFS
    }


@repeatable
@given(deliveries())
def test_any_arrival_order_with_any_repetitions_ends_in_the_same_facts(
    case: Case,
) -> None:
    payment, expected, facts, again = case
    one, other = deliver(payment, expected, facts), deliver(payment, expected, again)
    assert lasting(one.payment) == lasting(other.payment)
    assert sorted(one.ledger) == sorted(other.ledger)
    assert notices(one) == notices(other)
    assert bool(one.fulfilments) == bool(other.fulfilments)


@repeatable
@given(deliveries())
def test_delivering_everything_again_changes_nothing(
    case: Case,
) -> None:
    payment, expected, facts, again = case
    result = deliver(payment, expected, facts)
    later = NOW + timedelta(days=1)
    assert [reduce(result.payment, [fact], expected, later) for fact in again] == [None] * len(again)
    assert reduce(result.payment, again, expected, later) is None


@repeatable
@given(deliveries())
def test_every_capture_and_every_refund_is_booked_exactly_once(
    case: Case,
) -> None:
    payment, expected, _, again = case
    result = deliver(payment, expected, again)
    captured = {fact.id for fact in captures(again) if fact.amount is not None}
    refunds = [fact for fact in again if isinstance(fact, RefundFact) and fact.payment_id in captured]
    processed = {fact.id for fact in refunds if fact.status == "processed"}
    reversed_ = processed & {fact.id for fact in refunds if fact.status == "failed"}
    moved = {f"capture:{ref}" for ref in captured} | {f"refund:{ref}" for ref in processed}
    assert sorted(result.ledger) == sorted(moved | {f"refund_reversal:{ref}" for ref in reversed_})
    assert result.fulfilments <= 1


@repeatable
@given(deliveries())
def test_an_order_is_completed_by_fitting_money_only_and_a_status_of_the_shop_stays(
    case: Case,
) -> None:
    payment, expected, facts, _ = case
    result = deliver(payment, expected, facts)
    status = payment.get("status", MISSING)
    paid = result.payment.get("amountPaid")
    if status in ("pending", "failed") or status is MISSING:
        if result.payment.get("status") in PAID:
            assert paid is not None
            assert expected.amount is not None
            assert paid >= expected.amount
            assert {fact.currency for fact in captures(facts) if fact.id == result.payment["razorpayPaymentId"]} == {
                expected.currency
            }
        else:
            assert not [
                fact
                for fact in captures(facts)
                if None not in (fact.amount, fact.currency)
                and (fact.amount, fact.currency) == (expected.amount, expected.currency)
            ]
    elif status == "completed":
        assert result.payment["status"] in PAID
    else:
        assert result.payment["status"] == status


@repeatable
@given(deliveries())
def test_captured_money_completes_the_order_or_waits_for_a_person_and_is_never_silent(
    case: Case,
) -> None:
    payment, expected, facts, _ = case
    result = deliver(payment, expected, facts)
    looked_at = {entry["ref"] for entry in result.payment.get("review", ())}
    part_paid = result.payment.get("amountPaid", 0) if result.payment.get("status") not in PAID else 0
    heard = any(isinstance(fact, LinkFact) for fact in facts)
    for fact in captures(facts):
        silent = result.payment.get("status") not in PAID and fact.id not in looked_at
        if silent and not part_paid:  # less money on a link of which nothing was heard: an alert says so
            assert payment.get("paymentLinkId") == LINK
            assert not heard or expected.amount is None
            assert fact.amount is None or fact.amount < AMOUNT


@repeatable
@given(deliveries())
def test_the_history_is_gap_free_and_its_statuses_form_a_chain(
    case: Case,
) -> None:
    payment, expected, _, again = case
    history = deliver(payment, expected, again).history
    assert [entry["seq"] for entry in history] == list(range(1, len(history) + 1))
    assert [entry["to"] for entry in history[:-1]] == [entry["from"] for entry in history[1:]]
    facts = [(entry["fact"], entry["ref"], entry.get("reason")) for entry in history]
    assert len(facts) == len(set(facts))
