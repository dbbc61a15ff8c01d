"""What admits and processes events: the same parts behind the public endpoint and behind operators' commands."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial

from models.clock import ServerClock
from models.database import ADMISSION_TIMEOUT, Database, database, require_replica_set
from models.indexes import require_indexes
from models.settings import Settings
from models.telemetry import Telemetry
from webhook.admission import Admission
from webhook.answers import fetched
from webhook.event_rows import EventRows, Job
from webhook.lanes import Lanes
from webhook.processing import Processor
from webhook.providers import Provider
from webhook.providers.razorpay_api import RazorpayApi
from webhook.sources import LookUp, Sources


@dataclass(frozen=True, slots=True)
class Engine:
    """Running parts."""

    settings: Settings
    db: Database
    clock: ServerClock
    rows: EventRows
    lanes: Lanes[Job]
    admission: Admission
    providers: Mapping[str, Provider]

    async def drain(self) -> None:
        """Write what is pending and let the workers end. Doing it twice changes nothing."""
        await self.admission.settled()
        await self.lanes.drain(self.settings.processing.drain)


@contextlib.asynccontextmanager
async def engine(
    settings: Settings,
    providers: Mapping[str, Provider],
    telemetry: Telemetry,
) -> AsyncIterator[Engine]:
    """Open the database and construct everything that changes orders; on leaving, it is drained.

    Raises `SettingsError`, `DatabaseUnfit` or `Unavailable` when it must not start.
    """
    async with (
        database(settings) as db,
        database(settings, timeout=ADMISSION_TIMEOUT) as admission_db,
        _look_up(settings) as look_up,
    ):
        await require_replica_set(db)
        await require_indexes(db, settings)
        clock = ServerClock(db.client)
        await clock.run_once()
        rows = EventRows(db, clock, settings.processing, telemetry)
        sources = Sources(providers, look_up)
        processor = Processor(db, rows, clock, sources, settings.processing, settings.orders, telemetry)
        lanes: Lanes[Job] = Lanes(settings.processing.workers, settings.processing.queue, processor.run)
        admission = Admission(admission_db, db, clock, lanes, settings.processing)
        running = Engine(settings, db, clock, rows, lanes, admission, providers)
        try:
            yield running
        finally:
            await running.drain()


@contextlib.asynccontextmanager
async def _look_up(settings: Settings) -> AsyncIterator[LookUp | None]:
    """The provider's API, where we have a key for it."""
    if not (settings.razorpay.key_id and settings.razorpay.key_secret):
        yield None
        return
    async with RazorpayApi(settings.razorpay) as api:
        yield partial(fetched, api)
