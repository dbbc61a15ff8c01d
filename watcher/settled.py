"""Which orders the merchant's own code had settled before the watcher's first start: they are no news in any sweep.

A status that the merchant wrote bears no date, so only a look at the first start can tell.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime

from pymongo.errors import BulkWriteError

from models.clock import ServerClock
from models.database import Database, RawDocument
from watcher.notices import Notice, encoded
from watcher.outbox import only_duplicates
from watcher.owed import FIELDS, owed
from watcher.place import BASELINE

PAGE = 200
_PREFIX = "settled:"


def _mark(notice: Notice) -> str:
    return f"{_PREFIX}{encoded(notice.order_id)}:{notice.name}"


class Settled:
    """Remembers one row per such order and status in `watcher_state`."""

    def __init__(self, db: Database, clock: ServerClock) -> None:
        self._db, self._clock = db, clock

    async def take_stock(self) -> bool:
        """Look through all orders, once in the life of a baseline; whether it was done now."""
        unknown = {"_id": BASELINE, "stockTakenAt": {"$exists": False}}
        if await self._db.watcher_state.find_one(unknown, {"_id": 1}) is None:
            return False
        now = self._clock.now()
        async for page in pages(self._db, {}):
            await self._remember(page, now)
        await self._db.watcher_state.update_one({"_id": BASELINE}, {"$set": {"stockTakenAt": now, "updatedAt": now}})
        return True

    async def unknown(self, notices: Sequence[Notice]) -> list[Notice]:
        """Those that are not settled since before the first start."""
        marks = [_mark(notice) for notice in notices if notice.foreign]
        if not marks:
            return list(notices)
        found = self._db.watcher_state.find({"_id": {"$in": marks}}, {"_id": 1})
        known = {mark["_id"] async for mark in found}
        return [notice for notice in notices if not (notice.foreign and _mark(notice) in known)]

    async def _remember(self, page: Sequence[RawDocument], now: datetime) -> None:
        marks: list[RawDocument] = []
        for order in page:
            marks += [{"_id": _mark(notice), "createdAt": now} for notice in _foreign(order, now)]
        if not marks:
            return
        try:
            await self._db.watcher_state.insert_many(marks, ordered=False)
        except BulkWriteError as error:
            only_duplicates(error)


def _foreign(order: RawDocument, now: datetime) -> list[Notice]:
    try:
        return [notice for notice in owed(order, now, now) if notice.foreign]
    except Exception:  # noqa: BLE001 - what cannot be understood is kept aside by the sweep that meets it
        return []


async def pages(db: Database, query: RawDocument, size: int = PAGE) -> AsyncIterator[list[RawDocument]]:
    """The orders found, some at a time. The server keeps the place: ids of several types cannot be paged by value."""
    page: list[RawDocument] = []
    async for order in db.orders.find(query, FIELDS, batch_size=size):
        page.append(order)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page
