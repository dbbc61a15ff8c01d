"""Record a batch of changes: their notices become rows, parked events wake, and what looks wrong is looked into."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pymongo.errors import PyMongoError

from models.alerts import raise_alert
from models.clock import ServerClock
from models.database import Database, RawDocument
from models.errors import Unavailable
from models.telemetry import Telemetry
from watcher.deadletters import DeadLetters
from watcher.notices import Notice, moment, notices, shortened
from watcher.outbox import Outbox
from watcher.place import Baseline
from watcher.repair import Repair
from watcher.sweep import Sweeper
from watcher.wake import Waker

_WRITES = frozenset({"insert", "update", "replace"})
_COLLECTION_GONE = frozenset({"drop", "rename", "dropDatabase", "invalidate"})


class Recorder:
    """Everything that follows from changes, before the checkpoint moves past them."""

    def __init__(
        self,
        db: Database,
        clock: ServerClock,
        outbox: Outbox,
        sweeper: Sweeper,
        repair: Repair,
        on_rows: Callable[[], None],
        telemetry: Telemetry,
    ) -> None:
        self._db, self._clock, self._outbox, self._on_rows = db, clock, outbox, on_rows
        self._sweeper, self._repair, self._telemetry = sweeper, repair, telemetry
        self._waker = Waker(db, clock)
        self._dead_letters = DeadLetters(db, clock, telemetry)

    async def store(self, changes: Sequence[RawDocument], baseline: Baseline) -> None:
        """Record them. Raises a driver's error or `Unavailable` when it is not certain that everything is stored."""
        if not changes:
            return
        owed: list[Notice] = []
        for change in changes:
            owed += await self._understood(change)
        new = await self._outbox.add(owed, baseline.at)
        if new:
            self._on_rows()
        writes = [change for change in changes if change["operationType"] in _WRITES]
        woken = await self._follow_up(writes)
        lag = self._clock.now() - moment(changes[-1])
        self._telemetry.emit(
            "changes.recorded", changes=len(changes), rows=new, woken=woken, lag=max(0.0, lag.total_seconds())
        )

    async def _understood(self, change: RawDocument) -> list[Notice]:
        """The change's notices. One that cannot be understood is kept aside and the stream goes on."""
        try:
            if change["operationType"] in _COLLECTION_GONE:
                await self._collection_gone(change)
                return []
            if shortened(change):
                await self._alert("history_shortened", str(change["documentKey"]["_id"]), change)
            return notices(change)
        except (PyMongoError, Unavailable):
            raise  # the database's trouble, not the change's: nothing may be skipped
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the others
            await self._dead_letters.keep(str(change["_id"].get("_data")), change, type(error).__name__)
            return []

    async def _follow_up(self, writes: Sequence[RawDocument]) -> int:
        """Wake and repair; how many events woke. A change that makes it fail is looked for and kept aside."""
        try:
            woken = await self._waker.wake(writes)
            await self._repair.after(writes)
        except (PyMongoError, Unavailable):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the others
            if len(writes) > 1:
                return sum([await self._follow_up([change]) for change in writes])
            for change in writes:
                await self._dead_letters.keep(str(change["_id"].get("_data")), change, type(error).__name__)
            return 0
        return woken

    async def _collection_gone(self, change: RawDocument) -> None:
        """Orders that come by a rename (as `$out` does it) are in no change: only a sweep finds what they say."""
        operation = change["operationType"]
        await self._alert("orders_collection_changed", operation, change)
        await self._sweeper.owe(moment(change), f"orders: {operation}", gap=True)

    async def _alert(self, kind: str, ref: str, change: RawDocument) -> None:
        detail = f"{change.get('operationType')} at {moment(change).isoformat()}"
        await raise_alert(self._db, self._telemetry, kind, ref, self._clock.now(), detail)
