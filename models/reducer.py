"""The rules of money as one pure function: what an order's payment becomes when facts are added to it.

Facts form a set: adding the same ones in any order, any number of times, ends in the same payment (rule 5 of the
design). That holds because an attempt is a join (statuses unite, details come from the highest-ranked snapshot) and
everything else is derived from the attempts and the order's expectation. Nothing here reads a clock or arrival order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import orjson

from models.errors import OrderUnreadable
from models.facts import PaymentFact
from models.states import ORDER_RANK, PAID, OrderStatus, order_status

MOST_FAILED_ATTEMPTS = 100
_CAPTURE_RANK = 10
_RANKS = {"authorized": 2, "failed": 1}
_FOREIGN_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_LAST = 2**63

Attempt = dict[str, Any]
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
class _Derived:
    """What follows from a set of attempts."""

    accepted: Attempt | None
    fitting: frozenset[str] = frozenset()
    """Payment ids of the captures that could complete the order; the accepted one is the least of them."""
    refused: dict[str, str] = field(default_factory=dict)
    """Payment id of each capture that does not complete the order -> reason."""
    any_failed: bool = False

    @property
    def status(self) -> OrderStatus:
        if self.accepted:
            return OrderStatus.COMPLETED
        return OrderStatus.FAILED if self.any_failed else OrderStatus.PENDING


def reduce(
    payment: Mapping[str, Any],
    facts: Iterable[PaymentFact],
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
    foreign, before = _stored_attempts(payment)
    after, overflow = _join(before, facts)
    old, new = _derive(before, expected, taken), _derive(after, expected, taken)
    status_from = payment.get("status", MISSING)
    ours = OrderStatus.PENDING if status_from is MISSING else order_status(status_from)
    status_to = status_from if ours is None else max(ours, new.status, key=ORDER_RANK.__getitem__)
    completes = bool(new.accepted) and ours is not None and (ours not in PAID or old.accepted is None)
    needed = {*new.refused.items(), *((ref, reason) for ref, reason in doubts.items() if ref in after)}
    if ours is None:  # each capture that fits, since which of them is the accepted one may change with the next fact
        needed |= {(ref, f"paid_after_{_name(status_from)}") for ref in new.fitting}
    reviews = _new_reviews(payment, after, needed, expected)
    changes = _changes(payment, [*foreign, *_sorted(after)], new, reviews, now)
    if overflow:
        changes["payment.attemptsOverflow"] = payment.get("attemptsOverflow", 0) + overflow
    if ours is not None and status_to != status_from:
        changes["payment.status"] = str(status_to)
    if not changes:
        return None
    return Change(
        status_from=status_from,
        status_to=status_to,
        set=changes,
        history=_history(before, after, new.accepted if completes else None, reviews, ours or status_from, status_to),
        ledger=_ledger(before, after),
        fulfil=completes,
        reviews=tuple((entry["reason"], entry["ref"]) for entry in reviews),
    )


def numbered(change: Change, stored: object, at: datetime, cause: Mapping[str, str]) -> list[dict[str, Any]]:
    """The change's history entries as stored: `seq` goes on from the stored history without a gap."""
    start = len(stored) if isinstance(stored, list) else 0
    return [
        {"seq": start + offset, "at": at, **entry, "cause": dict(cause)}
        for offset, entry in enumerate(change.history, start=1)
    ]


def _stored_attempts(payment: Mapping[str, Any]) -> tuple[list[Any], dict[str, Attempt]]:
    """Entries that are not ours (kept as they are) and ours by payment id."""
    stored = payment.get("attempts")
    if stored is None:
        return [], {}
    if not isinstance(stored, list):
        raise OrderUnreadable("payment.attempts is not a list")
    ours = {entry["paymentId"]: entry for entry in stored if _is_attempt(entry)}
    return [entry for entry in stored if not _is_attempt(entry)], ours


def _is_attempt(entry: object) -> bool:
    return (
        isinstance(entry, dict) and isinstance(entry.get("paymentId"), str) and isinstance(entry.get("statuses"), list)
    )


