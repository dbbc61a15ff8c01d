"""What a change of an order means, as a pure function of the change event.

Our own writes always push to `history`, so a change that touches it counts only by what was pushed; any other change of
`payment.status` was made by the merchant's own code, and so was a whole order whose status our history does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import bson.json_util
from bson import Int64, ObjectId

from models.money import parse_amount
from models.states import PAID, OrderStatus, order_status

_HISTORY_ENTRY = re.compile(r"history\.[0-9]+")
_TAGGED = re.compile(r"(?:oid|int|ejson|str)~")

# Which parts of a history entry make a notice's key, so that one fact has one key in every arrival order.
REFS: Mapping[str, tuple[str, ...]] = {
    "payment_completed": (),
    "payment_failed": ("ref",),
    "refund_processed": ("ref",),
    "refund_failed": ("ref",),
    "payment_review": ("reason", "ref"),
    "dispute_opened": ("ref",),
    "dispute_closed": ("ref",),
}
ALERT = "alert"
"""The name of notices about alerts."""
FOREIGN_REF = "-"
"""Stands for the payment id that a foreign writer's status does not name."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A fact that somebody may be told."""

    name: str
    order_id: object
    refs: tuple[str, ...]
    fact_at: datetime
    foreign: bool = False
    """Made by the merchant's own code, so the fact may be older than its change."""

    def key(self, channel: str, recipient: str) -> str:
        """The unique key of the row that tells this fact to one recipient by one channel."""
        return ":".join(("order", encoded(self.order_id), self.name, *map(_escaped, self.refs), channel, recipient))


@dataclass(frozen=True, slots=True)
class AlertNotice:
    """One message about all open alerts of a kind; the round makes its key."""

    kind: str
    round: int
    fact_at: datetime
    name: str = ALERT
    order_id: None = None
    foreign: bool = False

    @property
    def refs(self) -> tuple[str, ...]:
        """The kind and the round."""
        return self.kind, str(self.round)

    def key(self, channel: str, recipient: str) -> str:
        """The unique key of the row."""
        return f"{ALERT}:{self.kind}:{self.round}:{channel}:{recipient}"


def encoded(order_id: object) -> str:
    """An order id in a key: strings stand as they are, other types carry a tag, so ids of two types never meet."""
    match order_id:
        case str():
            return _escaped(f"str~{order_id}" if _TAGGED.match(order_id) else order_id)
        case ObjectId():
            return f"oid~{order_id}"
        case bool():
            return f"ejson~{_escaped(bson.json_util.dumps(order_id))}"
        case int() | Int64():
            return f"int~{int(order_id)}"
        case _:
            return f"ejson~{_escaped(bson.json_util.dumps(order_id))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A")


def notices(change: Mapping[str, Any]) -> list[Notice]:
    """Every notice that this change of an order yields; a change that says nothing about money yields none."""
    if change["operationType"] not in {"insert", "replace", "update"}:
        return []
    order_id, at = change["documentKey"]["_id"], moment(change)
    pushed, status = _pushed(change), _foreign_status(change)
    told = [notice for entry in pushed if (notice := _of_entry(order_id, entry, at))]
    if pushed and (change["operationType"] == "update" or any(entry.get("to") == status for entry in pushed)):
        return told
    notice = of_foreign_status(order_id, status, at)
    return [*told, notice] if notice else told


def moment(change: Mapping[str, Any]) -> datetime:
    """When the change was committed, by the server."""
    wall = change.get("wallTime")
    if isinstance(wall, datetime):
        return wall if wall.tzinfo else wall.replace(tzinfo=UTC)
    return datetime.fromtimestamp(change["clusterTime"].time, UTC)


def shortened(change: Mapping[str, Any]) -> bool:
    """Whether the change cut the order's history or attempts, as saving an old copy of the order does."""
    if change["operationType"] != "update":
        return False
    description = change["updateDescription"]
    cut = {entry["field"] for entry in description.get("truncatedArrays") or ()}
    cut |= set(description.get("removedFields") or ())
    if cut & {"history", "payment", "payment.attempts"}:
        return True
    whole = description["updatedFields"].get("history")
    if "history" not in description["updatedFields"]:
        return False
    return not isinstance(whole, list) or any(_is_entry(entry) and entry["seq"] > len(whole) for entry in whole)


