"""Wake parked events when the order they wait for appears, or gets the ids that they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from models.clock import ServerClock
from models.database import Database
from models.states import EventStatus

ORDER_IDS = ("razorpayOrderId", "paymentLinkId")
PAYMENT_IDS = ("razorpayPaymentId",)
_PREFIX = "payment."


def named_ids(change: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """The provider's order and payment ids that a change writes into an order, as far as it shows them."""
    if change["operationType"] == "update":
        fields = (change.get("updateDescription") or {}).get("updatedFields") or {}
        payment = fields.get("payment")
        shown = {path[len(_PREFIX) :]: value for path, value in fields.items() if path.startswith(_PREFIX)}
    else:
        payment, shown = (change.get("fullDocument") or {}).get("payment"), {}
    if isinstance(payment, dict):
        shown |= payment
    return _strings(shown, ORDER_IDS), _strings(shown, PAYMENT_IDS)


def _strings(fields: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    return {value for name in names if isinstance(value := fields.get(name), str) and value}


class Waker:
    """Makes parked events due; the webhook processes' recovery loop takes them from there."""

    def __init__(self, db: Database, clock: ServerClock) -> None:
        self._db, self._clock = db, clock

    async def wake(self, changes: Iterable[Mapping[str, Any]]) -> int:
        """How many parked events these changes of orders made due now. Doing it twice changes nothing."""
        orders: set[str] = set()
        payments: set[str] = set()
        for change in changes:
            named = named_ids(change)
            orders |= named[0]
            payments |= named[1]
        if not orders | payments or await self._db.events.find_one({"status": EventStatus.PARKED}, {"_id": 1}) is None:
            return 0
        now = self._clock.now()
        about = [{"refs.orderId": {"$in": sorted(orders)}}, {"refs.paymentLinkId": {"$in": sorted(orders)}}]
        about.append({"refs.paymentId": {"$in": sorted(payments)}})
        waiting = {"status": EventStatus.PARKED, "nextAttemptAt": {"$gt": now}, "$or": about}
        result = await self._db.events.update_many(waiting, {"$set": {"nextAttemptAt": now, "updatedAt": now}})
        return result.modified_count
