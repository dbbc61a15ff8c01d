"""Orders that lost what the ledger knows, or that the merchant corrected: their events are evaluated again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from models.alerts import raise_alert
from models.clock import ServerClock
from models.database import Database
from models.errors import OrderUnreadable
from models.known import Known
from models.replay import CAPTURE, make_due_again, under_way
from models.reviews import OF_THE_EXPECTATION, OPEN
from models.states import PAID, order_status
from models.telemetry import Telemetry

EXPECTATION = ("payment.amount", "payment.currency", "payment.acceptPartial")
PAGE = 200
PAUSES = (0.1, 0.2, 0.3, 0.4)
"""Seconds between looks at an event under way. One that takes longer ends by its lease, and is evaluated anew then."""

Order = Mapping[str, Any]


class Repair:
    """Evaluating an event again is harmless: the reducer adds only what is missing."""

    def __init__(self, db: Database, clock: ServerClock, telemetry: Telemetry) -> None:
        self._db, self._clock, self._telemetry = db, clock, telemetry

    async def after(self, changes: Iterable[Mapping[str, Any]]) -> None:
        """Look at the orders whose payment somebody else wrote as a whole, or whose expectation they changed."""
        whole, corrected = {}, {}
        for change in changes:
            key = repr(change.get("documentKey"))
            if replaces_payment(change):
                whole[key] = change["documentKey"]["_id"]
            if changes_expectation(change):
                corrected[key] = change["documentKey"]["_id"]
        if whole:
            await self._restore_by_id(list(whole.values()))
        if corrected:
            async for order in self._db.orders.find({"_id": {"$in": list(corrected.values())}}, {"payment": 1}):
                await self._correct(order)

    async def restore(self, orders: Sequence[Order]) -> int:
        """How many of these orders lack a payment that the ledger has credited to them; each raises an alert."""
        lost = 0
        for order, captures in await self._suspects(orders):
            again = await self._db.orders.find_one(
                {"_id": order["_id"]}, {"payment": 1}
            )  # it may be newer than we read
            missing = captures - _captured(again) if again else set()
            if again and missing:
                lost += 1
                await self._report(again, missing)
        return lost

    async def restore_since(self, since: datetime) -> int:
        """As `restore`, for the orders credited since then; a saved old copy has no `changedAt` to find it by."""
        lost, ids = 0, {}
        recent = self._db.ledger.find({"createdAt": {"$gte": since}, "entryType": CAPTURE}, {"orderId": 1})
        async for entry in recent:
            ids[repr(entry["orderId"])] = entry["orderId"]
            if len(ids) == PAGE:
                lost += await self._restore_by_id(list(ids.values()))
                ids.clear()
        return lost + (await self._restore_by_id(list(ids.values())) if ids else 0)

    async def _restore_by_id(self, ids: Sequence[object]) -> int:
        return await self.restore(await self._db.orders.find({"_id": {"$in": ids}}, {"payment": 1}).to_list())

    async def _suspects(self, orders: Sequence[Order]) -> list[tuple[Order, set[str]]]:
        """The orders that seem to lack a credited payment, and what is credited to them."""
        credited: dict[str, set[str]] = {}
        ids = [order["_id"] for order in orders]
        entries = self._db.ledger.find({"orderId": {"$in": ids}, "entryType": CAPTURE}, {"orderId": 1, "refId": 1})
        async for entry in entries:
            credited.setdefault(repr(entry["orderId"]), set()).add(entry["refId"])
        found = ((order, credited.get(repr(order["_id"]), set())) for order in orders)
        return [(order, captures) for order, captures in found if captures - _captured(order)]

    async def _again(self, order: Order) -> int:
        """Make the order's events due; one that a worker is evaluating right now may have seen the order as it was."""
        due = 0
        for pause in PAUSES:
            due += await make_due_again(self._db, order, self._clock.now())
            if not await under_way(self._db, order):
                break
            self._telemetry.emit("order.under_way", order=str(order["_id"]))
            await asyncio.sleep(pause)
        return due

    async def _report(self, order: Order, missing: set[str]) -> None:
        due, now = await self._again(order), self._clock.now()
        detail = f"without {', '.join(sorted(missing))}; {due} events are evaluated again"
        await raise_alert(self._db, self._telemetry, "order_facts_lost", str(order["_id"]), now, detail)

    async def _correct(self, order: Order) -> None:
        payment = order.get("payment")
        review = payment.get("review") if isinstance(payment, dict) else None
        entries = [entry for entry in review if isinstance(entry, dict)] if isinstance(review, list) else []
        looked_at = any(
            entry.get("state") == OPEN and str(entry.get("reason")) in OF_THE_EXPECTATION for entry in entries
        )
        status = order_status(payment.get("status")) if isinstance(payment, dict) else None
        if looked_at or (_captured(order) and status not in PAID):
            due = await self._again(order)
            self._telemetry.emit("order.corrected", order=str(order["_id"]), events=due)


def replaces_payment(change: Mapping[str, Any]) -> bool:
    """Whether somebody else wrote or removed `payment` as a whole; we only ever write its fields."""
    if change["operationType"] != "update":
        return bool(change["operationType"] == "replace")
    description = change.get("updateDescription") or {}
    return "payment" in (description.get("updatedFields") or {}) or "payment" in (
        description.get("removedFields") or ()
    )


def changes_expectation(change: Mapping[str, Any]) -> bool:
    """Whether somebody else wrote what the order expects, alone or with the whole payment."""
    if replaces_payment(change):
        return True
    fields = (change.get("updateDescription") or {}).get("updatedFields") or {}
    return change["operationType"] == "update" and any(name in fields for name in EXPECTATION)


def _captured(order: Order | None) -> set[str]:
    """The payments that the order itself knows to be captured; a half-destroyed entry knows nothing."""
    payment = (order or {}).get("payment")
    try:
        known = Known.stored(payment) if isinstance(payment, dict) else None
    except OrderUnreadable:
        return set()
    return {attempt["paymentId"] for attempt in known.captures} if known else set()
