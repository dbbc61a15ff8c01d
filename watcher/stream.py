"""The leased reader: follow the orders' change stream, turn changes into outbox rows, then move the checkpoint."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import bson.json_util
from bson import Timestamp
from pymongo.asynchronous.change_stream import AsyncChangeStream
from pymongo.errors import OperationFailure, PyMongoError

from models.alerts import raise_alert
from models.clock import ServerClock
from models.crash import crash_point
from models.database import Database, RawDocument
from models.errors import DatabaseUnfit, HistoryLost, Unavailable
from models.telemetry import Telemetry
from watcher.notices import Notice, moment, notices, shortened
from watcher.outbox import Outbox
from watcher.place import Baseline, Place, PlaceKeeper, cluster_time
from watcher.wake import Waker

MAX_AWAIT_MS = 500
BATCH = 200
READ_AHEAD = 500
HELD_BACK = 60
"""Seconds by which the stored cluster time of a quiet stream stays behind: an answer without changes may be older than
the server's newest operations, and reading a minute again is harmless."""
_BAD_TOKEN = frozenset({9, 40647, 40649, 50796, 50811})
_HISTORY_LOST = frozenset({286, 280, 260, 40585, 10334}) | _BAD_TOKEN
_UNFIT = {13: "may not read change streams: grant it `changeStream` and `find`", 40573: "is no replica set"}
_WRITES = frozenset({"insert", "update", "replace"})
_COLLECTION_GONE = frozenset({"drop", "rename", "dropDatabase", "invalidate"})


class LeadershipLost(Exception):  # noqa: N818 - a finding, caught by the one caller
    """Another instance moved the checkpoint: stop reading at once."""


class StreamEnded(Exception):  # noqa: N818
    """The server closed the stream behind an `invalidate`; a new one goes on after it."""


@dataclass(frozen=True, slots=True)
class _Read:
    """One answer of the stream: a change, or nothing new up to `token`."""

    change: RawDocument | None
    token: Mapping[str, Any] | None
    cluster_time: Timestamp


def pipeline(orders: str) -> list[dict[str, Any]]:
    """Only facts that can never change are matched, so the stream can always be resumed.

    A rename onto the orders collection carries its source's name in `ns` and ours in `to`.
    """
    kinds = ["insert", "update", "replace", "drop", "rename"]
    ours = {"$or": [{"ns.coll": {"$in": [orders]}}, {"to.coll": {"$in": [orders]}}], "operationType": {"$in": kinds}}
    return [
        {"$match": {"$or": [ours, {"operationType": {"$in": ["dropDatabase", "invalidate"]}}]}},
        {
            "$project": {
                "_id": 1,
                "ns": 1,
                "to": 1,
                "operationType": 1,
                "documentKey": 1,
                "clusterTime": 1,
                "wallTime": 1,
                "updateDescription": 1,
                "fullDocument.history": 1,
                "fullDocument.payment": 1,
            },
        },
    ]


def fingerprint(stages: Sequence[Mapping[str, Any]]) -> str:
    """A token belongs to the pipeline it was made with; this tells whether it is still the same."""
    return hashlib.sha256(bson.json_util.dumps(stages, sort_keys=True).encode()).hexdigest()[:16]


