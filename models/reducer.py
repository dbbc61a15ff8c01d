"""The rules of money as one pure function: what an order's payment becomes when facts are added to it.

Facts form a set: adding the same ones in any order, any number of times, ends in the same payment (rule 5 of the
design). That holds because attempts and refunds are joins (`models/entries.py`) and everything else is derived from
them and from the order's expectation. Nothing here reads a clock or arrival order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from models.entries import (
    Entries,
    Entry,
    in_order,
    join_payments,
    join_refunds,
    statuses,
    stored_entries,
    stored_list,
)
from models.errors import OrderUnreadable
from models.facts import PaymentFact, RefundFact
from models.states import ORDER_RANK, PAID, OrderStatus, order_status

_FOREIGN_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_LAST = 2**63
_PAYMENT_FACTS = {"authorized": "payment_authorized", "failed": "payment_failed"}
_REFUND_FACTS = {"pending": "refund_created", "processed": "refund_processed", "failed": "refund_failed"}
_MOVING_FACTS = frozenset({"payment_failed", "payment_completed", "refund_processed", "refund_failed"})
MISSING = object()


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the shop wants for the order, in the smallest unit; None where the order does not say."""

    amount: int | None
    currency: str | None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Money that moved; `_id` is `<entry type>:<ref id>`, so a payment is credited once whatever arrives."""

    entry_type: str
    ref_id: str
    amount: int
    currency: str | None

    @property
    def id(self) -> str:
        """The business key."""
        return f"{self.entry_type}:{self.ref_id}"


@dataclass(frozen=True, slots=True)
class Change:
    """What must be written; `status_from` is the precondition (MISSING: the field is absent)."""

    status_from: object
    status_to: object
    set: dict[str, Any]
    """Dotted paths of the order and their new values."""
    history: tuple[dict[str, Any], ...] = ()
    """Facts that became true, without seq, at and cause."""
    ledger: tuple[LedgerEntry, ...] = ()
    fulfil: bool = False
    reviews: tuple[tuple[str, str], ...] = ()
    """(reason, ref) of entries that are new in `payment.review`."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Attempts and refunds by id."""

    attempts: Entries
    refunds: Entries

    def credited(self, payment_id: str) -> bool:
        """Whether this payment's money came in."""
        attempt = self.attempts.get(payment_id)
        return attempt is not None and attempt["captured"] and attempt["amount"] is not None

    def processed(self, payment_id: str) -> int:
        """Sum of the refunds of a payment that were ever processed; it only grows, whatever fails later."""
        ours = (refund for refund in self.refunds.values() if refund["paymentId"] == payment_id)
        return sum(refund["amount"] or 0 for refund in ours if "processed" in refund["statuses"])

    def refunded(self, payment_id: str) -> int:
        """Sum of the refunds of a payment that stand."""
        ours = (refund for refund in self.refunds.values() if refund["paymentId"] == payment_id)
        return sum(refund["amount"] or 0 for refund in ours if refund["status"] == "processed")


@dataclass(frozen=True, slots=True)
class _Derived:
    """What follows from what is known."""

    accepted: Entry | None
    refunded: int
    """Sum of the standing refunds of the accepted payment."""
    fitting: frozenset[str] = frozenset()
    """Payment ids of the captures that could complete the order; the accepted one is the least of them."""
    reviews: frozenset[tuple[str, str]] = frozenset()
    """(payment id, reason) of all that somebody must look at."""
    any_failed: bool = False

    @property
    def status(self) -> OrderStatus:
        if self.accepted is None:
            return OrderStatus.FAILED if self.any_failed else OrderStatus.PENDING
        if self.refunded == 0:
            return OrderStatus.COMPLETED
        whole = self.refunded >= self.accepted["amount"]
        return OrderStatus.REFUNDED if whole else OrderStatus.PARTIALLY_REFUNDED


def reduce(
    payment: Mapping[str, Any],
    facts: Iterable[PaymentFact | RefundFact],
    expected: Expectation,
    now: datetime,
    taken: frozenset[str] = frozenset(),
    doubts: Mapping[str, str] = MappingProxyType({}),
) -> Change | None:
    """Add facts to an order's `payment`; None when they change nothing.

    `taken` holds payment ids that the database says belong to another order, `doubts` payment ids that need a look and
    why; `now` only stands in for a payment time the provider did not give. Raises `OrderUnreadable` when the stored
    payment has no usable shape.
    """
    before, after, overflow = _known(payment, tuple(facts))
    old, new = _derive(before, expected, taken), _derive(after, expected, taken)
    status_from = payment.get("status", MISSING)
    ours = OrderStatus.PENDING if status_from is MISSING else order_status(status_from)
    status_to = status_from if ours is None else _moved(ours, old.status, new.status)
    completes = ours is not None and _completes(ours, old, new, after)
    needed = new.reviews | {(ref, reason) for ref, reason in doubts.items() if ref in after.attempts}
    if ours is None:  # each capture that fits, since which of them is the accepted one may change with the next fact
        needed |= {(ref, f"paid_after_{_name(status_from)}") for ref in new.fitting}
    reviews = _new_reviews(payment, after.attempts, needed, expected)
    wanted = _lists(payment, after, reviews) | _sums(payment, after, new, overflow) | _acceptance(payment, new, now)
    if ours is not None and status_to != status_from:
        wanted["status"] = str(status_to)
    changes = {f"payment.{name}": value for name, value in wanted.items() if payment.get(name) != value}
    if not changes:
        return None
    credited_before = _ledger(before)
    return Change(
        status_from=status_from,
        status_to=status_to,
        set=changes,
        history=_history(before, after, new.accepted if completes else None, reviews, ours or status_from, status_to),
        ledger=tuple(entry for entry in _ledger(after) if entry not in credited_before),
        fulfil=completes,
        reviews=tuple((entry["reason"], entry["ref"]) for entry in reviews),
    )


