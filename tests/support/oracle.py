"""What really came of orders, compared with what their histories imply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from models.database import Database
from watcher.notices import notices

_CHANNEL = ":email:customer"


def keys_of(order_id: object, history: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys, without channel and recipient, of the notices that a watcher makes of these history entries."""
    pushed = {f"history.{place}": entry for place, entry in enumerate(history)}
    change = {
        "operationType": "update",
        "documentKey": {"_id": order_id},
        "updateDescription": {"updatedFields": pushed},
        "wallTime": datetime.now(UTC),
    }
    return {notice.key("email", "customer").removesuffix(_CHANNEL) for notice in notices(change)}


@dataclass(frozen=True)
class Books:
    """Everything that was written, read once."""

    orders: Mapping[object, dict[str, Any]]
    ledger: Sequence[dict[str, Any]]
    fulfilments: frozenset[object]

    @classmethod
    async def read(cls, db: Database) -> Books:
        return cls(
            orders={order["_id"]: order async for order in db.orders.find({})},
            ledger=await db.ledger.find({}).to_list(),
            fulfilments=frozenset([row["_id"] async for row in db.fulfilments.find({}, {"_id": 1})]),
        )

    def ledger_of(self, order_id: object) -> list[str]:
        """Ids of the order's ledger entries."""
        return sorted(row["_id"] for row in self.ledger if row["orderId"] == order_id)
