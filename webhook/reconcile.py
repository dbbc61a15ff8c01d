"""One round of reconciliation: find what differs and let it take effect as a message like any other.

Nothing here writes an order. Each difference is admitted as an event of origin `reconcile` and processed like a
webhook, so a webhook that comes at the same moment credits nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from models.alerts import raise_alert
from models.database import RawDocument
from models.duties import Repeated, repeating
from models.errors import Unavailable
from models.states import CLAIMABLE_EVENTS, EventStatus, Verdict
from models.telemetry import Telemetry
from webhook.admission import Delivery
from webhook.differences import Comparison, Difference, Period, Progress
from webhook.engine import Engine
from webhook.event_rows import Job, lane_of
from webhook.providers.razorpay_api import RazorpayApi
from webhook.requeue import requeue

CLOCK_INTERVAL = 5.0
SETTLES_WITHIN = 30.0
LOOKS_EVERY = 0.05
_ENDED = (EventStatus.COMPLETED, EventStatus.IGNORED, EventStatus.DEAD)
NOT_APPLIED, REPAIRED, FOR_A_PERSON = "found", "repaired", "a person must look"


@dataclass(frozen=True, slots=True)
class Scope:
    """What a round compares."""

    orders: bool = True
    period: Period | None = None
    """Of captures and refunds; None: of none."""


@dataclass(frozen=True, slots=True)
class Line:
    """A difference and what came of it."""

    difference: Difference
    result: str

    def document(self) -> dict[str, Any]:
        """As JSON names things."""
        return {**self.difference.document(), "result": self.result}


@dataclass
class Report:
    """What a round has found so far."""

    lines: list[Line] = field(default_factory=list)
    looked: Counter[str] = field(default_factory=Counter)

    @property
    def repaired(self) -> int:
        """How many differences are no more."""
        return sum(line.result == REPAIRED for line in self.lines)

    @property
    def remaining(self) -> int:
        """How many still are."""
        return len(self.lines) - self.repaired

    def document(self) -> dict[str, Any]:
        """As JSON names things."""
        return {
            "looked": dict(self.looked),
            "repaired": self.repaired,
            "remaining": self.remaining,
            "differences": [line.document() for line in self.lines],
        }


class Round:
    """Compares and, where `apply` says so, repairs and raises alerts. Its report fills while it runs."""

    def __init__(
        self,
        engine: Engine,
        api: RazorpayApi,
        telemetry: Telemetry,
        *,
        apply: bool,
        tell: Progress = lambda _what, _count: None,
    ) -> None:
        self._engine, self._telemetry, self._apply = engine, telemetry, apply
        self._comparison = Comparison(engine.db, api, engine.providers["razorpay"], engine.settings, tell)
        self.report = Report(looked=self._comparison.looked)

    async def run(self, scope: Scope) -> Report:
        """Look at everything once.

        Raises `ProviderUnavailable`, `CredentialsRefused` or a driver's error; what was repaired until then stays so.
        """
        seen: set[tuple[str, str]] = set()
        async with repeating(self._telemetry, Repeated(self._engine.clock, CLOCK_INTERVAL)):
            async for difference in self._differences(scope):
                if (name := (difference.kind, difference.ref)) not in seen:
                    seen.add(name)
                    self.report.lines.append(Line(difference, await self._treated(difference)))
        return self.report

    async def _differences(self, scope: Scope) -> AsyncIterator[Difference]:
        if scope.orders:
            async for difference in self._comparison.unpaid_orders(self._engine.clock.now()):
                yield difference
        if scope.period is not None:
            async for difference in self._comparison.moved("payment", scope.period):
                yield difference
            async for difference in self._comparison.moved("refund", scope.period):
                yield difference

    async def _treated(self, difference: Difference) -> str:
        if not self._apply:
            return NOT_APPLIED
        if difference.alert is not None:
            now, ref = self._engine.clock.now(), difference.ref
            await raise_alert(self._engine.db, self._telemetry, difference.alert, ref, now, difference.detail)
        if difference.repair is None:
            return FOR_A_PERSON
        row = await _processed(self._engine, difference.repair, has_order=difference.order is not None)
        if not await self._comparison.remains(difference):
            return REPAIRED
        outcome = (row.get("outcome") or {}).get("code")
        return f"{row['status']}: {outcome or row.get('error') or 'under way'}"


async def _processed(engine: Engine, delivery: Delivery, *, has_order: bool) -> RawDocument:
    """Admit the message and wait for its end; one of an earlier round is evaluated again when its order is there.

    While it is not, the message keeps its deadline, so that somebody is told.
    """
    admitted = await engine.admission.admit(delivery)
    row = await _row(engine, admitted.event_id)
    if has_order and admitted.verdict == Verdict.DUPLICATE and row["status"] in {*_ENDED, EventStatus.PARKED}:
        await requeue(engine.db, row, engine.clock.now(), engine.settings.processing.parked_for)
        row = await _row(engine, admitted.event_id)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLES_WITHIN):
            while not _settled(engine, row):
                if row["status"] in CLAIMABLE_EVENTS and engine.rows.is_due(row):
                    engine.lanes.offer(lane_of(row), Job(row["_id"]))
                await asyncio.sleep(LOOKS_EVERY)
                row = await _row(engine, admitted.event_id)
    return row


def _settled(engine: Engine, row: RawDocument) -> bool:
    """Ended, or waiting for an order that is not here."""
    return row["status"] in _ENDED or (row["status"] == EventStatus.PARKED and not engine.rows.is_due(row))


async def _row(engine: Engine, event_id: str) -> RawDocument:
    row = await engine.db.events.find_one({"eventId": event_id})
    if row is None:
        raise Unavailable("the stored message is gone: its insert was rolled back")
    return row
