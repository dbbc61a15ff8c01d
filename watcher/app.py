"""The watcher process: the only place that constructs its parts. `watch(settings)` runs it until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from prometheus_client import CollectorRegistry

from models.clock import ServerClock
from models.database import database, require_replica_set
from models.duties import Repeated, repeating, stop_signals
from models.errors import SettingsError
from models.indexes import require_indexes
from models.private_port import PrivatePort, Reasons, listening
from models.settings import Settings
from models.telemetry import Subscriber, Telemetry
from watcher.alerting import AlertTeller
from watcher.cap import impose
from watcher.channels.registry import CHANNELS, channels, unconfigured
from watcher.dispatch import Dispatcher, SendingReaper
from watcher.lead import Leadership
from watcher.leader import LeaderLease
from watcher.observe import RowCensus, WatcherLog, WatcherMetrics
from watcher.outbox import Outbox
from watcher.render import Renderer
from watcher.rows import NotificationRows
from watcher.stream import Reader

CLOCK_INTERVAL = 5.0
CENSUS_INTERVAL = 15.0
ALERT_INTERVAL = 10.0
OPTIONAL_CHANNELS = frozenset({"whatsapp", "apprise"})
"""In the default table, and simply off until they are configured; any other routed channel must be configured."""


@dataclass
class Watcher:
    """The running parts of one watcher process."""

    clock: ServerClock
    leadership: Leadership
    telemetry: Telemetry
    registry: CollectorRegistry
    stop: asyncio.Event

    def not_ready(self) -> Reasons:
        """Why an operator should look at this instance."""
        checks = {
            "stopping": self.stop.is_set(),
            "the database does not answer": not self.clock.fresh,
            "the change stream does not answer": not self.leadership.healthy,
            "the change stream stands still": self.leadership.stalled,
        }
        return [reason for reason, holds in checks.items() if holds]

    def private_app(self) -> web.Application:
        """Health and metrics."""
        return PrivatePort(self.registry, self.not_ready).application()


@contextlib.asynccontextmanager
async def watcher(settings: Settings, stop: asyncio.Event, *subscribers: Subscriber) -> AsyncIterator[Watcher]:
    """Construct everything and start sending; `Watcher.leadership.run(stop)` reads. On leaving, sends are drained.

    Raises `SettingsError`, `DatabaseUnfit` or `Unavailable` when the process must not start.
    """
    registry = CollectorRegistry()
    metrics = WatcherMetrics(registry)
    telemetry = Telemetry(metrics, *subscribers)
    require_channels(settings, telemetry)
    renderer = Renderer(settings, telemetry)
    async with database(settings) as db, contextlib.AsyncExitStack() as opened:
        await require_replica_set(db)
        await require_indexes(db, settings)
        clock = ServerClock(db.client)
        await clock.run_once()
        rows = NotificationRows(db, clock)
        senders = [
            Dispatcher(
                db, rows, clock, await opened.enter_async_context(channel), renderer, settings.notifications, telemetry
            )
            for channel in channels(settings, db).values()
        ]
        for sender in senders:
            metrics.breaker.labels(sender.channel).set(0)
        outbox = Outbox(db, clock, settings.notifications, {sender.channel for sender in senders})
        wake, cap = partial(_wake, senders), partial(impose, db)
        reader = Reader(db, clock, outbox, wake, settings.watcher, telemetry, cap)
        leadership = Leadership(
            LeaderLease(db, settings.watcher.leader_lease), reader, settings.watcher.drain, telemetry
        )
        poll = settings.watcher.poll_interval
        duties = (
            Repeated(clock, CLOCK_INTERVAL),
            Repeated(RowCensus(db, metrics), CENSUS_INTERVAL),
            Repeated(SendingReaper(rows), poll),
            Repeated(AlertTeller(db, clock, outbox, settings.notifications, wake), ALERT_INTERVAL),
        )
        async with repeating(telemetry, *duties):
            try:
                async with repeating(telemetry, *(Repeated(sender, poll, sender.wake) for sender in senders)):
                    yield Watcher(clock, leadership, telemetry, registry, stop)
            finally:
                await asyncio.gather(*(sender.drain(settings.watcher.drain) for sender in senders))


def require_channels(settings: Settings, telemetry: Telemetry) -> None:
    """Refuse to start when a route needs a channel that is not there: its notices would be lost."""
    off = unconfigured(settings)
    _require_known_limits(settings)
    routed = routed_channels(settings, optional=False)
    for name in sorted(routed):
        if name not in CHANNELS:
            known = ", ".join(CHANNELS)
            raise SettingsError(f"PAYLATCH_NOTIFICATIONS__ROUTES names the channel {name!r}; the channels are: {known}")
        if name in off:
            raise SettingsError(f"notices are routed to {name}, but {off[name]}")
    if settings.notifications.admin_email is None and "email" in routed:
        telemetry.emit(
            "admin.no_email", reason="PAYLATCH_NOTIFICATIONS__ADMIN_EMAIL is not set; no alert goes out by mail"
        )
    for name in sorted((OPTIONAL_CHANNELS - routed) & off.keys()):
        telemetry.emit("channel.off", channel=name, reason=off[name])


def routed_channels(settings: Settings, *, optional: bool = True) -> set[str]:
    """Every channel that a route names; without the `optional` ones those that the watcher must have."""
    return {
        name
        for notice, recipients in settings.notifications.effective_routes.items()
        for names in recipients.values()
        for name in names
        if optional or notice in settings.notifications.routes or name not in OPTIONAL_CHANNELS
    }


def _require_known_limits(settings: Settings) -> None:
    """A mistyped channel would keep its default in silence."""
    for setting in ("unknown_policy", "rates"):
        for name in getattr(settings.notifications, setting):
            if name not in CHANNELS:
                known = ", ".join(CHANNELS)
                raise SettingsError(
                    f"PAYLATCH_NOTIFICATIONS__{setting.upper()} names the channel {name!r}; the channels are: {known}"
                )


def _wake(senders: Sequence[Dispatcher]) -> None:
    for sender in senders:
        sender.wake.set()


Beside = Callable[[Telemetry], AbstractAsyncContextManager[None]]
"""What else the process's host does while the watcher runs; it is composed by whoever may import it."""


async def watch(settings: Settings, beside: Beside | None = None) -> None:
    """Run until SIGTERM or SIGINT: stop reading, let sends end, release the leader lease, end.

    Raises `HistoryLost` or `DatabaseUnfit` when the stream cannot be read without an operator.
    """
    own = settings.watcher
    with stop_signals() as stop:
        async with (
            watcher(settings, stop, WatcherLog()) as parts,
            listening(parts.private_app(), own.private_host, own.private_port) as private_port,
            beside(parts.telemetry) if beside else contextlib.nullcontext(),
        ):
            parts.telemetry.emit("watcher.listening", private_port=private_port)
            await parts.leadership.run(stop)
            parts.telemetry.emit("watcher.stopping")
