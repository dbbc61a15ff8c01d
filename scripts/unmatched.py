"""Authentic money that belongs to no order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from models.database import Database, RawDocument
from models.facts import Event
from models.states import EventStatus
from scripts.order_events import parsed, said
from scripts.order_parts import Said, Sum
from scripts.stored_values import clean, moment
from webhook.event_rows import FOR_TERMS

_QUERY = {
    "$or": [
        {"status": EventStatus.PARKED, "outcome.code": {"$ne": FOR_TERMS}},
        {"status": EventStatus.DEAD, "outcome.code": "unmatched"},
        {"status": EventStatus.IGNORED, "outcome.code": "no_order_id"},
    ]
}
_FIELDS = ("provider", "eventId", "eventType", "rawBody", "refs", "receivedAt", "status", "outcome", "nextAttemptAt")

Parsers = Mapping[str, Callable[[bytes], Event]]


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A captured or authorised payment, and the event that says so."""

    event_id: str
    event_type: str
    order_id: str
    payment: Said
    received_at: datetime | None
    status: str
    outcome: str
    next_attempt_at: datetime | None

    def document(self) -> dict[str, Any]:
        """As JSON names things."""
        came = self.payment.sum or Sum(None, None)
        return {
            "eventId": self.event_id,
            "eventType": self.event_type,
            "paymentId": self.payment.ref,
            "paymentStatus": self.payment.status,
            "providerOrderId": self.order_id or None,
            "amount": came.amount,
            "currency": came.currency,
            "receivedAt": self.received_at,
            "status": self.status,
            "outcome": self.outcome,
            "nextAttemptAt": self.next_attempt_at,
        }


async def unmatched(db: Database, parsers: Parsers, limit: int) -> list[Unmatched]:
    """The newest ones, at most `limit`."""
    found: list[Unmatched] = []
    async for row in db.events.find(_QUERY, dict.fromkeys(_FIELDS, 1)).sort("receivedAt", -1):
        if len(found) >= limit:
            break
        parse = parsers.get(row["provider"])
        event = parsed(row, parse) if parse else None
        if event is not None:
            found += [_unmatched(row, payment) for payment in said(event) if _is_money(payment, event)]
    return found


def _is_money(payment: Said, event: Event) -> bool:
    ours = any(fact.id == payment.ref for fact in event.payments)
    return ours and (payment.captured or payment.status == "authorized")


def _unmatched(row: RawDocument, payment: Said) -> Unmatched:
    return Unmatched(
        event_id=clean(row["eventId"]),
        event_type=clean(row["eventType"]),
        order_id=clean((row.get("refs") or {}).get("orderId")),
        payment=payment,
        received_at=moment(row.get("receivedAt")),
        status=clean(row["status"]),
        outcome=clean((row.get("outcome") or {}).get("code")),
        next_attempt_at=moment(row.get("nextAttemptAt")),
    )
