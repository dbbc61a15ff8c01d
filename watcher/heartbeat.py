"""Does the stream bring what the database takes? A heartbeat of our own must arrive in it while the shop is quiet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from pymongo.errors import PyMongoError

from models.alerts import announce, record_alert
from models.clock import ServerClock
from models.database import Database
from models.errors import Unavailable
from models.telemetry import Telemetry

HEARTBEAT = "heartbeat"


class Heartbeat:
    """A duty of the reading instance: write a beat, and watch whether beats arrive.

    A beat that cannot be written is the database's trouble and is told as such; only a written one can fail to arrive.
    """

    def __init__(
        self,
        db: Database,
        clock: ServerClock,
        stalled_after: float,
        telemetry: Telemetry,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db, self._clock, self._telemetry, self._monotonic = db, clock, telemetry, monotonic
        self._stalled_after = stalled_after
        self._missing_since: float | None = None
        """When the oldest beat was written that has not arrived."""
        self._unsaved_since: float | None = None
        self._told: set[str] = set()
        self._arrivals = 0
        self.proven = False
        """Whether a beat has arrived in this stream."""

    def opened(self) -> None:
        """A new stream: beats written before it need not arrive."""
        self._missing_since = self._unsaved_since = None
        self.proven = False

    def arrived(self) -> None:
        """The stream brought a beat."""
        self._missing_since, self.proven = None, True
        self._arrivals += 1
        self._told.discard("stream_stalled")

    def read(self) -> None:
        """Something was read whose place is not stored yet."""
        self._unsaved_since = self._unsaved_since or self._monotonic()

    def saved(self) -> None:
        """The place of all that was recorded is stored."""
        self._unsaved_since = None
        self._told.discard("checkpoint_delayed")

    @property
    def missing(self) -> bool:
        """Whether a beat that was written after the opening has been missing for too long."""
        return self._late(self._missing_since)

    @property
    def stalled(self) -> bool:
        """Whether beats are missing, or none has arrived since they were."""
        return self.missing or "stream_stalled" in self._told

    async def run_once(self) -> dict[str, int]:
        """Write a beat; raise the alerts that are due, each once until it is over."""
        if self.missing:
            await self.alert("stream_stalled", "no heartbeat has arrived in it")
        if self._late(self._unsaved_since):
            await self.alert("checkpoint_delayed", "the place has not been stored for as long")
        now, arrivals = self._clock.now(), self._arrivals
        await self._db.heartbeat.update_one(
            {"_id": HEARTBEAT},
            {"$inc": {"beat": 1}, "$set": {"at": now, "updatedAt": now}, "$setOnInsert": {"createdAt": now}},
            upsert=True,
        )
        if self._arrivals == arrivals:  # the stream may be faster than the reply of the write
            self._missing_since = self._missing_since or self._monotonic()
        return {}

    async def alert(self, kind: str, detail: str) -> None:
        """Once until it is over; the log line and the metric even when the row cannot be written."""
        if kind in self._told:
            return
        self._told.add(kind)
        announce(self._telemetry, kind, "reader", detail)
        with contextlib.suppress(PyMongoError, Unavailable):
            await record_alert(self._db, kind, "reader", self._clock.now(), detail)

    def _late(self, since: float | None) -> bool:
        return since is not None and self._monotonic() - since > self._stalled_after
