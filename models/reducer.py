"""The rules of money as one pure function: what an order's payment becomes when facts are added to it.

Facts form a set: adding the same ones in any order, any number of times, ends in the same payment (rule 5 of the
design). That holds because attempts, refunds and links are joins (`models/entries.py`) and everything else follows from
them (`models/derive.py`), from the order's expectation, and from what operators decided. Nothing here reads a clock or
arrival order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from models.derive import Derived, derive
from models.entries import Entries, Entry, in_order, statuses, stored_entries, stored_list
from models.errors import OrderUnreadable
from models.facts import DecisionFact, Fact, RefFact
from models.known import LISTS, Known
from models.provider_ids import OWN_IDS
from models.reviews import Name, Reviews, paid_after
from models.states import ORDER_RANK, PAID, OrderStatus, order_status
from models.terms import Expectation

_FOREIGN_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_PAYMENT_FACTS = {"authorized": "payment_authorized", "failed": "payment_failed", "callback": "checkout_callback"}
_REFUND_FACTS = {"pending": "refund_created", "processed": "refund_processed", "failed": "refund_failed"}
_LINK_FACTS = {status: f"link_{status}" for status in ("partially_paid", "paid", "expired", "cancelled")}
_MOVING_FACTS = frozenset({"payment_failed", "payment_completed", "refund_processed", "refund_failed"})
MISSING = object()


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
    waiting: frozenset[str] = frozenset()
    """Payment ids of new captures of which nobody can say yet whether they fit."""


@dataclass(frozen=True, slots=True)
class _Step:
    """From what was known to what is known now."""

    before: Known
    after: Known
    overflow: int
    """Failed attempts beyond the hundredth, which are only counted."""
    old: Derived
    new: Derived
    reviews: Reviews

    @classmethod
    def of(
        cls, payment: Mapping[str, Any], given: tuple[Fact, ...], expected: Expectation, taken: frozenset[str]
    ) -> _Step:
        """Join the facts and derive both sides. Raises `OrderUnreadable`."""
        before = Known.stored(payment)
        after, overflow = before.joined(given)
        reviews = Reviews(payment, (fact for fact in given if isinstance(fact, DecisionFact)))
        old = derive(payment, before, expected, taken, reviews.before)
        new = derive(payment, after, expected, taken, reviews.decided)
        return cls(before, after, overflow, old, new, reviews)


def reduce(
    payment: Mapping[str, Any],
    facts: Iterable[Fact],
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
    given = tuple(facts)
    step = _Step.of(payment, given, expected, taken)
    status_from = payment.get("status", MISSING)
    ours = _our_status(status_from, step.reviews)
    status_to = status_from if ours is None else _moved(ours, step.old.status, step.new.status)
    completes = ours is not None and _completes(ours, step)
    needed = _needed(step, doubts, status_from)
    fresh = step.reviews.missing(needed, step.after.attempts, expected)
    wanted = {
        **_lists(payment, step.after),
        **_refs(payment, given),
        **step.reviews.written(fresh, needed, now),
        **_sums(payment, step),
        **_acceptance(payment, step, now),
    }
    if ours is not None and status_to != status_from:
        wanted["status"] = str(status_to)
    changes = {f"payment.{name}": value for name, value in wanted.items() if payment.get(name) != value}
    if not changes:
        return None
    booked = _ledger(step.before)
    return Change(
        status_from=status_from,
        status_to=status_to,
        set=changes,
        history=_history(step, fresh, ours or status_from, status_to, completes=completes),
        ledger=tuple(entry for entry in _ledger(step.after) if entry not in booked),
        fulfil=completes,
        reviews=tuple((entry["reason"], entry["ref"]) for entry in fresh),
        waiting=step.new.waiting - step.old.waiting,
    )


def _our_status(status: object, reviews: Reviews) -> OrderStatus | None:
    """The status as one of ours; None for one of the shop's, unless an operator accepts the money in this moment."""
    if status is MISSING:
        return OrderStatus.PENDING
    accepted_now = reviews.decided.accepted - reviews.before.accepted
    overruled = order_status(status) is None and any(reason == _paid_after(status) for _, reason in accepted_now)
    return OrderStatus.PENDING if overruled else order_status(status)


def _completes(ours: OrderStatus, step: _Step) -> bool:
    """Whether the order becomes paid now; one that the shop had paid itself and that is refunded is no news to ship."""
    if not step.new.complete:
        return False
    if ours not in PAID:
        return True
    refunded = {refund["paymentId"] for refund in step.after.refunds.values()}
    return not step.old.complete and not refunded & {attempt["paymentId"] for attempt in step.new.accepted}


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


def _needed(step: _Step, doubts: Mapping[str, str], status: object) -> frozenset[Name]:
    """(payment id, reason) of everything that somebody must look at."""
    needed = step.new.reviews | {(ref, reason) for ref, reason in doubts.items() if ref in step.after.attempts}
    if status is not MISSING and order_status(status) is None:
        # each capture that fits, since which of them is the accepted one may change with the next fact
        needed |= {(ref, _paid_after(status)) for ref in step.new.fitting}
    return needed


