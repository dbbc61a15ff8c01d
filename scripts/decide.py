"""Make an operator's decision an event, like any provider's message, and wait until it took effect."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from pymongo.errors import PyMongoError

from models.crash import arm
from models.database import RawDocument
from models.errors import Unavailable
from models.facts import DecisionFact
from models.settings import Settings
from models.states import EventStatus, Verdict
from models.telemetry import Telemetry
from scripts.stored_values import clean, mapping
from webhook.engine import Engine, engine
from webhook.event_rows import Job, lane_of
from webhook.own_messages import parse_own, review_delivery
from webhook.providers import providers

SETTLED_WITHIN = 30.0
_LOOK_EVERY = 0.1
_ENDED = (EventStatus.COMPLETED, EventStatus.IGNORED, EventStatus.DEAD)


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a decision."""

    event_id: str
    first: bool
    """Whether it is the first one about its entry; only that one counts."""
    counts: DecisionFact
    """The one that counts."""
    row: RawDocument
    """Its event, as it was last seen."""

    @property
    def trouble(self) -> str:
        """Why it has no effect yet, and what to do; empty when it is settled."""
        status = self.row["status"]
        if status == EventStatus.COMPLETED:
            return ""
        if status in _ENDED:
            outcome = mapping(self.row.get("outcome"))
            why = f"{clean(outcome.get('code'))}: {clean(outcome.get('detail'))}"
            return f"the decision is stored, but its event is {status} ({why}): mend the cause, then `{self._requeue}`"
        return (
            f"the decision is stored and takes effect by itself, but has not within {SETTLED_WITHIN:.0f} s: "
            f"`paylatch events show {self.event_id}` says how it stands"
        )

    @property
    def lost(self) -> str:
        """What to do when it took effect, and the order does not show it."""
        return (
            f"{self.counts.by} {self.counts.state} it before, but the order does not show it: "
            f"somebody's code wrote over the order; `{self._requeue} --force` applies it again"
        )

    @property
    def _requeue(self) -> str:
        return f"paylatch events requeue {self.event_id}"


async def decide(settings: Settings, order_id: object, decision: DecisionFact) -> Decided:
    """Admit it and work on it here; killed at any moment, whichever webhook process runs goes on with it.

    Raises `Unavailable` when it is not certain that the decision was stored.
    """
    delivery = review_delivery(order_id, decision)
    arm(settings.crash_point)
    async with engine(settings, providers(settings), Telemetry()) as running:
        try:
            admitted = await running.admission.admit(delivery)
        except PyMongoError:
            raise Unavailable("the database did not confirm the decision; decide again: it counts once") from None
        row = await _settled(running, admitted.event_id)
    counts = parse_own(bytes(row["rawBody"])).decisions[0]
    return Decided(admitted.event_id, admitted.verdict == Verdict.ACCEPTED, counts, row)


async def _settled(running: Engine, event_id: str) -> RawDocument:
    """The event's row once it has ended, or as it is when the time is over; one that a dead process left is taken."""
    deadline = time.monotonic() + SETTLED_WITHIN
    while True:
        row = await running.db.events.find_one({"eventId": event_id})
        if row is None:
            raise Unavailable("the stored decision is gone: its insert was rolled back; decide again")
        if row["status"] in _ENDED or time.monotonic() > deadline:
            return row
        running.lanes.offer(lane_of(row), Job(row["_id"]))
        await asyncio.sleep(_LOOK_EVERY)
