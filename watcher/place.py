"""The reader's place in the stream: a baseline from the first start, and a checkpoint that never goes backwards."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bson import Timestamp
from pymongo.errors import DuplicateKeyError, OperationFailure

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
    cluster: Mapping[str, Any] | None = None
    """What the server was known by that the place is of; see `identity`."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The moment of the first start; nothing older is ever notified."""

    cluster_time: Timestamp
    at: datetime


async def cluster_time(db: Database) -> Timestamp:
    """The server's newest operation."""
    operation: Timestamp = (await db.client.admin.command("ping"))["operationTime"]
    return operation


async def identity(db: Database) -> dict[str, Any]:
    """What tells one cluster from another.

    On MongoDB the replica set's name (`hello`), its `settings.replicaSetId` (`replSetGetConfig`, which a user with
    `readWrite` alone may not ask for), and the uuid that the checkpoint's collection was created with: every member has
    the same one, a restore into another cluster has another. The embedded server always has the name and the uuid.
    """
    hello = await db.client.admin.command("hello")
    known: dict[str, Any] = {"setName": hello.get("setName")}
    with contextlib.suppress(OperationFailure):  # not allowed, or not a replica set's member
        config = (await db.client.admin.command("replSetGetConfig"))["config"]
        known["replicaSetId"] = (config.get("settings") or {}).get("replicaSetId")
    async for found in await db.handle.list_collections(filter={"name": db.watcher_state.name}):
        known["collection"] = (found.get("info") or {}).get("uuid")
    return {name: value for name, value in known.items() if value is not None}


class PlaceKeeper:
    """Loads and saves the place. Every write carries the leader's epoch: an older leader's save matches nothing."""

    def __init__(self, db: Database, clock: ServerClock, pipeline_hash: str) -> None:
        self._db, self._clock, self._pipeline_hash = db, clock, pipeline_hash
        self._cluster: Mapping[str, Any] | None = None

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
        return _place(stored)

    async def current(self) -> Place | None:
        """The checkpoint as it is now; None when somebody deleted it."""
        stored = await self._db.watcher_state.find_one({"_id": CHECKPOINT})
        return None if stored is None else _place(stored)

    async def doubt(self, place: Place) -> str | None:
        """Why this place cannot be one of this server, or None: it might accept such a token and stay silent."""
        self._cluster = await identity(self._db)
        if not place.cluster_time.time:
            return "damaged checkpoint"
        stored = place.cluster or {}
        if any(stored[name] != self._cluster[name] for name in stored.keys() & self._cluster.keys()):
            return "another cluster"
        newest = await cluster_time(self._db)
        return "ahead of the server" if place.cluster_time > Timestamp(newest.time, newest.inc + 1) else None

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
                    "cluster": self._cluster,
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


def _place(stored: Mapping[str, Any]) -> Place:
    reached = stored.get("clusterTime")
    return Place(
        token=stored.get("token"),
        cluster_time=reached if isinstance(reached, Timestamp) else Timestamp(0, 0),
        seq=stored["seq"],
        pipeline_hash=stored.get("pipelineHash"),
        cluster=stored.get("cluster"),
    )
