"""The leased reader: follow the orders' change stream, turn changes into outbox rows, then move the checkpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bson import Timestamp
from pymongo.asynchronous.change_stream import AsyncChangeStream
from pymongo.errors import OperationFailure, PyMongoError

from models.alerts import raise_alert
from models.clock import ServerClock
from models.crash import crash_point
from models.database import Database, RawDocument
from models.duties import Repeated, repeating
from models.settings import WatcherSettings
from models.telemetry import Telemetry
from watcher.deadletters import DeadLetters
from watcher.heartbeat import Heartbeat
from watcher.ladder import TOO_LARGE, Ladder, Rung, StreamStalled, explained, fingerprint, pipeline, slim
from watcher.outbox import Outbox
from watcher.place import Baseline, Place, PlaceKeeper, cluster_time
from watcher.record import Recorder
from watcher.repair import Repair
from watcher.sweep import OnGap, Sweeper, unlimited
from watcher.together import together

BATCH = 200
READ_AHEAD = 500
FIRST_BATCH = 101
"""Changes that come with the opening of a stream itself: they do not show that it can be read on."""


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


@dataclass(frozen=True, slots=True)
class _Term:
    """One leadership: its epoch, what is no news, and the leader's wish to stop."""

    epoch: int
    baseline: Baseline
    stop: asyncio.Event


