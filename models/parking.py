"""Parked events wait for an order, or for a provider's terms; whoever learns the ids they name makes them due."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from models.database import Database
from models.states import EventStatus


@dataclass(frozen=True, slots=True)
class Names:
    """Ids under which a parked event may know an order that has just appeared or learned something."""

    orders: Collection[str] = ()
    links: Collection[str] = ()
    payments: Collection[str] = ()
    receipts: Collection[str] = ()

    def __bool__(self) -> bool:
        return bool(self.orders or self.links or self.payments or self.receipts)


async def wake_parked(db: Database, names: Names, now: datetime) -> int:
    """Make the parked events that name one of these due; how many. Doing it twice changes nothing.

    The webhook processes' recovery loop takes them from there.
    """
    if not names or await db.events.find_one({"status": EventStatus.PARKED}, {"_id": 1}) is None:
        return 0
    wanted = {
        "refs.orderId": names.orders,
        "refs.paymentLinkId": names.links,
        "refs.paymentId": names.payments,
        "refs.receipt": names.receipts,
    }
    about = [{path: {"$in": sorted(ids)}} for path, ids in wanted.items() if ids]
    query = {"status": EventStatus.PARKED, "nextAttemptAt": {"$gt": now}, "$or": about}
    result = await db.events.update_many(query, {"$set": {"nextAttemptAt": now, "updatedAt": now}})
    return result.modified_count