def _join(before: Mapping[str, Attempt], facts: Iterable[PaymentFact]) -> tuple[dict[str, Attempt], int]:
    """The attempts with the facts added, and how many failed ones were only counted."""
    after, overflow = dict(before), 0
    for fact in facts:
        known = after.get(fact.id)
        if known is None and fact.status == "failed" and _failed_only(after) >= MOST_FAILED_ATTEMPTS:
            overflow += 1
            continue
        after[fact.id] = _merged(known, fact)
    return after, overflow


def _failed_only(attempts: Mapping[str, Attempt]) -> int:
    return sum(attempt["statuses"] == ["failed"] for attempt in attempts.values())


def _merged(known: Attempt | None, fact: PaymentFact) -> Attempt:
    """The join of an attempt and a snapshot: statuses are united; the higher-ranked snapshot's details win."""
    details = {
        "amount": fact.amount,
        "currency": fact.currency,
        "createdAt": fact.created_at,
        "method": fact.method,
        "methodDetails": dict(sorted(fact.method_details.items())) or None,
        "fee": fact.fee,
        "tax": fact.tax,
        "error": dict(sorted(fact.error.items())) or None,
    }
    rank = _CAPTURE_RANK if fact.captured else _RANKS.get(fact.status, 0)
    if known is None:
        return {"paymentId": fact.id, "statuses": [fact.status], "captured": fact.captured, **details}
    known_rank = _CAPTURE_RANK if known["captured"] else max(_RANKS.get(status, 0) for status in known["statuses"])
    if rank < known_rank:
        details = {name: known.get(name) for name in details}
    elif rank == known_rank:
        details = {name: max(known.get(name), value, key=_order) for name, value in details.items()}
    return {
        "paymentId": fact.id,
        "statuses": sorted({*known["statuses"], fact.status}),
        "captured": known["captured"] or fact.captured,
        **details,
    }


def _order(value: object) -> tuple[bool, bytes]:
    """A total order over detail values, None least; what matters is only that everybody picks the same one."""
    return value is not None, orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _sorted(attempts: Mapping[str, Attempt]) -> list[Attempt]:
    return [attempts[payment_id] for payment_id in sorted(attempts)]


def _derive(attempts: Mapping[str, Attempt], expected: Expectation, taken: frozenset[str]) -> _Derived:
    """Which capture completes the order (the least by creation time and id) and why the others do not."""
    refused: dict[str, str] = {}
    fitting: list[Attempt] = []
    for payment_id, attempt in attempts.items():
        if not attempt["captured"]:
            continue
        reason = "payment_on_two_orders" if payment_id in taken else _misfit(attempt, expected)
        if reason:
            refused[payment_id] = reason
        else:
            fitting.append(attempt)
    fitting.sort(key=_age)
    refused |= {attempt["paymentId"]: "duplicate_capture" for attempt in fitting[1:]}
    any_failed = any("failed" in attempt["statuses"] for attempt in attempts.values())
    ids = frozenset(attempt["paymentId"] for attempt in fitting)
    return _Derived(fitting[0] if fitting else None, ids, refused, any_failed)


def _age(attempt: Attempt) -> tuple[int, str]:
    return _LAST if attempt["createdAt"] is None else attempt["createdAt"], attempt["paymentId"]


def _misfit(attempt: Attempt, expected: Expectation) -> str | None:
    if attempt["amount"] is None:
        return "amount_unreadable"
    if expected.amount is None:
        return "expected_amount_missing"
    if attempt["currency"] is None or attempt["currency"] != expected.currency:
        return "currency_mismatch"
    return None if attempt["amount"] == expected.amount else "amount_mismatch"


def _new_reviews(
    payment: Mapping[str, Any],
    attempts: Mapping[str, Attempt],
    needed: set[tuple[str, str]],
    expected: Expectation,
) -> list[dict[str, Any]]:
    """Those of the needed (payment id, reason) entries that `payment.review` lacks."""
    known = {(entry.get("ref"), entry.get("reason")) for entry in _stored_reviews(payment) if isinstance(entry, dict)}
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


