"""The reader's place in the stream: a baseline from the first start, and a checkpoint that never goes backwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bson import Timestamp
from pymongo.errors import DuplicateKeyError

from models.clock import ServerClock
from models.crash import crash_point
from models.database import Database

CHECKPOINT = "checkpoint"
BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class Place:
    """Where to go on. Without a token: from `cluster_time`, which is the first moment not yet read."""

    token: Mapping[str, Any] | None
    cluster_time: Timestamp
    seq: int
    pipeline_hash: str | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """The moment of the first start; nothing older is ever notified."""

    cluster_time: Timestamp
    at: datetime


async def cluster_time(db: Database) -> Timestamp:
    """The server's newest operation."""
    operation: Timestamp = (await db.client.admin.command("ping"))["operationTime"]
    return operation


class PlaceKeeper:
    """Loads and saves the place. Every write carries the leader's epoch: an older leader's save matches nothing."""

    def __init__(self, db: Database, clock: ServerClock, pipeline_hash: str) -> None:
        self._db, self._clock, self._pipeline_hash = db, clock, pipeline_hash

    async def baseline(self) -> Baseline:
        """The stored baseline; at the very first start it is made, before anything is read."""
        stored = await self._db.watcher_state.find_one({"_id": BASELINE})
        if stored is None:
            newest, now = await cluster_time(self._db), self._clock.now()
            document: dict[str, Any] = {"clusterTime": newest, "at": now, "createdAt": now, "updatedAt": now}
            await self._insert(BASELINE, document)
            crash_point("watcher.baseline_stored")
            stored = await self._db.watcher_state.find_one({"_id": BASELINE}) or document
        return Baseline(stored["clusterTime"], stored["at"])

    async def adopt(self, epoch: int, baseline: Baseline) -> Place:
        """Take the checkpoint over for this epoch, so that no earlier leader can move it any more."""
        now = self._clock.now()
        first = Timestamp(baseline.cluster_time.time, baseline.cluster_time.inc + 1)
        fresh: dict[str, Any] = {"token": None, "clusterTime": first, "seq": 0, "pipelineHash": None, "epoch": epoch}
        await self._insert(CHECKPOINT, fresh)
        await self._db.watcher_state.update_one(
            {"_id": CHECKPOINT, "epoch": {"$lt": epoch}},
            {"$set": {"epoch": epoch, "updatedAt": now}},
        )
        stored = await self._db.watcher_state.find_one({"_id": CHECKPOINT}) or fresh
        return Place(stored["token"], stored["clusterTime"], stored["seq"], stored["pipelineHash"])

    async def save(self, epoch: int, place: Place) -> bool:
        """Move on; False when another leader has the checkpoint now."""
        result = await self._db.watcher_state.update_one(
            {"_id": CHECKPOINT, "epoch": epoch, "seq": {"$lt": place.seq}},
            {
                "$set": {
                    "token": place.token,
                    "clusterTime": place.cluster_time,
                    "seq": place.seq,
                    "pipelineHash": self._pipeline_hash,
                    "updatedAt": self._clock.now(),
                },
            },
        )
        return result.matched_count == 1

    async def _insert(self, name: str, document: Mapping[str, Any]) -> None:
        """First writer wins; an upsert would race with another instance's first start."""
        if await self._db.watcher_state.find_one({"_id": name}, {"_id": 1}) is not None:
            return
        try:
            await self._db.watcher_state.insert_one({"_id": name, **document})
        except DuplicateKeyError:
            return