class Reader:
    """Reads while its instance is the leader. Rows before checkpoint, always."""

    def __init__(
        self,
        db: Database,
        clock: ServerClock,
        outbox: Outbox,
        on_rows: Callable[[], None],
        checkpoint_interval: float,
        telemetry: Telemetry,
    ) -> None:
        self._db, self._clock, self._outbox, self._on_rows = db, clock, outbox, on_rows
        self._interval, self._telemetry = checkpoint_interval, telemetry
        self._waker = Waker(db, clock)
        self._pipeline = pipeline(db.orders.name)
        self._keeper = PlaceKeeper(db, clock, fingerprint(self._pipeline))
        self.last_reply: float | None = None
        """Monotonic time of the stream's last answer; None before the first."""

    async def run(self, epoch: int, stop: asyncio.Event) -> None:
        """Read until stopped.

        Raises `LeadershipLost`, `StreamEnded`, `HistoryLost`, `DatabaseUnfit`, or a driver's error (start again).
        """
        baseline = await self._keeper.baseline()
        place = await self._keeper.adopt(epoch, baseline)
        reads: asyncio.Queue[_Read | None] = asyncio.Queue(READ_AHEAD)
        try:
            async with await self._open(place) as stream, asyncio.TaskGroup() as group:
                self._telemetry.emit("stream.opened", epoch=epoch, resumed=place.token is not None)
                group.create_task(self._follow(stream, reads, place.cluster_time, stop))
                group.create_task(self._record(reads, place, epoch, baseline))
        except BaseExceptionGroup as group_error:
            raise _explained(_first(group_error)) from None
        except OperationFailure as error:  # at opening
            raise _explained(error) from None

    async def _open(self, place: Place) -> AsyncChangeStream[RawDocument]:
        """After the token where there is one that fits this pipeline, else from the cluster time."""
        token = place.token if isinstance(place.token, Mapping) else {}  # the driver takes an empty one for "from now"
        usable = bool(token) and place.pipeline_hash == fingerprint(self._pipeline)
        where: dict[str, Any] = {"start_after": token} if usable else {"start_at_operation_time": place.cluster_time}
        return await self._db.handle.watch(self._pipeline, max_await_time_ms=MAX_AWAIT_MS, **where)

    async def _follow(
        self,
        stream: AsyncChangeStream[RawDocument],
        reads: asyncio.Queue[_Read | None],
        reached: Timestamp,
        stop: asyncio.Event,
    ) -> None:
        """Hand every answer on. The server bounds the waits: cancelling `try_next` would close the stream for good."""
        before = await cluster_time(self._db)
        while not stop.is_set():
            change = await stream.try_next()
            self.last_reply = time.monotonic()
            if change is not None:
                crash_point("watcher.change_received")
                reached = max(reached, change["clusterTime"])
                await reads.put(_Read(change, change["_id"], reached))
            elif not stream.alive:
                raise StreamEnded
            else:
                reached = max(reached, Timestamp(before.time - HELD_BACK, 0))
                await reads.put(_Read(None, stream.resume_token, reached))
                before = await cluster_time(self._db)
        await reads.put(None)

    async def _record(
        self,
        reads: asyncio.Queue[_Read | None],
        place: Place,
        epoch: int,
        baseline: Baseline,
    ) -> None:
        """Rows first, then the checkpoint, at most every interval; the last batch is always checkpointed."""
        seq, saved = place.seq, 0.0
        unsaved: _Read | None = None
        more = True
        while more:
            batch, more = await _gather(reads)
            if batch:
                await self._store([read.change for read in batch if read.change is not None], baseline)
                crash_point("watcher.rows_inserted")
                unsaved = batch[-1]
            if unsaved is None or (more and time.monotonic() - saved < self._interval):
                continue
            seq, saved = seq + 1, time.monotonic()
            if not await self._keeper.save(epoch, Place(unsaved.token, unsaved.cluster_time, seq, None)):
                raise LeadershipLost
            unsaved = None
            crash_point("watcher.checkpoint_saved")

    async def _store(self, changes: Sequence[RawDocument], baseline: Baseline) -> None:
        if not changes:
            return
        owed: list[Notice] = []
        for change in changes:
            owed += await self._understood(change)
        new = await self._outbox.add(owed, baseline.at)
        if new:
            self._on_rows()
        woken = await self._waker.wake(change for change in changes if change["operationType"] in _WRITES)
        lag = self._clock.now() - moment(changes[-1])
        self._telemetry.emit(
            "changes.recorded", changes=len(changes), rows=new, woken=woken, lag=max(0.0, lag.total_seconds())
        )

    async def _understood(self, change: RawDocument) -> list[Notice]:
        """The change's notices. One that cannot be understood is kept aside and the stream goes on."""
        try:
            if change["operationType"] in _COLLECTION_GONE:
                await self._alert("orders_collection_changed", change["operationType"], change)
                return []
            if shortened(change):
                await self._alert("history_shortened", str(change["documentKey"]["_id"]), change)
            return notices(change)
        except (PyMongoError, Unavailable):
            raise  # the database's trouble, not the change's: nothing may be skipped
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the others
            await self._set_aside(change, error)
            return []

    async def _set_aside(self, change: RawDocument, error: Exception) -> None:
        now, token = self._clock.now(), str(change["_id"].get("_data"))
        document = {
            "operation": str(change.get("operationType")),
            "documentKey": change.get("documentKey"),
            "token": change["_id"],
            "error": type(error).__name__,
            "createdAt": now,
            "updatedAt": now,
        }
        await self._db.dead_letters.update_one({"_id": token}, {"$setOnInsert": document}, upsert=True)
        await self._alert("change_unreadable", token[-24:], change)

    async def _alert(self, kind: str, ref: str, change: RawDocument) -> None:
        detail = f"{change.get('operationType')} at {moment(change).isoformat()}"
        await raise_alert(self._db, self._telemetry, kind, ref, self._clock.now(), detail)


async def _gather(reads: asyncio.Queue[_Read | None]) -> tuple[list[_Read], bool]:
    """Wait for one answer and take what else is there; the flag is False when the reader has stopped."""
    batch: list[_Read] = []
    read = await reads.get()
    while read is not None:
        batch.append(read)
        if reads.empty() or len(batch) >= BATCH:
            return batch, True
        read = reads.get_nowait()
    return batch, False


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """What the first of two tasks ended with; the other was cancelled because of it."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _explained(error: BaseException) -> BaseException:
    """A code the operator must act on becomes one sentence; any other error stays, and the stream is opened again."""
    if not isinstance(error, OperationFailure):
        return error
    if error.code in _HISTORY_LOST:
        return HistoryLost(
            f"the change stream cannot go on from the stored checkpoint (code {error.code}): its history is gone from "
            "the server or its token is damaged, so changes may have been missed; enlarge the oplog, then delete "
            "`checkpoint` and `baseline` from watcher_state to start from now, and look through the orders changed "
            "since the checkpoint's time",
        )
    if error.code in _UNFIT:
        return DatabaseUnfit(f"the watcher's database user or server {_UNFIT[error.code]} (code {error.code})")
    return error