def _known(payment: Mapping[str, Any], facts: tuple[PaymentFact | RefundFact, ...]) -> tuple[_Known, _Known, int]:
    """What is stored, what is known with the facts, and how many failed attempts were only counted."""
    _, attempts = stored_entries(payment, "attempts", "paymentId")
    _, refunds = stored_entries(payment, "refunds", "refundId")
    joined, overflow = join_payments(attempts, (fact for fact in facts if isinstance(fact, PaymentFact)))
    refunded = join_refunds(refunds, (fact for fact in facts if isinstance(fact, RefundFact)))
    return _Known(attempts, refunds), _Known(joined, refunded), overflow


def _completes(ours: OrderStatus, old: _Derived, new: _Derived, after: _Known) -> bool:
    """Whether the order becomes paid now; one that the shop had paid itself and that is refunded is no news to ship."""
    if new.accepted is None:
        return False
    if ours not in PAID:
        return True
    return old.accepted is None and new.accepted["paymentId"] not in {r["paymentId"] for r in after.refunds.values()}


def _moved(ours: OrderStatus, old: OrderStatus, new: OrderStatus) -> OrderStatus:
    """The next status: never lower, except that a refund which failed gives back what we ourselves took away."""
    if ours == old and {ours, new} <= PAID:
        return new
    return max(ours, new, key=ORDER_RANK.__getitem__)


def numbered(change: Change, stored: object, at: datetime, cause: Mapping[str, str]) -> list[dict[str, Any]]:
    """The change's history entries as stored: `seq` goes on from the stored history without a gap.

    Raises `OrderUnreadable` when the stored history is something else than a list.
    """
    if stored is not None and not isinstance(stored, list):
        raise OrderUnreadable("history is not a list")
    start = len(stored or ())
    return [
        {"seq": start + offset, "at": at, **entry, "cause": dict(cause)}
        for offset, entry in enumerate(change.history, start=1)
    ]


def _derive(known: _Known, expected: Expectation, taken: frozenset[str]) -> _Derived:
    """Which capture completes the order (the least by creation time and id), and what does not fit."""
    reviews: set[tuple[str, str]] = set()
    fitting: list[Entry] = []
    for payment_id, attempt in known.attempts.items():
        if not attempt["captured"]:
            continue
        reason = "payment_on_two_orders" if payment_id in taken else _misfit(attempt, expected)
        if reason:
            reviews.add((payment_id, reason))
        else:
            fitting.append(attempt)
        if known.credited(payment_id) and known.processed(payment_id) > attempt["amount"]:
            reviews.add((payment_id, "refunded_more_than_captured"))
    fitting.sort(key=_age)
    reviews |= {(attempt["paymentId"], "duplicate_capture") for attempt in fitting[1:]}
    accepted = fitting[0] if fitting else None
    return _Derived(
        accepted=accepted,
        refunded=known.refunded(accepted["paymentId"]) if accepted else 0,
        fitting=frozenset(attempt["paymentId"] for attempt in fitting),
        reviews=frozenset(reviews),
        any_failed=any("failed" in attempt["statuses"] for attempt in known.attempts.values()),
    )


def _age(attempt: Entry) -> tuple[int, str]:
    return _LAST if attempt["createdAt"] is None else attempt["createdAt"], attempt["paymentId"]


def _misfit(attempt: Entry, expected: Expectation) -> str | None:
    if attempt["amount"] is None:
        return "amount_unreadable"
    if expected.amount is None:
        return "expected_amount_missing"
    if attempt["currency"] is None or attempt["currency"] != expected.currency:
        return "currency_mismatch"
    return None if attempt["amount"] == expected.amount else "amount_mismatch"


def _new_reviews(
    payment: Mapping[str, Any],
    attempts: Entries,
    needed: frozenset[tuple[str, str]],
    expected: Expectation,
) -> list[Entry]:
    """Those of the needed (payment id, reason) entries that `payment.review` lacks."""
    stored = stored_list(payment, "review")
    known = {(entry.get("ref"), entry.get("reason")) for entry in stored if isinstance(entry, dict)}
    return [
        {
            "reason": reason,
            "ref": payment_id,
            "amount": attempts[payment_id]["amount"],
            "currency": attempts[payment_id]["currency"],
            "expectedAmount": expected.amount,
            "expectedCurrency": expected.currency,
            "state": "open",
        }
        for payment_id, reason in sorted(needed - known)
    ]


