"""The webhook process: the only place that constructs its parts. `serve(settings)` runs it until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CollectorRegistry

from models.duties import Repeated, repeating, stop_signals
from models.private_port import PrivatePort, Reasons, listening
from models.settings import Settings, require_webhook_secrets
from models.telemetry import Subscriber, Telemetry
from webhook.checkout import Checkout
from webhook.engine import Engine, engine
from webhook.observe import Census, WebhookLog, WebhookMetrics
from webhook.providers import event_types, providers
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
    engine: Engine
    telemetry: Telemetry
    registry: CollectorRegistry
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def not_ready(self) -> Reasons:
        """Why no request should be sent here."""
        reasons = ["stopping"] if self.stopping.is_set() else []
        return reasons if self.engine.clock.fresh else [*reasons, "the database does not answer"]

    def public_app(self) -> web.Application:
        """The endpoint that the providers call, and the routes that browsers do."""
        app, engine = web.Application(), self.engine
        for provider in engine.providers.values():
            receiver = Receiver(provider, engine.admission, engine.db, engine.clock, self.settings.http, self.telemetry)
            for path in dict.fromkeys((provider.path, *self.settings.http.extra_paths)):
                app.router.add_post(path, receiver.handle)
        self._add_checkout(app)
        return app

    def _add_checkout(self, app: web.Application) -> None:
        """The routes of the buyer's browser; without the key's secret nobody could tell what is true."""
        secret = self.settings.razorpay.key_secret
        if secret is None:
            self.telemetry.emit("checkout.off", reason="PAYLATCH_RAZORPAY__KEY_SECRET is not set")
            return
        provider = self.engine.providers["razorpay"]
        Checkout(provider, self.engine, secret.get_secret_value(), self.telemetry).add_routes(app)

    def private_app(self) -> web.Application:
        """Health and metrics."""
        extra = {"/health/stats": Stats(self.engine.db, self.engine.clock).handle}
        return PrivatePort(self.registry, self.not_ready, extra).application()


@contextlib.asynccontextmanager
async def webhook(settings: Settings, *subscribers: Subscriber) -> AsyncIterator[Webhook]:
    """Construct everything and run the background duties; on leaving, write what is pending and drain the workers.

    Raises `SettingsError`, `DatabaseUnfit` or `Unavailable` when the process must not start.
    """
    require_webhook_secrets(settings)
    registry = CollectorRegistry()
    known = providers(settings)
    metrics = WebhookMetrics(registry, event_types(known))
    telemetry = Telemetry(metrics, *subscribers)
    async with engine(settings, known, telemetry) as running:
        duties = (
            Repeated(running.clock, CLOCK_INTERVAL),
            Repeated(Recovery(running.rows, running.lanes), settings.processing.recovery_interval),
            Repeated(Census(running.db, running.clock, metrics), CENSUS_INTERVAL),
        )
        async with repeating(telemetry, *duties):
            try:
                yield Webhook(settings, running, telemetry, registry)
            finally:
                await running.drain()


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