def _paid_after(status: object) -> str:
    """A foreign status as a reason: `null`, `7`, `cancelled`; `other` for what has no short form."""
    text = "null" if status is None else str(status).lower() if isinstance(status, bool) else str(status)
    return paid_after(text if _FOREIGN_NAME.fullmatch(text) else "other")


def _lists(payment: Mapping[str, Any], known: Known) -> dict[str, Any]:
    """`attempts`, `refunds` and `links` in their order; entries that are not ours stay in front, as they are."""
    lists: dict[str, Any] = {}
    for name, key in LISTS.items():
        if entries := getattr(known, name):
            foreign, _ = stored_entries(payment, name, key)
            lists[name] = [*foreign, *in_order(entries)]
    return lists


def _refs(payment: Mapping[str, Any], facts: Iterable[Fact]) -> dict[str, Any]:
    """Further ids of the order at the provider; those that the shop keeps itself need no second place."""
    own = [*map(payment.get, OWN_IDS.values())]  # of any type
    given = [fact.document() for fact in sorted({f for f in facts if isinstance(f, RefFact) and f.id not in own})]
    stored = stored_list(payment, "refs")
    fresh = [ref for ref in given if ref not in stored]
    return {"refs": sorted([*stored, *fresh], key=repr)} if fresh else {}


def _sums(payment: Mapping[str, Any], step: _Step) -> dict[str, Any]:
    """What came of the accepted captures and went back, and how many failed attempts were only counted."""
    sums: dict[str, Any] = {"amountRefunded": step.new.refunded} if step.after.refunds else {}
    if step.new.accepted:
        sums["amountPaid"] = step.new.paid
    if step.overflow:
        sums["attemptsOverflow"] = payment.get("attemptsOverflow", 0) + step.overflow
    return sums


def _acceptance(payment: Mapping[str, Any], step: _Step, now: datetime) -> dict[str, Any]:
    """What the order says of the payment that completed it: of the first one, and the time of the last."""
    signed = [attempt["signature"] for attempt in in_order(step.after.attempts) if attempt.get("signature")]
    if not step.new.complete:
        return {"razorpaySignature": signed[0]} if signed else {}
    first, last = step.new.accepted[0], step.new.accepted[-1]
    signature = first.get("signature")
    return {
        "razorpayPaymentId": first["paymentId"],
        "method": first["method"],
        "methodDetails": first["methodDetails"],
        "paidAt": _paid_at(payment, first, last, now),
        **({"razorpaySignature": signature or signed[0]} if signed else {}),
    }


def _paid_at(payment: Mapping[str, Any], first: Entry, last: Entry, now: datetime) -> datetime:
    """When the provider says the payment was made; where it does not say, when we first heard of it."""
    if last["createdAt"] is not None:
        return datetime.fromtimestamp(last["createdAt"], UTC)
    known = payment.get("paidAt") if payment.get("razorpayPaymentId") == first["paymentId"] else None
    return known if isinstance(known, datetime) else now


def _history(
    step: _Step, fresh: list[Entry], status_from: object, status_to: object, *, completes: bool
) -> tuple[Entry, ...]:
    """One entry per fact that became true; the status moves with the last of those that can move it."""
    before, after = step.before, step.after
    entries = _new_facts(before.links, after.links, _LINK_FACTS)
    entries += _new_facts(before.attempts, after.attempts, _PAYMENT_FACTS)
    entries += [
        _entry("payment_part_captured", ref, after.attempts[ref]) for ref in sorted(step.new.parts - step.old.parts)
    ]
    if completes:
        first = step.new.accepted[0]
        entries.append({**_entry("payment_completed", first["paymentId"], first), "amount": step.new.paid})
    entries += _new_facts(before.refunds, after.refunds, _REFUND_FACTS)
    entries += [{**_entry("payment_review", entry["ref"], entry), "reason": entry["reason"]} for entry in fresh]
    entries += [
        {**_entry(f"review_{fact.state}", ref, after.attempts.get(ref, _UNKNOWN)), "reason": reason, "by": fact.by}
        for (ref, reason), fact in sorted(step.reviews.taken.items())
    ]
    if not entries and status_from != status_to:
        entries.append({"fact": "status_corrected", "ref": "", "amount": None, "currency": None})
    moving = max((place for place, entry in enumerate(entries) if entry["fact"] in _MOVING_FACTS), default=0)
    for place, entry in enumerate(entries):
        entry["from"] = status_to if place > moving else status_from
        entry["to"] = status_to if place >= moving else status_from
    return tuple(entries)


_UNKNOWN: Mapping[str, Any] = MappingProxyType({"amount": None, "currency": None})


def _new_facts(before: Entries, after: Entries, facts: Mapping[str, str]) -> list[Entry]:
    """An entry for every status of a payment, refund or link that was not seen before."""
    return [
        _entry(fact, entry_id, after[entry_id])
        for entry_id in sorted(after)
        for status, fact in facts.items()
        if status in statuses(after, entry_id) - statuses(before, entry_id)
    ]


def _entry(fact: str, ref: str, about: Mapping[str, Any]) -> Entry:
    return {"fact": fact, "ref": ref, "amount": about["amount"], "currency": about["currency"]}


def _ledger(known: Known) -> list[LedgerEntry]:
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
