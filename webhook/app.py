"""The webhook process: the only place that constructs its parts. `serve(settings)` runs it until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CollectorRegistry

from models.clock import ServerClock
from models.database import ADMISSION_TIMEOUT, Database, database, require_replica_set
from models.duties import Repeated, repeating, stop_signals
from models.indexes import require_indexes
from models.private_port import PrivatePort, Reasons, listening
from models.settings import Settings, require_webhook_secrets
from models.telemetry import Subscriber, Telemetry
from webhook.admission import Admission
from webhook.event_rows import EventRows, Job
from webhook.lanes import Lanes
from webhook.observe import Census, WebhookLog, WebhookMetrics
from webhook.processing import Processor
from webhook.providers import PROVIDERS, Provider
from webhook.receive import Receiver
from webhook.recovery import Recovery
from webhook.stats import Stats

CLOCK_INTERVAL = 5.0
CENSUS_INTERVAL = 15.0
REQUESTS_END_WITHIN = 4.0
LINGER = 1.0


@dataclass
class Webhook:
    """The running parts of one webhook process."""

    settings: Settings
    db: Database
    clock: ServerClock
    admission: Admission
    lanes: Lanes[Job]
    recovery: Recovery
    providers: dict[str, Provider]
    telemetry: Telemetry
    registry: CollectorRegistry
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def not_ready(self) -> Reasons:
        """Why no request should be sent here."""
        reasons = ["stopping"] if self.stopping.is_set() else []
        return reasons if self.clock.fresh else [*reasons, "the database does not answer"]

    def public_app(self) -> web.Application:
        """The endpoint that the providers call."""
        app = web.Application()
        for provider in self.providers.values():
            receiver = Receiver(provider, self.admission, self.db, self.clock, self.settings.http, self.telemetry)
            for path in dict.fromkeys((provider.path, *self.settings.http.extra_paths)):
                app.router.add_post(path, receiver.handle)
        return app

    def private_app(self) -> web.Application:
        """Health and metrics."""
        extra = {"/health/stats": Stats(self.db, self.clock).handle}
        return PrivatePort(self.registry, self.not_ready, extra).application()


@contextlib.asynccontextmanager
async def webhook(settings: Settings, *subscribers: Subscriber) -> AsyncIterator[Webhook]:
    """Construct everything and run the background duties; on leaving, write what is pending and drain the workers.

    Raises `SettingsError`, `DatabaseUnfit` or `Unavailable` when the process must not start.
    """
    require_webhook_secrets(settings)
    providers: dict[str, Provider] = {name: make(settings) for name, make in PROVIDERS.items()}
    registry = CollectorRegistry()
    metrics = WebhookMetrics(registry, frozenset().union(*(p.event_types for p in providers.values())))
    telemetry = Telemetry(metrics, *subscribers)
    async with database(settings) as db, database(settings, timeout=ADMISSION_TIMEOUT) as admission_db:
        await require_replica_set(db)
        await require_indexes(db, settings)
        clock = ServerClock(db.client)
        await clock.run_once()
        rows = EventRows(db, clock, settings.processing, telemetry)
        processor = Processor(db, rows, clock, providers, settings.processing, settings.orders, telemetry)
        lanes: Lanes[Job] = Lanes(settings.processing.workers, settings.processing.queue, processor.run)
        admission = Admission(admission_db, db, clock, lanes, settings.processing)
        recovery = Recovery(rows, lanes)
        duties = (
            Repeated(clock, CLOCK_INTERVAL),
            Repeated(recovery, settings.processing.recovery_interval),
            Repeated(Census(db, clock, metrics), CENSUS_INTERVAL),
        )
        async with repeating(telemetry, *duties):
            try:
                yield Webhook(settings, db, clock, admission, lanes, recovery, providers, telemetry, registry)
            finally:
                await admission.settled()
                await lanes.drain(settings.processing.drain)


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT: stop being ready, stop accepting, finish requests, flush, drain, give back, end."""
    http = settings.http
    with stop_signals() as stop:
        async with (
            webhook(settings, WebhookLog()) as parts,
            listening(parts.private_app(), http.private_host, http.private_port) as private_port,
            listening(
                parts.public_app(),
                http.host,
                http.port,
                auto_decompress=False,
                lingering_time=LINGER,
                shutdown_timeout=REQUESTS_END_WITHIN,
            ) as public_port,
        ):
            parts.telemetry.emit("webhook.listening", host=http.host, port=public_port, private_port=private_port)
            await stop.wait()
            parts.stopping.set()
            parts.telemetry.emit("webhook.stopping")
