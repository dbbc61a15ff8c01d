"""Notices become rows of the notification log before the reader's place moves on; a unique key makes each one row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo.errors import BulkWriteError

from models.clock import ServerClock
from models.database import DUPLICATE_KEY, Database, RawDocument
from models.errors import Unavailable
from models.settings import NotificationSettings, Routes
from models.states import RowStatus
from watcher.notices import AlertNotice, Notice

OPEN_AT_START = timedelta(seconds=15)
"""A transaction that was open at the first start names its fact by the time before its commit; none lasts longer."""


class Outbox:
    """Knows who is told what by which channel, and writes the rows."""

    def __init__(
        self,
        db: Database,
        clock: ServerClock,
        settings: NotificationSettings,
        channels: Collection[str],
    ) -> None:
        self._db, self._clock = db, clock
        self._routes = _usable(settings.effective_routes, channels)
        self._expire_after = timedelta(seconds=settings.expire_after)

    async def add(self, notices: Iterable[Notice | AlertNotice], since: datetime, *, gap: bool = False) -> int:
        """Store a row per notice, recipient and channel; the number of new ones. Facts from before `since` are no news.

        `gap` marks rows that a sweep made up for. Raises a driver's error or `Unavailable` when it is not certain that
        all rows are stored.
        """
        return await self._insert(self._news(notices, since, gap=gap))

    async def add_missing(self, notices: Iterable[Notice | AlertNotice], since: datetime, *, gap: bool) -> int:
        """As `add`, for notices most of which have their rows: those are looked up first, not written in vain."""
        rows = self._news(notices, since, gap=gap)
        if not rows:
            return 0
        keys = {"key": {"$in": [row["key"] for row in rows]}}
        stored = {row["key"] async for row in self._db.notification_log.find(keys, {"key": 1})}
        return await self._insert([row for row in rows if row["key"] not in stored])

    def _news(self, notices: Iterable[Notice | AlertNotice], since: datetime, *, gap: bool) -> list[RawDocument]:
        news = (notice for notice in notices if notice.fact_at >= since - OPEN_AT_START)
        return [{**row, "gap": True} if gap else row for notice in news for row in self._rows(notice)]

    async def _insert(self, rows: list[RawDocument]) -> int:
        if not rows:
            return 0
        try:
            await self._db.notification_log.insert_many(rows, ordered=False)
        except BulkWriteError as error:
            return len(rows) - only_duplicates(error)
        return len(rows)

    def _rows(self, notice: Notice | AlertNotice) -> list[RawDocument]:
        return [
            self._row(notice, channel, recipient)
            for recipient, channels in self._routes.get(notice.name, {}).items()
            for channel in channels
        ]

    def _row(self, notice: Notice | AlertNotice, channel: str, recipient: str) -> RawDocument:
        """A row for a fact that is too old is born expired: it says that nobody was told, and why."""
        now = self._clock.now()
        expired = notice.fact_at + self._expire_after < now
        return {
            "_id": ObjectId(),
            "key": notice.key(channel, recipient),
            "notice": notice.name,
            "refs": list(notice.refs),
            "orderId": notice.order_id,
            "foreign": notice.foreign,
            "channel": channel,
            "to": recipient,
            "status": RowStatus.EXPIRED if expired else RowStatus.PENDING,
            "reason": "too_old_when_first_seen" if expired else None,
            "factAt": notice.fact_at,
            "attempts": 0,
            "nextAttemptAt": None if expired else now,
            "createdAt": now,
            "updatedAt": now,
        }


def _usable(routes: Routes, channels: Collection[str]) -> Mapping[str, Mapping[str, Sequence[str]]]:
    return {
        notice: {to: [name for name in names if name in channels] for to, names in recipients.items()}
        for notice, recipients in routes.items()
    }


def only_duplicates(error: BulkWriteError) -> int:
    """How many rows were there already, which is success; anything else the server said is raised."""
    details: Mapping[str, Any] = error.details or {}
    problems = details.get("writeErrors", [])
    if details.get("writeConcernErrors"):
        raise Unavailable("the database could not confirm the outbox rows") from None
    if any(problem["code"] != DUPLICATE_KEY for problem in problems):
        raise error
    return len(problems)
