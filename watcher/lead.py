"""Be the one reader, or stand by to become it; outages are waited out, only what an operator must mend ends it."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pymongo
from pymongo.errors import PyMongoError

from models.backoff import JITTER, jittered
from models.duties import cancelled
from models.errors import DatabaseUnfit, HistoryLost
from models.telemetry import Telemetry
from watcher.leader import LeaderLease
from watcher.stream import LeadershipLost, Reader, StreamEnded
from watcher.together import settle

LONGEST_PAUSE = 30.0
RELEASE_WITHIN = 2.0
SILENT_AFTER = 15.0
"""Seconds without any answer of the stream (it answers at least twice a second) after which it is not ready."""


class Leadership:
    """Runs the reader whenever this instance holds the leader lease."""

    def __init__(self, lease: LeaderLease, reader: Reader, drain: float, telemetry: Telemetry) -> None:
        self._lease, self._reader, self._drain, self._telemetry = lease, reader, drain, telemetry
        self._asked: float | None = None
        self.leading = False

    @property
    def healthy(self) -> bool:
        """Whether the stream, or the leader lease of a standby, answered lately."""
        answered = self._reader.last_reply if self.leading else self._asked
        return answered is not None and time.monotonic() - answered < SILENT_AFTER

    @property
    def stalled(self) -> bool:
        """Whether this instance reads a stream that brings nothing although the server moves."""
        return self.leading and self._reader.stalled

    async def run(self, stop: asyncio.Event) -> None:
        """Lead or stand by until stopped. Raises `HistoryLost` or `DatabaseUnfit`, which an operator must end."""
        failures = 0
        while not stop.is_set():
            try:
                if await self._lease.acquire():
                    failures = 0
                    await self._lead(stop)
                self._asked = time.monotonic()
            except StreamEnded:
                continue
            except (HistoryLost, DatabaseUnfit):
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, a daemon waits it out and tries again
                failures += 1
                self._telemetry.emit("stream.failed", error=type(error).__name__, failures=failures)
            await _wait(stop, self._pause(failures))
        await self._release()

    def _pause(self, failures: int) -> float:
        pause = self._lease.renew_every if not failures else min(0.5 * 2.0**failures, LONGEST_PAUSE)
        return jittered(pause, JITTER)

    async def _lead(self, stop: asyncio.Event) -> None:
        """Read while the lease is renewed; whichever ends first ends the other."""
        self._telemetry.emit("leader.won", epoch=self._lease.epoch)
        self.leading, self._reader.last_reply = True, None
        reading = asyncio.create_task(self._reader.run(self._lease.epoch, stop))
        renewing = asyncio.create_task(self._renew())
        overdue = asyncio.create_task(self._overdue(stop))
        try:
            await asyncio.wait((reading, renewing, overdue), return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, renewing):
                if task.done():
                    settle(task)
        finally:
            self.leading = False
            await cancelled(reading, renewing, overdue)
            await self._release()
            if not stop.is_set():
                self._telemetry.emit("leader.lost", epoch=self._lease.epoch)

    async def _overdue(self, stop: asyncio.Event) -> None:
        """Ends when a stop has been asked for and the reader had its time to end by itself."""
        await stop.wait()
        await asyncio.sleep(self._drain)

    async def _release(self) -> None:
        """Let another instance, or this one again, lead at once instead of after the lease.

        Failure policy: open. When the release cannot be written, the lease ends by itself.
        """
        with contextlib.suppress(PyMongoError), pymongo.timeout(RELEASE_WITHIN):
            await self._lease.release()

    async def _renew(self) -> None:
        """Show life four times per lease; raises `LeadershipLost` when the lease is gone or may be gone."""
        while True:
            await asyncio.sleep(self._lease.renew_every)
            try:
                if not await self._lease.renew():
                    raise LeadershipLost
            except PyMongoError:
                if not self._lease.held:
                    raise LeadershipLost from None


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