class Reader:
    """Reads while its instance is the leader. Rows before checkpoint, always."""

    def __init__(
        self,
        db: Database,
        clock: ServerClock,
        outbox: Outbox,
        on_rows: Callable[[], None],
        settings: WatcherSettings,
        telemetry: Telemetry,
        on_gap: OnGap = unlimited,
    ) -> None:
        self._db, self._clock, self._settings, self._telemetry = db, clock, settings, telemetry
        self._names = db.orders.name, db.heartbeat.name
        self._pipeline = pipeline(*self._names)
        self._keeper = PlaceKeeper(db, clock, fingerprint(self._pipeline))
        self._dead_letters = DeadLetters(db, clock, telemetry)
        repair = Repair(db, clock, telemetry)
        self._sweeper = Sweeper(db, clock, outbox, repair, settings.sweep_interval, telemetry, on_gap)
        self._recorder = Recorder(db, clock, outbox, self._sweeper, repair, on_rows, telemetry)
        self._heartbeat = Heartbeat(db, clock, settings.stalled_after, telemetry)
        self.last_reply: float | None = None
        """Monotonic time of the stream's last answer; None before the first."""
        self._answers = 0
        """Changes of this stream so far; an empty answer, to a question of its own, outweighs the first batch."""

    @property
    def stalled(self) -> bool:
        """Whether the stream brings nothing although the server moves."""
        return self._heartbeat.stalled

    async def run(self, epoch: int, stop: asyncio.Event) -> None:
        """Read until stopped.

        Raises `LeadershipLost`, `StreamEnded`, `HistoryLost`, `DatabaseUnfit`, or a driver's error (start again).
        """
        baseline = await self._keeper.baseline()
        self._sweeper.baseline = baseline.at
        await self._sweeper.settled.take_stock()
        place = await self._keeper.adopt(epoch, baseline)
        term = _Term(epoch, baseline, stop)
        ladder = Ladder(self._db, self._pipeline, place, await self._keeper.doubt(place))
        try:
            while not stop.is_set():
                await self._read(ladder, term)
        except OperationFailure as error:
            raise explained(error) from None

    async def _read(self, ladder: Ladder, term: _Term) -> None:
        """Read from the ladder's place until stopped; when that place is of no use, step on and return."""
        try:
            newest = await cluster_time(self._db)
            async with await ladder.open() as stream:
                resumed, place = ladder.resumes, await self._entered(ladder, term, newest)
                self._telemetry.emit("stream.opened", epoch=term.epoch, resumed=resumed)
                self._heartbeat.opened()
                self._answers = 0
                reads: asyncio.Queue[_Read | None] = asyncio.Queue(READ_AHEAD)
                drained = asyncio.Event()
                duties = (
                    Repeated(self._sweeper, self._sweeper.every, self._sweeper.wake),
                    Repeated(self._heartbeat, self._settings.heartbeat_interval),
                )
                async with repeating(self._telemetry, *duties):
                    await together(
                        self._follow(stream, reads, place.cluster_time, drained, term.stop),
                        self._record(reads, place, drained, term),
                    )
        except (OperationFailure, StreamStalled) as error:
            await self._step_on(error, ladder, term)

    async def _entered(self, ladder: Ladder, term: _Term, newest: Timestamp) -> Place:
        """The stream is open: note what it may have missed before the checkpoint can move past it."""
        place, why = ladder.place, ladder.unsure
        if why is None:
            return place
        now = self._clock.now()
        since = min(now, datetime.fromtimestamp(place.cluster_time.time or newest.time, UTC))
        if ladder.gap:
            await raise_alert(self._db, self._telemetry, "stream_gap", why, now, f"nothing is certain since {since}")
        await self._sweeper.owe(since, why, gap=ladder.gap is not None)
        if ladder.rung is Rung.NOW:
            place = Place(None, newest, place.seq + 1, None)
            await self._save(place, term)
        ladder.entered(place)
        return place

    async def _step_on(self, error: OperationFailure | StreamStalled, ladder: Ladder, term: _Term) -> None:
        """Past a change that is too large, else one rung down; raises what neither can help."""
        place = await self._keeper.current()
        if place is None:
            raise LeadershipLost
        too_large = isinstance(error, OperationFailure) and error.code == TOO_LARGE
        if not (too_large and await self._stepped_over(ladder, place, term)):
            read_on = self._answers > FIRST_BATCH and place.seq != ladder.place.seq
            proven = self._heartbeat.proven if isinstance(error, StreamStalled) else read_on
            ladder.fall(error, place, progress=proven)
        code = error.code if isinstance(error, OperationFailure) else None
        self._telemetry.emit("stream.reopened", error=type(error).__name__, code=code)

    async def _stepped_over(self, ladder: Ladder, place: Place, term: _Term) -> bool:
        """Read the next change without its content, keep it aside, sweep its order; False when there is none."""
        if place.seq != ladder.place.seq:
            ladder.stand(place)
        try:
            async with await ladder.beside(slim(*self._names)) as stream:
                while (change := await stream.try_next()) is not None and self._ours(change) is None:
                    pass  # a heartbeat is never too large
        except OperationFailure:
            return False
        if change is None or "documentKey" not in change or change["ns"]["coll"] != self._db.orders.name:
            return False
        order_id = change["documentKey"]["_id"]
        since = datetime.fromtimestamp(change["clusterTime"].time, UTC)
        await self._sweeper.sweep_one(order_id, since)
        await self._dead_letters.keep(
            str(change["_id"].get("_data")), change, "ChangeTooLarge", "change_too_large", str(order_id)
        )
        beyond = Place(change["_id"], change["clusterTime"], place.seq + 1, fingerprint(self._pipeline))
        await self._save(beyond, term)
        ladder.stand(beyond)
        return True

    async def _follow(
        self,
        stream: AsyncChangeStream[RawDocument],
        reads: asyncio.Queue[_Read | None],
        reached: Timestamp,
        drained: asyncio.Event,
        stop: asyncio.Event,
    ) -> None:
        """Hand every answer on. The server bounds the waits: cancelling `try_next` would close the stream for good."""
        while not stop.is_set():
            try:
                change = await stream.try_next()
            except OperationFailure:  # what was read before it is recorded first
                await reads.put(None)
                await drained.wait()
                raise
            self.last_reply = time.monotonic()
            self._answers += 1 if change is not None else FIRST_BATCH + 1
            if change is not None:
                crash_point("watcher.change_received")
                reached = max(reached, change["clusterTime"])
                await reads.put(_Read(self._ours(change), change["_id"], reached))
            elif not stream.alive:
                raise StreamEnded
            else:
                await reads.put(_Read(None, stream.resume_token, reached))
                await self._check_stall()
        await reads.put(None)

    def _ours(self, change: RawDocument) -> RawDocument | None:
        """The change, unless it is only our own heartbeat, which has arrived."""
        if (change.get("ns") or {}).get("coll") != self._db.heartbeat.name or "to" in change:
            return change
        self._heartbeat.arrived()
        return None

    async def _check_stall(self) -> None:
        if self._heartbeat.missing:
            await self._heartbeat.alert("stream_stalled", "no heartbeat has arrived in it; it is opened anew")
            raise StreamStalled

    async def _record(
        self, reads: asyncio.Queue[_Read | None], place: Place, drained: asyncio.Event, term: _Term
    ) -> None:
        """Rows first, then the checkpoint, at most every interval; the last batch is always checkpointed."""
        seq, saved = place.seq, 0.0
        unsaved: _Read | None = None
        more = True
        while more:
            batch, more = await _gather(reads)
            if batch:
                self._heartbeat.read()
                await self._recorder.store([read.change for read in batch if read.change is not None], term.baseline)
                crash_point("watcher.rows_inserted")
                unsaved = batch[-1]
            if unsaved is None or (more and time.monotonic() - saved < self._settings.checkpoint_interval):
                continue
            seq, saved = seq + 1, time.monotonic()
            await self._save(Place(unsaved.token, unsaved.cluster_time, seq, None), term)
            unsaved = None
            crash_point("watcher.checkpoint_saved")
        drained.set()

    async def _save(self, place: Place, term: _Term) -> None:
        """Move the checkpoint. Raises `LeadershipLost`, or a driver's error after an alert."""
        try:
            saved = await self._keeper.save(term.epoch, place)
        except PyMongoError:
            await self._heartbeat.alert("checkpoint_delayed", "the place could not be stored")
            raise
        if not saved:
            raise LeadershipLost
        self._heartbeat.saved()


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
