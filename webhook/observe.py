"""Logs and metrics of the webhook process: both only listen to the events that the code emits."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from models.clock import ServerClock
from models.database import Database
from models.states import EventStatus
from models.telemetry import LogSubscriber

WARNINGS = frozenset({"webhook.unlisted_source", "duty.failed", "event.not_taken", "lease.kill_failed"})
ANSWERED = frozenset({"webhook.answered", "checkout.answered"})
REFUSED = frozenset(
    {
        "bad_signature",
        "no_signature",
        "not_verified",
        "unlisted_source",
        "limited",
        "encoded",
        "too_large",
        "slow_body",
        "overloaded",
        "broken_body",
        "caller_gone",
    },
)
OPEN_STATUSES = (
    EventStatus.RECEIVED,
    EventStatus.PROCESSING,
    EventStatus.PARKED,
    EventStatus.FAILED,
    EventStatus.DEAD,
)


class WebhookLog(LogSubscriber):
    """One line per request and per processed event; refusals, which anybody can cause, at most one line a second."""

    def __init__(self) -> None:
        super().__init__(debug=frozenset({"duty.done", "order.conflict", "order.moved"}), warnings=WARNINGS)
        self._last: dict[str, float] = {}
        self._unlogged: dict[str, int] = {}

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """Write the line, or only count it."""
        if event == "webhook.unlisted_source" or (event in ANSWERED and fields["outcome"] in REFUSED):
            now = time.monotonic()
            if now - self._last.get(event, 0.0) < 1:
                self._unlogged[event] = self._unlogged.get(event, 0) + 1
                return
            fields = {**fields, "unlogged": self._unlogged.pop(event, 0)}
            self._last[event] = now
        super().__call__(event, fields)


class WebhookMetrics:
    """The process's metrics; an event type nobody knows gets the label `other`."""

    def __init__(self, registry: CollectorRegistry, known_types: frozenset[str]) -> None:
        self._known_types = known_types
        self._requests = Counter(
            "paylatch_webhook_requests", "Answered requests.", ["provider", "outcome"], registry=registry
        )
        self._duplicates = Counter(
            "paylatch_webhook_duplicates", "Deliveries recognised as duplicates.", ["kind"], registry=registry
        )
        for kind in ("redelivery", "suspected_replay"):
            self._duplicates.labels(kind)
        self._answer_time = Histogram(
            "paylatch_webhook_answer_seconds",
            "From arrival to the answer.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5),
            registry=registry,
        )
        self._processed = Counter(
            "paylatch_events_processed", "Processed events.", ["type", "outcome"], registry=registry
        )
        self._conflicts = Counter(
            "paylatch_transition_conflicts", "Transitions that met another writer.", registry=registry
        )
        self._checkout = Counter(
            "paylatch_checkout_requests", "Answered requests of browsers.", ["route", "outcome"], registry=registry
        )
        self._unlisted = Counter(
            "paylatch_webhook_unlisted_sources",
            "Webhooks from none of the allowed sources that were taken all the same.",
            ["authentic"],
            registry=registry,
        )
        self._alerts = Counter("paylatch_alerts", "Raised alerts.", ["kind"], registry=registry)
        self.events = Gauge("paylatch_events", "Stored events by status.", ["status"], registry=registry)
        self.oldest_due = Gauge(
            "paylatch_oldest_due_event_seconds", "Age of the event that is due for longest.", registry=registry
        )

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """Count."""
        match event:
            case "webhook.answered":
                self._requests.labels(fields["provider"], fields["outcome"]).inc()
                self._answer_time.observe(fields["duration_ms"] / 1000)
                if fields["outcome"] in {"redelivery", "suspected_replay"}:
                    self._duplicates.labels(fields["outcome"]).inc()
            case "checkout.answered":
                self._checkout.labels(fields["route"], fields["outcome"]).inc()
            case "webhook.unlisted_source":
                self._unlisted.labels("yes" if fields["authentic"] else "no").inc()
            case "event.processed":
                known = fields["type"] if fields["type"] in self._known_types else "other"
                self._processed.labels(known, fields["outcome"]).inc()
            case "order.conflict":
                self._conflicts.inc()
            case "alert.raised":
                self._alerts.labels(fields["kind"]).inc()


class Census:
    """Counts what has work left and what is dead, by an index; finished events are not counted again and again."""

    def __init__(self, db: Database, clock: ServerClock, metrics: WebhookMetrics) -> None:
        self._db, self._clock, self._metrics = db, clock, metrics

    async def run_once(self) -> dict[str, int]:
        """Set the gauges."""
        for status in OPEN_STATUSES:
            self._metrics.events.labels(status).set(await self._db.events.count_documents({"status": status}))
        waiting = {"status": {"$in": [EventStatus.RECEIVED, EventStatus.FAILED, EventStatus.PROCESSING]}}
        now = self._clock.now()
        oldest = await self._db.events.find_one(
            {**waiting, "nextAttemptAt": {"$lte": now}}, {"nextAttemptAt": 1}, sort=[("nextAttemptAt", 1)]
        )
        self._metrics.oldest_due.set((now - oldest["nextAttemptAt"]).total_seconds() if oldest else 0)
        return {}
