"""What is known of each payment, refund and link of an order: sets that grow by joining, never by order of arrival.

A join unites the statuses seen, and keeps the details of the highest-ranked snapshot. Joining the same snapshots in any
order, any number of times, gives the same entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from models.errors import OrderUnreadable
from models.facts import CallbackFact, LinkFact, PaymentFact, RefundFact
from models.money import parse_amount

MOST_FAILED_ATTEMPTS = 100
_CAPTURE_RANK = 10
_PAYMENT_RANKS = {"authorized": 2, "failed": 1}
_REFUND_RANKS = {"processed": 1, "failed": 2}
_LINK_RANKS = {"partially_paid": 1, "expired": 2, "cancelled": 3, "paid": 4}
_CALLBACK = "callback"

_COMMON = frozenset({"statuses", "amount", "currency"})
_FIELDS: Mapping[str, frozenset[str]] = {
    "paymentId": _COMMON | {"paymentId", "captured", "createdAt", "method", "methodDetails"},
    "refundId": _COMMON | {"refundId", "paymentId", "status", "createdAt"},
    "linkId": _COMMON | {"linkId", "status", "acceptPartial"},
}
"""What an entry must have to be one of ours, by the field that names it."""

Entry = dict[str, Any]
Entries = Mapping[str, Entry]


def stored_list(payment: Mapping[str, Any], name: str) -> list[Any]:
    """A list in `payment`, empty where it is absent or null. Raises `OrderUnreadable` when it is something else."""
    stored = payment.get(name)
    if stored is None:
        return []
    if not isinstance(stored, list):
        msg = f"payment.{name} is not a list"
        raise OrderUnreadable(msg)
    return stored


def stored_entries(payment: Mapping[str, Any], name: str, key: str) -> tuple[list[Any], dict[str, Entry]]:
    """Entries that are not ours (kept as they are) and ours by their id, the field `key`."""
    stored = stored_list(payment, name)
    ours = {entry[key]: entry for entry in stored if _is_entry(entry, key)}
    return [entry for entry in stored if not _is_entry(entry, key)], ours


def _is_entry(entry: object, key: str) -> bool:
    """Whole, as we wrote it; what the shop's code left of one tells nothing, and its events bring it back."""
    if not isinstance(entry, dict) or not entry.keys() >= _FIELDS[key] or not isinstance(entry[key], str):
        return False
    seen = entry["statuses"]
    return isinstance(seen, list) and bool(seen) and all(isinstance(status, str) for status in seen) and _is_sum(entry)


def _is_sum(entry: Entry) -> bool:
    """An amount that can be added up, or none; shells and scripts write whole numbers as floats."""
    amount = entry["amount"]
    return amount is None or (not isinstance(amount, str) and parse_amount(amount) is not None)


def in_order(entries: Entries) -> list[Entry]:
    """By id, so that the stored list is the same in every arrival order."""
    return [entries[entry_id] for entry_id in sorted(entries)]


def statuses(entries: Entries, entry_id: str) -> frozenset[str]:
    """The statuses seen of one payment or refund."""
    return frozenset(entries[entry_id]["statuses"]) if entry_id in entries else frozenset()


def join_payments(before: Entries, facts: Iterable[PaymentFact]) -> tuple[dict[str, Entry], int]:
    """The attempts with the facts added, and how many failed ones beyond the hundredth were only counted."""
    after, overflow = dict(before), 0
    for fact in facts:
        known = after.get(fact.id)
        if known is None and fact.status == "failed" and _failed_only(after) >= MOST_FAILED_ATTEMPTS:
            overflow += 1
            continue
        after[fact.id] = _joined_payment(known, fact)
    return after, overflow


def _failed_only(attempts: Entries) -> int:
    return sum(attempt["statuses"] == ["failed"] for attempt in attempts.values())


