"""Make an order's completed events due again; evaluating them twice changes nothing that is already applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from models.database import Database
from models.provider_ids import provider_ids
from models.states import EventStatus

CAPTURE = "capture"


async def make_due_again(db: Database, order: Mapping[str, Any], now: datetime) -> int:
    """How many completed events of this order (`_id` and `payment` are read) are due now, to be evaluated anew."""
    named = await _named(db, order)
    if not named:
        return 0
    again = {"status": EventStatus.RECEIVED, "attempts": 0, "nextAttemptAt": now, "updatedAt": now}
    result = await db.events.update_many(
        {"status": EventStatus.COMPLETED, "$or": named},
        {"$set": again, "$inc": {"requeues": 1}, "$unset": {"lease": ""}},
    )
    return result.modified_count


async def under_way(db: Database, order: Mapping[str, Any]) -> bool:
    """Whether a worker is evaluating an event of this order, and may have read the order as it was before."""
    named = await _named(db, order)
    busy = {"status": EventStatus.PROCESSING, "$or": named}
    return bool(named) and await db.events.find_one(busy, {"_id": 1}) is not None


async def _named(db: Database, order: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What an event of the order may name; the ledger knows payments that the order itself may have lost."""
    payment = order.get("payment")
    payment = payment if isinstance(payment, dict) else {}
    credited = db.ledger.find({"orderId": order["_id"], "entryType": CAPTURE}, {"refId": 1})
    payments = {entry["refId"] async for entry in credited} | _payment_ids(payment)
    orders, links = provider_ids(payment, "order"), provider_ids(payment, "payment_link")
    return [
        {f"refs.{name}": {"$in": sorted(ids)}}
        for name, ids in (("orderId", orders), ("paymentId", payments), ("paymentLinkId", links))
        if ids
    ]


def _payment_ids(payment: Mapping[str, Any]) -> set[str]:
    attempts = (attempt.get("paymentId") for attempt in _parts(payment, "attempts"))
    reviewed = (entry.get("ref") for entry in _parts(payment, "review"))
    return _texts([payment.get("razorpayPaymentId"), *attempts, *reviewed])


def _parts(payment: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The sub-documents of a list in `payment`; whatever else the shop put there is none of ours."""
    stored = payment.get(name)
    return [part for part in stored if isinstance(part, dict)] if isinstance(stored, list) else []


def _texts(values: Iterable[object]) -> set[str]:
    return {value for value in values if isinstance(value, str) and value}
