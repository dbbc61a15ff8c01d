"""One reader at a time, without clocks: a lease whose heartbeat the standbys watch on their own monotonic clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymongo.errors import DuplicateKeyError

from models.database import Database
from models.leases import new_token

LEADER = "leader"


@dataclass(frozen=True, slots=True)
class _Seen:
    """A leader's sign of life and when we first saw it."""

    epoch: int
    beat: int
    since: float


class LeaderLease:
    """Held by whoever renews it; taken over by compare-and-set on exactly the (epoch, beat) that stood still."""

    def __init__(self, db: Database, seconds: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._db, self._seconds, self._monotonic = db, seconds, monotonic
        self._token = new_token()
        self._seen: _Seen | None = None
        self._renewed = 0.0
        self.epoch = 0

    @property
    def renew_every(self) -> float:
        """Seconds between two heartbeats."""
        return self._seconds / 4

    @property
    def held(self) -> bool:
        """Whether nobody can have taken it over yet, counted from before our last heartbeat was sent."""
        return self.epoch > 0 and self._monotonic() - self._renewed < self._seconds

    async def acquire(self) -> bool:
        """Take the lease when it is free, or when its holder has shown no life for the whole lease time."""
        started = self._monotonic()
        stored = await self._db.watcher_state.find_one({"_id": LEADER})
        if stored is None:
            return await self._create(started)
        if stored["holder"] is not None and not self._stood_still(stored["epoch"], stored["beat"]):
            return False
        return await self._take(stored["epoch"], stored["beat"])

    async def renew(self) -> bool:
        """Show life; False when another instance is the leader now."""
        started = self._monotonic()
        result = await self._db.watcher_state.update_one(self._mine(), {"$inc": {"beat": 1}})
        if result.matched_count == 0:
            self.epoch = 0
            return False
        self._renewed = started
        return True

    async def release(self) -> None:
        """Hand over at once instead of letting the others wait."""
        if self.epoch:
            await self._db.watcher_state.update_one(self._mine(), {"$set": {"holder": None}, "$inc": {"beat": 1}})
            self.epoch = 0

    async def _create(self, started: float) -> bool:
        try:
            await self._db.watcher_state.insert_one({"_id": LEADER, "holder": self._token, "epoch": 1, "beat": 0})
        except DuplicateKeyError:
            return False
        self.epoch, self._renewed = 1, started
        return True

    async def _take(self, epoch: int, beat: int) -> bool:
        started, self._token = self._monotonic(), new_token()
        result = await self._db.watcher_state.update_one(
            {"_id": LEADER, "epoch": epoch, "beat": beat},
            {"$set": {"holder": self._token, "epoch": epoch + 1, "beat": 0}},
        )
        if result.matched_count == 0:
            return False
        self.epoch, self._renewed, self._seen = epoch + 1, started, None
        return True

    def _stood_still(self, epoch: int, beat: int) -> bool:
        now = self._monotonic()
        if self._seen is None or (self._seen.epoch, self._seen.beat) != (epoch, beat):
            self._seen = _Seen(epoch, beat, now)
            return False
        return now - self._seen.since >= self._seconds

    def _mine(self) -> dict[str, Any]:
        return {"_id": LEADER, "holder": self._token, "epoch": self.epoch}
