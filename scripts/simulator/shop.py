"""The shop's side of a trial: it inserts pending orders and looks up what became of them."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scripts.simulator.builders import Json, identifier
from scripts.simulator.checkout import checkout

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from models.database import Database
    from scripts.simulator.checkout import OrderTruth


@dataclass(frozen=True, slots=True)
class OrderUnderTest:
    """A fresh pending order; `amount` in paise."""

    order_id: str
    provider_order_id: str
    amount: int


@dataclass(frozen=True, slots=True)
class OrderState:
    """What the database holds of one order."""

    status: str | None
    transitions: int
    """Entries of its history that made it `completed`."""
    captures: int
    """Capture entries in the ledger."""
    fulfilments: int

    def __str__(self) -> str:
        """The state as an attack's sentence says it."""
        counts = f"transitions {self.transitions}, captures {self.captures}, fulfilments {self.fulfilments}"
        return f"order {self.status}, {counts}"


class Shop(Protocol):
    """What the attacks need of the shop and of the receiver's database."""

    async def new_order(self) -> OrderUnderTest:
        """Insert a fresh pending order."""
        ...

    async def outcome(self, order: OrderUnderTest) -> OrderState:
        """Read what became of it."""
        ...

    async def rows(self, raw: bytes) -> list[str]:
        """Statuses of the stored events that hold exactly these bytes."""
        ...


class MongoShop:
    """The real shop: orders, events, ledger and fulfilments in one database."""

    def __init__(self, db: Database, rng: random.Random) -> None:
        self._orders, self._events, self._ledger, self._fulfilments = db.orders, db.events, db.ledger, db.fulfilments
        self._rng = rng

    async def insert(self, orders: Sequence[Json]) -> None:
        """Insert these orders durably (majority, journalled), before any event of theirs is sent."""
        if orders:
            await self._orders.insert_many(orders)

    async def differing(self, truth: Mapping[str, OrderTruth]) -> list[str]:
        """Ids of the orders whose status, completing payment or refunded amount is not (yet) what the truth says."""
        fields = {"payment.status": 1, "payment.razorpayPaymentId": 1, "payment.amountRefunded": 1}
        wrong = set(truth)
        async for found in self._orders.find({"_id": {"$in": list(truth)}}, fields):
            expected, payment = truth[found["_id"]], found.get("payment", {})
            as_captured = expected.captured is None or payment.get("razorpayPaymentId") == expected.captured
            as_refunded = payment.get("amountRefunded", 0) == expected.amount_refunded
            if payment.get("status") == expected.status and as_captured and as_refunded:
                wrong.discard(found["_id"])
        return sorted(wrong)

    async def new_order(self) -> OrderUnderTest:
        """Insert a fresh pending order."""
        shop, provider_order = checkout(self._rng, f"PL-A-{identifier(self._rng)}", int(time.time()))
        await self.insert([shop])
        return OrderUnderTest(shop["_id"], provider_order["id"], provider_order["amount"])

    async def outcome(self, order: OrderUnderTest) -> OrderState:
        """Read what became of it."""
        found: Json = await self._orders.find_one({"_id": order.order_id}) or {}
        entries = await self._ledger.find({"orderId": order.order_id}, {"_id": 1}).to_list()
        return OrderState(
            status=found.get("payment", {}).get("status"),
            transitions=sum(_completes(entry) for entry in found.get("history") or []),
            captures=sum(str(entry["_id"]).startswith("capture:") for entry in entries),
            fulfilments=await self._fulfilments.count_documents({"_id": order.order_id}),
        )

    async def rows(self, raw: bytes) -> list[str]:
        """Statuses of the stored events that hold exactly these bytes."""
        key = {"bodyHash": hashlib.sha256(raw).hexdigest(), "idSigned": False}  # the partial index that claims use
        found = self._events.find(key, {"status": 1, "rawBody": 1})
        return [str(row.get("status")) async for row in found if bytes(row["rawBody"]) == raw]


def _completes(entry: Json) -> bool:
    return entry.get("to") == "completed" and entry.get("from") != "completed"
