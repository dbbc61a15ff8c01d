"""The sweep: compare the orders themselves with what was told of them and with the ledger, and make up for what lacks.

After a gap over all orders, the lately changed ones first; from time to time over the lately changed ones alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from models.clock import ServerClock
from models.database import Database, RawDocument
from models.telemetry import Telemetry
from watcher.deadletters import DeadLetters
from watcher.notices import Notice
from watcher.outbox import Outbox
from watcher.owed import owed
from watcher.repair import Repair
from watcher.settled import Settled, pages

GAP = "gap"
SWEEP = "sweep"
MARGIN = timedelta(minutes=2)
"""A change is dated before its commit, and no transaction lasts longer."""
LOOK_EVERY = 5.0

OnGap = Callable[[datetime, str], Awaitable[None]]
"""Told the time and the reason of a gap, before its sweep."""


async def unlimited(_now: datetime, _reason: str) -> None:
    """Nothing holds back what a sweep adds."""


class Sweeper:
    """A duty of the reading instance. What it owes is stored, so that a killed sweep is done by the next reader."""

    def __init__(
        self,
        db: Database,
        clock: ServerClock,
        outbox: Outbox,
        repair: Repair,
        interval: float,
        telemetry: Telemetry,
        on_gap: OnGap,
    ) -> None:
        self._db, self._clock, self._outbox, self._repair = db, clock, outbox, repair
        self._dead_letters, self._telemetry, self._on_gap = DeadLetters(db, clock, telemetry), telemetry, on_gap
        self._interval = timedelta(seconds=interval)
        self.settled = Settled(db, clock)
        self.baseline: datetime | None = None
        """Nothing older is told; set by the reader before the first round."""
        self.every = min(LOOK_EVERY, interval)
        self.wake = asyncio.Event()

    async def owe(self, since: datetime, reason: str, *, gap: bool) -> None:
        """Note, before the checkpoint moves on, that changes since then may have been missed."""
        now = self._clock.now()
        if gap:
            await self._on_gap(now, reason)
            self._telemetry.emit("stream.gap", reason=reason, since=since.isoformat())
        await self._db.watcher_state.update_one(
            {"_id": GAP},
            {
                "$min": {"since": since},
                "$max": {"gap": gap},
                "$set": {"reason": reason, "mark": ObjectId(), "updatedAt": now},
                "$setOnInsert": {"createdAt": now},
            },
            upsert=True,
        )
        self.wake.set()

    async def run_once(self) -> dict[str, int]:
        """Mend a gap if there is one, else sweep the lately changed orders when it is time."""
        noted = await self._db.watcher_state.find_one({"_id": GAP})
        if noted is not None:
            counts = await self._mend(noted)
            await self._db.watcher_state.delete_one({"_id": GAP, "mark": noted["mark"]})
            self._telemetry.emit("sweep.done", reason=noted["reason"], **counts)
            return counts
        return await self._lately()

    async def _mend(self, noted: RawDocument) -> dict[str, int]:
        counts: Counter[str] = Counter(orders=0, rows=0, lost=0)
        since, gap = noted["since"], bool(noted["gap"])
        for query in ({"payment.changedAt": {"$gte": since - MARGIN}}, {}):
            async for page in pages(self._db, query):
                counts.update(await self.sweep(page, since, gap=gap))
        return dict(counts)

    async def _lately(self) -> dict[str, int]:
        now = self._clock.now()
        stored = await self._db.watcher_state.find_one({"_id": SWEEP})
        if stored is None:
            await self._remember(now)
            return {}
        since: datetime = stored["safeTime"]
        if now - since < self._interval:
            return {}
        counts: Counter[str] = Counter()
        async for page in pages(self._db, {"payment.changedAt": {"$gte": since - MARGIN}}):
            counts.update(await self.sweep(page, since, gap=False))
        counts["lost"] += await self._repair.restore_since(since - MARGIN)
        await self._remember(now)
        return dict(counts)

    async def _remember(self, safe_time: datetime) -> None:
        update = {"$max": {"safeTime": safe_time}, "$set": {"updatedAt": safe_time}}
        await self._db.watcher_state.update_one({"_id": SWEEP}, update, upsert=True)

    async def sweep_one(self, order_id: object, since: datetime) -> None:
        """Make up for one order whose change could not be read."""
        async for page in pages(self._db, {"_id": order_id}):
            await self.sweep(page, since, gap=False)

    async def sweep(self, orders: Sequence[RawDocument], since: datetime, *, gap: bool) -> dict[str, int]:
        """Add the rows that these orders' facts lack; how many, and how many orders lack what the ledger has."""
        now = self._clock.now()
        told: list[Notice] = []
        for order in orders:
            told += await self._understood(order, since, now)
        news = await self.settled.unknown(told)
        rows = await self._outbox.add_missing(news, self.baseline or now, gap=gap)
        lost = await self._repair.restore(orders)
        return {"orders": len(orders), "rows": rows, "lost": lost}

    async def _understood(self, order: RawDocument, since: datetime, now: datetime) -> list[Notice]:
        try:
            return owed(order, since, now)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the others
            seen: dict[str, Any] = {"operationType": "sweep", "documentKey": {"_id": order["_id"]}}
            await self._dead_letters.keep(f"sweep:{order['_id']}", seen, type(error).__name__)
            return []