def _stored_reviews(payment: Mapping[str, Any]) -> list[Any]:
    """What `payment.review` holds, foreign entries too."""
    stored = payment.get("review")
    if stored is None:
        return []
    if not isinstance(stored, list):
        raise OrderUnreadable("payment.review is not a list")
    return stored


def _name(status: object) -> str:
    """A foreign status as a short word: `null`, `7`, `cancelled`; `other` for what has no short form."""
    text = "null" if status is None else str(status).lower() if isinstance(status, bool) else str(status)
    return text if _FOREIGN_NAME.fullmatch(text) else "other"


def _changes(
    payment: Mapping[str, Any],
    attempts: list[Any],
    derived: _Derived,
    reviews: list[dict[str, Any]],
    now: datetime,
) -> dict[str, Any]:
    """Dotted paths whose stored value differs from the derived one."""
    wanted: dict[str, Any] = {"attempts": attempts}
    if reviews:
        stored = _stored_reviews(payment)
        foreign = [entry for entry in stored if not isinstance(entry, dict)]
        ours = [entry for entry in stored if isinstance(entry, dict)]
        wanted["review"] = [*foreign, *sorted([*ours, *reviews], key=_review_order)]
    if accepted := derived.accepted:
        wanted |= {
            "razorpayPaymentId": accepted["paymentId"],
            "amountPaid": accepted["amount"],
            "method": accepted["method"],
            "methodDetails": accepted["methodDetails"],
            "paidAt": _paid_at(payment, accepted, now),
        }
    return {f"payment.{name}": value for name, value in wanted.items() if payment.get(name) != value}


def _review_order(entry: Mapping[str, Any]) -> tuple[str, str]:
    return str(entry.get("reason")), str(entry.get("ref"))


def _paid_at(payment: Mapping[str, Any], accepted: Attempt, now: datetime) -> datetime:
    """When the provider says the payment was made; where it does not say, when we first heard of it."""
    if accepted["createdAt"] is not None:
        return datetime.fromtimestamp(accepted["createdAt"], UTC)
    known = payment.get("paidAt") if payment.get("razorpayPaymentId") == accepted["paymentId"] else None
    return known if isinstance(known, datetime) else now


def _history(
    before: Mapping[str, Attempt],
    after: Mapping[str, Attempt],
    completed_by: Attempt | None,
    reviews: list[dict[str, Any]],
    status_from: object,
    status_to: object,
) -> tuple[dict[str, Any], ...]:
    """One entry per fact that became true; the status moves with the last of the payment facts."""
    entries = [
        _entry(f"payment_{status}", attempt)
        for attempt in _sorted(after)
        for status in ("authorized", "failed")
        if status in attempt["statuses"]
        and status not in before.get(attempt["paymentId"], {"statuses": ()})["statuses"]
    ]
    if completed_by:
        entries.append(_entry("payment_completed", completed_by))
    moving = next((i for i in reversed(range(len(entries))) if entries[i]["fact"] != "payment_authorized"), None)
    for place, entry in enumerate(entries):
        moves = place == moving
        entry["from"] = status_from
        entry["to"] = status_to if moves else status_from
    entries += [
        {
            "fact": "payment_review",
            "ref": entry["ref"],
            "reason": entry["reason"],
            "amount": entry["amount"],
            "currency": entry["currency"],
            "from": status_to,
            "to": status_to,
        }
        for entry in reviews
    ]
    return tuple(entries)


def _entry(fact: str, attempt: Attempt) -> dict[str, Any]:
    return {"fact": fact, "ref": attempt["paymentId"], "amount": attempt["amount"], "currency": attempt["currency"]}


def _ledger(before: Mapping[str, Attempt], after: Mapping[str, Attempt]) -> tuple[LedgerEntry, ...]:
    """One credit per payment that is captured now and was not before."""
    return tuple(
        LedgerEntry("capture", attempt["paymentId"], attempt["amount"], attempt["currency"])
        for attempt in _sorted(after)
        if _credited(attempt) and not _credited(before.get(attempt["paymentId"]))
    )


def _credited(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt["captured"] and attempt["amount"] is not None