def _lists(payment: Mapping[str, Any], known: _Known, reviews: list[Entry]) -> dict[str, Any]:
    """`attempts`, `refunds` and `review` in their order; entries that are not ours stay in front, as they are."""
    lists: dict[str, Any] = {}
    if known.attempts:
        foreign, _ = stored_entries(payment, "attempts", "paymentId")
        lists["attempts"] = [*foreign, *in_order(known.attempts)]
    if known.refunds:
        foreign, _ = stored_entries(payment, "refunds", "refundId")
        lists["refunds"] = [*foreign, *in_order(known.refunds)]
    if reviews:
        stored = stored_list(payment, "review")
        ours = [entry for entry in stored if isinstance(entry, dict)]
        foreign = [entry for entry in stored if not isinstance(entry, dict)]
        lists["review"] = [*foreign, *sorted([*ours, *reviews], key=_review_order)]
    return lists


def _review_order(entry: Mapping[str, Any]) -> tuple[str, str]:
    return str(entry.get("reason")), str(entry.get("ref"))


def _name(status: object) -> str:
    """A foreign status as a short word: `null`, `7`, `cancelled`; `other` for what has no short form."""
    text = "null" if status is None else str(status).lower() if isinstance(status, bool) else str(status)
    return text if _FOREIGN_NAME.fullmatch(text) else "other"


def _sums(payment: Mapping[str, Any], known: _Known, derived: _Derived, overflow: int) -> dict[str, Any]:
    """What is refunded of the accepted payment, and how many failed attempts were only counted."""
    sums = {"amountRefunded": derived.refunded} if known.refunds else {}
    return {**sums, "attemptsOverflow": payment.get("attemptsOverflow", 0) + overflow} if overflow else sums


def _acceptance(payment: Mapping[str, Any], derived: _Derived, now: datetime) -> dict[str, Any]:
    """What the order says of the payment that completed it."""
    accepted = derived.accepted
    if accepted is None:
        return {}
    return {
        "razorpayPaymentId": accepted["paymentId"],
        "amountPaid": accepted["amount"],
        "method": accepted["method"],
        "methodDetails": accepted["methodDetails"],
        "paidAt": _paid_at(payment, accepted, now),
    }


def _paid_at(payment: Mapping[str, Any], accepted: Entry, now: datetime) -> datetime:
    """When the provider says the payment was made; where it does not say, when we first heard of it."""
    if accepted["createdAt"] is not None:
        return datetime.fromtimestamp(accepted["createdAt"], UTC)
    known = payment.get("paidAt") if payment.get("razorpayPaymentId") == accepted["paymentId"] else None
    return known if isinstance(known, datetime) else now


def _history(
    before: _Known,
    after: _Known,
    completed_by: Entry | None,
    reviews: list[Entry],
    status_from: object,
    status_to: object,
) -> tuple[Entry, ...]:
    """One entry per fact that became true; the status moves with the last of those that can move it."""
    entries = _new_facts(before.attempts, after.attempts, _PAYMENT_FACTS)
    if completed_by:
        entries.append(_entry("payment_completed", completed_by["paymentId"], completed_by))
    entries += _new_facts(before.refunds, after.refunds, _REFUND_FACTS)
    entries += [{**_entry("payment_review", review["ref"], review), "reason": review["reason"]} for review in reviews]
    if not entries and status_from != status_to:
        entries.append({"fact": "status_corrected", "ref": "", "amount": None, "currency": None})
    moving = max((place for place, entry in enumerate(entries) if entry["fact"] in _MOVING_FACTS), default=0)
    for place, entry in enumerate(entries):
        entry["from"] = status_to if place > moving else status_from
        entry["to"] = status_to if place >= moving else status_from
    return tuple(entries)


def _new_facts(before: Entries, after: Entries, facts: Mapping[str, str]) -> list[Entry]:
    """An entry for every status of a payment or refund that was not seen before."""
    return [
        _entry(fact, entry_id, after[entry_id])
        for entry_id in sorted(after)
        for status, fact in facts.items()
        if status in statuses(after, entry_id) - statuses(before, entry_id)
    ]


def _entry(fact: str, ref: str, about: Entry) -> Entry:
    return {"fact": fact, "ref": ref, "amount": about["amount"], "currency": about["currency"]}


def _ledger(known: _Known) -> list[LedgerEntry]:
    """All money that moved: a credit per capture, a debit per processed refund, its reversal if that failed later."""
    moved = [
        _ledger_entry("capture", ref, known.attempts[ref]) for ref in sorted(known.attempts) if known.credited(ref)
    ]
    for ref, refund in sorted(known.refunds.items()):
        if "processed" in refund["statuses"] and refund["amount"] is not None and known.credited(refund["paymentId"]):
            moved.append(_ledger_entry("refund", ref, refund))
            if "failed" in refund["statuses"]:
                moved.append(_ledger_entry("refund_reversal", ref, refund))
    return moved


def _ledger_entry(entry_type: str, ref: str, about: Entry) -> LedgerEntry:
    return LedgerEntry(entry_type, ref, about["amount"], about["currency"])
