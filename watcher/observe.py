"""Logs and metrics of the watcher: both only listen to the events that the code emits."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from models.database import Database
from models.states import RowStatus
from models.telemetry import LogSubscriber

DEBUG = frozenset({"duty.done", "changes.recorded"})
WARNINGS = frozenset(
    {
        "duty.failed",
        "stream.failed",
        "stream.gap",
        "stream.reopened",
        "leader.lost",
        "notification.not_recorded",
        "render.template_failed",
        "channel.breaker_opened",
        "lease.kill_failed",
    },
)
OPEN_ROWS = (RowStatus.PENDING, RowStatus.SENDING, RowStatus.RETRY, RowStatus.UNKNOWN, RowStatus.HELD, RowStatus.DEAD)


class WatcherLog(LogSubscriber):
    """One line per handled notification and per change of leadership."""

    def __init__(self) -> None:
        super().__init__(debug=DEBUG, warnings=WARNINGS)


class _Lag(Collector):
    """Absent until the first change was recorded: a watcher that knows nothing does not say 0."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def collect(self) -> list[GaugeMetricFamily]:
        """The family, with a sample per stage that is known."""
        family = GaugeMetricFamily(
            "paylatch_notification_lag_seconds",
            "Seconds from commit to row (recorded) and from fact to sent message (sent), latest.",
            labels=["stage"],
        )
        for stage, seconds in self.seconds.items():
            family.add_metric([stage], seconds)
        return [family]


class WatcherMetrics:
    """The process's metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = _Lag()
        registry.register(self._lag)
        self._changes = Counter("paylatch_watcher_changes", "Changes of orders read.", registry=registry)
        self._gaps = Counter(
            "paylatch_stream_gaps", "Times that changes may have been missed and a sweep made up.", registry=registry
        )
        self._rows = Counter("paylatch_notifications_owed", "Rows added to the outbox.", registry=registry)
        self._handled = Counter(
            "paylatch_notifications_handled",
            "Handled rows.",
            ["channel", "outcome"],
            registry=registry,
        )
        self._alerts = Counter("paylatch_alerts", "Raised alerts.", ["kind"], registry=registry)
        self.leader = Gauge("paylatch_watcher_leader", "1 while this instance reads.", registry=registry)
        self.breaker = Gauge(
            "paylatch_channel_breaker", "1 while a channel's provider is left alone.", ["channel"], registry=registry
        )
        self.rows = Gauge("paylatch_notifications", "Stored rows by status.", ["status"], registry=registry)

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """Count."""
        match event:
            case "changes.recorded":
                self._changes.inc(fields["changes"])
                self._rows.inc(fields["rows"])
                self._lag.seconds["recorded"] = fields["lag"]
            case "stream.gap":
                self._gaps.inc()
            case "notification.handled":
                self._handled.labels(fields["channel"], fields["outcome"]).inc()
                if fields["outcome"] == RowStatus.SENT:
                    self._lag.seconds["sent"] = fields["age"]
            case "leader.won" | "leader.lost":
                self.leader.set(event == "leader.won")
            case "channel.breaker_opened" | "channel.breaker_closed":
                self.breaker.labels(fields["channel"]).set(event == "channel.breaker_opened")
            case "alert.raised":
                self._alerts.labels(fields["kind"]).inc()


class RowCensus:
    """Counts rows that have work left or are dead, by an index."""

    def __init__(self, db: Database, metrics: WatcherMetrics) -> None:
        self._db, self._metrics = db, metrics

    async def run_once(self) -> dict[str, int]:
        """Set the gauges."""
        for status in OPEN_ROWS:
            self._metrics.rows.labels(status).set(await self._db.notification_log.count_documents({"status": status}))
        return {}
