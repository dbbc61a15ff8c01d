"""What the whole system is doing, read once: events, notifications, alerts, the watcher's place, and both processes.

The database says what is stored; each process's private port says what only it knows (lag, breakers). A process on
another host is simply not seen here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import aiohttp
from bson import Timestamp
from prometheus_client.parser import text_string_to_metric_families

from models.alerts import STILL_OPEN
from models.database import Collection, Database
from models.settings import Settings
from models.states import CLAIMABLE_EVENTS, EventStatus, RowStatus
from scripts.session import Session

ASKED_WITHIN = 2.0
READS_WITHIN = 60.0
"""Seconds after which a leader that stores no place is dead or cannot go on; a killed one leaves its name behind."""
LAG = "paylatch_notification_lag_seconds"
BREAKER = "paylatch_channel_breaker"
_OPEN_ROWS = (RowStatus.PENDING, RowStatus.SENDING, RowStatus.RETRY, RowStatus.UNKNOWN, RowStatus.HELD, RowStatus.DEAD)
_OPEN_EVENTS = (*CLAIMABLE_EVENTS, EventStatus.PROCESSING, EventStatus.DEAD)
_NEVER_DUE = frozenset({EventStatus.PARKED, EventStatus.DEAD, RowStatus.HELD, RowStatus.DEAD})
"""Statuses whose rows wait for something else than a worker."""


@dataclass(frozen=True, slots=True)
class Work:
    """Rows by status, and how long the one that is due for longest has waited (seconds; None: nothing is due)."""

    by_status: dict[str, int]
    overdue: float | None


@dataclass(frozen=True, slots=True)
class Place:
    """The watcher's leader and how far it has read."""

    leading: bool
    epoch: int | None
    checkpoint_age: float | None
    """Seconds since the checkpoint was written, which a reader does all the time."""
    read_up_to: datetime | None


@dataclass(frozen=True, slots=True)
class Process:
    """One process as its private port describes it."""

    name: str
    address: str
    ready: bool | None
    """None: nothing answers there."""
    reasons: list[str] = field(default_factory=list)
    lag: dict[str, float] = field(default_factory=dict)
    """Stage (recorded, sent) -> seconds; a stage of which nothing is known is absent."""
    breakers: dict[str, str] = field(default_factory=dict)
    """Channel -> open, for those that are."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything at one moment."""

    at: datetime
    events: Work
    notifications: Work
    watcher: Place
    alerts: dict[str, int]
    """Open alerts by kind."""
    processes: list[Process]

    def document(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)

    @property
    def well(self) -> bool:
        """Whether nothing needs a person: a leader reads, no process complains, no alert is open."""
        complaints = [process for process in self.processes if process.ready is False]
        return self.watcher.leading and not self.alerts and not complaints


async def overview(now_open: Session) -> Overview:
    """Read everything once."""
    db, settings, now = now_open.db, now_open.settings, now_open.clock.now()
    events, notifications, watcher, alerts, processes = await asyncio.gather(
        _work(db.events, _OPEN_EVENTS, now),
        _work(db.notification_log, _OPEN_ROWS, now),
        place(db, now),
        open_alerts(db),
        _processes(settings),
    )
    return Overview(now, events, notifications, watcher, alerts, processes)


async def _work(rows: Collection, statuses: tuple[str, ...], now: datetime) -> Work:
    counted = {str(status): await rows.count_documents({"status": status}) for status in statuses}
    due = {"status": {"$in": [s for s in statuses if s not in _NEVER_DUE]}, "nextAttemptAt": {"$lte": now}}
    first = await rows.find_one(due, {"nextAttemptAt": 1}, sort=[("nextAttemptAt", 1)])
    overdue = (now - first["nextAttemptAt"]).total_seconds() if first else None
    return Work({status: count for status, count in counted.items() if count}, overdue)


async def place(db: Database, now: datetime) -> Place:
    """Where the watcher stands, as the database tells it."""
    leader = await db.watcher_state.find_one({"_id": "leader"}) or {}
    checkpoint = await db.watcher_state.find_one({"_id": "checkpoint"}) or {}
    written, reached = checkpoint.get("updatedAt"), checkpoint.get("clusterTime")
    age = (now - written).total_seconds() if written else None
    return Place(
        leading=leader.get("holder") is not None and age is not None and age < READS_WITHIN,
        epoch=leader.get("epoch"),
        checkpoint_age=age,
        read_up_to=reached.as_datetime() if isinstance(reached, Timestamp) else None,
    )


async def open_alerts(db: Database) -> dict[str, int]:
    """How many there are of each kind."""
    groups = await db.alerts.aggregate([{"$match": {**STILL_OPEN}}, {"$group": {"_id": "$kind", "count": {"$sum": 1}}}])
    return dict(sorted([(str(group["_id"]), int(group["count"])) async for group in groups]))


async def _processes(settings: Settings) -> list[Process]:
    http, watcher = settings.http, settings.watcher
    timeout = aiohttp.ClientTimeout(total=ASKED_WITHIN)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        serve = _process(session, "serve", http.private_host, http.private_port)
        watch = _process(session, "watch", watcher.private_host, watcher.private_port)
        return [*await asyncio.gather(serve, watch)]


async def _process(session: aiohttp.ClientSession, name: str, host: str, port: int) -> Process:
    address = f"{host}:{port}"
    try:
        async with session.get(f"http://{address}/readyz") as answer:
            said = await answer.json()
        async with session.get(f"http://{address}/metrics") as answer:
            metrics = await answer.text()
        reasons, lag, breakers = _measured(said, metrics)
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
        return Process(name, address, ready=None)
    return Process(name, address, not reasons, reasons, lag, breakers)


def _measured(said: Mapping[str, Any], metrics: str) -> tuple[list[str], dict[str, float], dict[str, str]]:
    samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
    lag = {sample.labels["stage"]: sample.value for sample in samples if sample.name == LAG}
    open_ones = {s.labels["channel"]: "open" for s in samples if s.name == BREAKER and s.value}
    return [str(reason) for reason in said["reasons"]], lag, open_ones