def _pushed(change: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The entries of our history that the change shows; none when it did not touch them (the shop may have its own)."""
    if change["operationType"] == "update":
        return list(_shown_entries(change["updateDescription"]["updatedFields"]))
    return list(_shown_entries({"history": (change.get("fullDocument") or {}).get("history")}))


def _shown_entries(fields: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A first push arrives as the whole array, later ones as `history.<place>`."""
    for path, value in fields.items():
        if path == "history":
            yield from entries(value)
        elif _HISTORY_ENTRY.fullmatch(path) and _is_entry(value):
            yield value


def entries(history: object) -> list[Mapping[str, Any]]:
    """The entries of ours in an order's history; the shop may have its own there."""
    return [entry for entry in history if _is_entry(entry)] if isinstance(history, list) else []


def _is_entry(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("seq"), int)
        and isinstance(value.get("fact"), str)
        and isinstance(value.get("cause"), dict)
    )


def _of_entry(order_id: object, entry: Mapping[str, Any], at: datetime) -> Notice | None:
    parts = REFS.get(entry["fact"])
    if parts is None:
        return None
    told = entry.get("at")
    if isinstance(told, datetime):
        at = told if told.tzinfo else told.replace(tzinfo=UTC)
    return Notice(entry["fact"], order_id, tuple(str(entry[part]) for part in parts), at)


def _foreign_status(change: Mapping[str, Any]) -> object:
    """`payment.status` as the change sets it: a dotted key, a whole sub-document, a replacement, an order born so."""
    if change["operationType"] != "update":
        return _status_in((change.get("fullDocument") or {}).get("payment"))
    fields = change["updateDescription"]["updatedFields"]
    if "payment.status" in fields:
        return fields["payment.status"]
    return _status_in(fields.get("payment"))


def _status_in(payment: object) -> object:
    """The status of a payment as a whole; none where our own entries in it lead there, since those are told."""
    if not isinstance(payment, dict):
        return None
    status = payment.get("status")
    return None if _is_ours(payment, order_status(status)) else status


def _is_ours(payment: Mapping[str, Any], status: OrderStatus | None) -> bool:
    """Whether the shop saved a status that it had from us, with the attempts and refunds that made it."""
    if status is OrderStatus.FAILED:
        return any("failed" in attempt["statuses"] for attempt in _stored(payment, "attempts"))
    whole = parse_amount(payment.get("amountPaid")) or 0
    back = min(_refunded(payment), parse_amount(payment.get("amountRefunded")) or 0)
    return (status is OrderStatus.REFUNDED and back >= whole > 0) or (
        status is OrderStatus.PARTIALLY_REFUNDED and back > 0
    )


def _refunded(payment: Mapping[str, Any]) -> int:
    """The sum of the refunds that we know of; some may be of a payment that was one too many."""
    standing = [refund for refund in _stored(payment, "refunds") if refund.get("status") == "processed"]
    return sum(parse_amount(refund.get("amount")) or 0 for refund in standing)


def _stored(payment: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Our entries in a list of the payment, which carry every status that was seen."""
    found = payment.get(name)
    ours = found if isinstance(found, list) else []
    return [entry for entry in ours if isinstance(entry, dict) and isinstance(entry.get("statuses"), list)]


def of_foreign_status(order_id: object, status: object, at: datetime) -> Notice | None:
    """What a status means that the merchant's own code wrote."""
    ours = order_status(status)
    if ours is OrderStatus.COMPLETED:
        return Notice("payment_completed", order_id, (), at, foreign=True)
    if ours is OrderStatus.FAILED:
        return Notice("payment_failed", order_id, (FOREIGN_REF,), at, foreign=True)
    return Notice("payment_refunded", order_id, (), at, foreign=True) if ours in PAID else None