def _joined_payment(known: Entry | None, fact: PaymentFact) -> Entry:
    details = {
        "amount": fact.amount,
        "currency": fact.currency,
        "createdAt": fact.created_at,
        "method": fact.method,
        "methodDetails": dict(sorted(fact.method_details.items())) or None,
        "fee": fact.fee,
        "tax": fact.tax,
        "error": dict(sorted(fact.error.items())) or None,
        "orderId": fact.order_id,
        "orderAmount": fact.order_amount,
    }
    rank = _CAPTURE_RANK if fact.captured else _PAYMENT_RANKS.get(fact.status, 0)
    if known is None:
        return {"paymentId": fact.id, "statuses": [fact.status], "captured": fact.captured, **details}
    seen = known["statuses"]
    known_rank = _CAPTURE_RANK if known["captured"] else max(_PAYMENT_RANKS.get(status, 0) for status in seen)
    return {
        **known,
        "statuses": sorted({*seen, fact.status}),
        "captured": known["captured"] or fact.captured,
        **_details(known, details, known_rank, rank),
    }


def join_callbacks(before: Entries, facts: Iterable[CallbackFact]) -> dict[str, Entry]:
    """The attempts with the browser's word added: that somebody came back with a signature, not what was paid."""
    after = dict(before)
    for fact in facts:
        known = after.get(fact.payment_id) or _joined_payment(None, _unseen(fact.payment_id))
        seen = sorted({*known["statuses"], _CALLBACK})
        after[fact.payment_id] = {**known, "statuses": seen, "signature": fact.signature}
    return after


def _unseen(payment_id: str) -> PaymentFact:
    return PaymentFact(payment_id, _CALLBACK, captured=False, amount=None, currency=None)


def join_links(before: Entries, facts: Iterable[LinkFact]) -> dict[str, Entry]:
    """The payment links with the facts added."""
    after = dict(before)
    for fact in facts:
        after[fact.id] = _joined_link(after.get(fact.id), fact)
    return after


def _joined_link(known: Entry | None, fact: LinkFact) -> Entry:
    details = {
        "amount": fact.amount,
        "currency": fact.currency,
        "acceptPartial": fact.accept_partial,
        "orderId": fact.order_id,
    }
    seen = known["statuses"] if known else []
    if known is not None:  # of all ranks, since only a paid link names its order
        details = {name: max(known.get(name), value, key=_order) for name, value in details.items()}
    united = sorted({*seen, fact.status})
    return {"linkId": fact.id, "statuses": united, "status": _furthest(united, _LINK_RANKS), **details}


def _furthest(united: Iterable[str], ranks: Mapping[str, int]) -> str:
    return max(united, key=lambda status: (ranks.get(status, 0), status))


def join_refunds(before: Entries, facts: Iterable[RefundFact]) -> dict[str, Entry]:
    """The refunds with the facts added; `status` is the furthest one seen (pending < processed < failed)."""
    after = dict(before)
    for fact in facts:
        after[fact.id] = _joined_refund(after.get(fact.id), fact)
    return after


def _joined_refund(known: Entry | None, fact: RefundFact) -> Entry:
    details = {"amount": fact.amount, "currency": fact.currency, "createdAt": fact.created_at}
    rank, seen = _REFUND_RANKS.get(fact.status, 0), known["statuses"] if known else []
    if known is not None:
        details = _details(known, details, max(_REFUND_RANKS.get(status, 0) for status in seen), rank)
    united = sorted({*seen, fact.status})
    return {
        "refundId": fact.id,
        "paymentId": fact.payment_id,
        "statuses": united,
        "status": _furthest(united, _REFUND_RANKS),
        **details,
    }


def _details(known: Entry, details: Entry, known_rank: int, rank: int) -> Entry:
    """The higher-ranked snapshot's details; of equal ranks, field by field, the one that says something."""
    if rank > known_rank:
        return details
    if rank < known_rank:
        return {name: known.get(name) for name in details}
    return {name: max(known.get(name), value, key=_order) for name, value in details.items()}


def _order(value: object) -> tuple[bool, bytes]:
    """A total order over detail values, None least; what matters is only that everybody picks the same one."""
    return value is not None, orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
