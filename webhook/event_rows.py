"""Every write of an event's row after its insert; each is guarded by the claim's token or by the status it replaces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pymongo.asynchronous.client_session import AsyncClientSession

from models.backoff import doubling
from models.clock import ServerClock
from models.database import Database, RawDocument
from models.errors import LeaseLost
from models.leases import Claim, kill_session
from models.settings import ProcessingSettings
from models.states import CLAIMABLE_EVENTS, EventStatus
from models.telemetry import Telemetry

FIRST_RETRY = 5.0
LONGEST_RETRY = 3600.0
PARK_PAUSES = (2.0, 10.0, 60.0)
LONGEST_PARK_PAUSE = 900.0
FOR_ORDER, FOR_TERMS, FOR_PROVIDER = "waiting_for_order", "waiting_for_terms", "waiting_for_provider"
"""What a parked event waits for, as its `outcome` says."""
_DUE_FIELDS = {"status": 1, "lease": 1, "refs": 1, "attempts": 1, "eventId": 1, "nextAttemptAt": 1}


def retry_delay(attempts: int) -> float:
    """Seconds until the next try after the `attempts`-th one failed: 5 s doubling, at most an hour, ±20 %."""
    return doubling(attempts, FIRST_RETRY, LONGEST_RETRY)


def park_delay(parks: int) -> float:
    """Seconds until a parked event looks for its order again: 2 s, 10 s, 1 min, then every 15 min."""
    return PARK_PAUSES[parks] if parks < len(PARK_PAUSES) else LONGEST_PARK_PAUSE


def parks_of(row: Mapping[str, Any], wait: str) -> int:
    """How often it has been parked; the wait for its order uses up none of the patience for what comes after it."""
    before = (row.get("outcome") or {}).get("code")
    return 0 if before == FOR_ORDER != wait else row.get("parks", 0)


def lane_of(row: Mapping[str, Any]) -> str:
    """What events of one order have in common, from a row's stored refs; a row without any has a lane of its own."""
    refs = row.get("refs") or {}
    return refs.get("orderId") or refs.get("paymentLinkId") or refs.get("paymentId") or f"row:{row['_id']}"


@dataclass(frozen=True, slots=True)
class Job:
    """An event to work on; one that was inserted as `processing` comes with its claim and session."""

    row_id: object
    row: RawDocument | None = field(default=None, compare=False, repr=False)
    claim: Claim | None = field(default=None, compare=False)
    session: AsyncClientSession | None = field(default=None, compare=False)


class EventRows:
    """The rows of `webhook_events`."""

    def __init__(self, db: Database, clock: ServerClock, settings: ProcessingSettings, telemetry: Telemetry) -> None:
        self._db, self._clock, self._settings, self._telemetry = db, clock, settings, telemetry

    async def due(self, limit: int) -> list[RawDocument]:
        """Rows that are due, oldest first: waiting ones by their time, `processing` ones by their lease's end."""
        waiting = {"status": {"$in": list(CLAIMABLE_EVENTS)}, "nextAttemptAt": {"$lte": self._clock.now()}}
        abandoned = {"status": EventStatus.PROCESSING, "nextAttemptAt": {"$lte": self._clock.expired_before()}}
        found: list[RawDocument] = []
        for wanted in (abandoned, waiting):
            cursor = self._db.events.find(wanted, _DUE_FIELDS).sort("nextAttemptAt", 1).limit(limit - len(found))
            found += await cursor.to_list()
            if len(found) >= limit:
                break
        return found

    async def load(self, row_id: object) -> RawDocument | None:
        """The whole row."""
        return await self._db.events.find_one({"_id": row_id})

    def is_due(self, row: Mapping[str, Any]) -> bool:
        """Whether a row, as it was read a moment ago, is to be worked on now."""
        if row["status"] in CLAIMABLE_EVENTS:
            return bool(row["nextAttemptAt"] <= self._clock.now())
        return bool(row["status"] == EventStatus.PROCESSING)

    async def claim(self, row: Mapping[str, Any], claim: Claim) -> RawDocument | None:
        """Take a due row, as it is then; None when somebody else was faster.

        A dead holder's transaction is ended first.
        """
        guard: dict[str, Any] = {
            "_id": row["_id"],
            "status": row["status"],
            "nextAttemptAt": row["nextAttemptAt"],  # another worker that failed meanwhile has moved it
        }
        if row["status"] == EventStatus.PROCESSING:
            if row["lease"]["until"] > self._clock.expired_before():
                return None
            await kill_session(self._db, row["lease"], self._telemetry)
            guard["lease.token"] = row["lease"]["token"]
        claim.counted = row["status"] != EventStatus.PARKED  # waking to look for an order is no attempt
        held, started = self._held(claim), int(claim.counted)
        result = await self._db.events.update_one(guard, {"$set": held, "$inc": {"attempts": started}})
        return {**row, **held, "attempts": row["attempts"] + started} if result.matched_count else None

    def _held(self, claim: Claim) -> dict[str, Any]:
        return {
            "status": EventStatus.PROCESSING,
            "lease": claim.document(),
            "nextAttemptAt": claim.until,
            "updatedAt": self._clock.now(),
        }

    async def finish(
        self,
        row_id: object,
        claim: Claim,
        status: EventStatus,
        outcome: str,
        detail: str | None = None,
        session: AsyncClientSession | None = None,
    ) -> None:
        """End the event: completed, ignored or dead. Raises `LeaseLost` when the row is not ours any more."""
        now = self._clock.now()
        await self._fenced(
            row_id,
            claim,
            {
                "$set": {
                    "status": status,
                    "outcome": {"code": outcome, "detail": detail},
                    "processedAt": now,
                    "completedBy": claim.token,
                    "updatedAt": now,
                },
                "$unset": {"lease": "", "nextAttemptAt": ""},
            },
            session,
        )

    async def park(
        self,
        row: Mapping[str, Any],
        claim: Claim,
        wait: str = FOR_ORDER,
        session: AsyncClientSession | None = None,
    ) -> None:
        """Let the event wait, by default for its order; parking again keeps the first deadline."""
        now, parks = self._clock.now(), parks_of(row, wait)
        changes = {
            "parks": parks + 1,
            "parkedUntil": row.get("parkedUntil") or now + timedelta(seconds=self._settings.parked_for),
            "outcome": {"code": wait, "detail": None},
        }
        due = now + timedelta(seconds=park_delay(parks))
        await self._release(row["_id"], claim, EventStatus.PARKED, due, changes, session=session)

    async def retry(self, row_id: object, claim: Claim, error: str, detail: str, delay: float) -> None:
        """The attempt failed and counts; try again after `delay` seconds."""
        due = self._clock.in_seconds(delay)
        await self._release(row_id, claim, EventStatus.FAILED, due, {"error": error, "errorDetail": detail})

    async def postpone(self, row_id: object, claim: Claim, error: str, delay: float) -> None:
        """An outage or a write conflict stood in the way: try again in `delay` seconds; the attempt does not count."""
        due = self._clock.in_seconds(delay)
        changes = {"error": error, "errorDetail": "the database stood in the way; nothing is wrong with the event"}
        await self._release(row_id, claim, EventStatus.FAILED, due, changes, attempts=-int(claim.counted))

    async def give_back(self, row_id: object, claim: Claim) -> None:
        """The process stops before the event was settled: it is due now, and the attempt does not count."""
        now = self._clock.now()
        await self._release(row_id, claim, EventStatus.RECEIVED, now, {}, attempts=-int(claim.counted))

    async def _release(
        self,
        row_id: object,
        claim: Claim,
        status: EventStatus,
        due: datetime,
        changes: Mapping[str, Any],
        *,
        attempts: int = 0,
        session: AsyncClientSession | None = None,
    ) -> None:
        fields = {"status": status, "nextAttemptAt": due, "updatedAt": self._clock.now(), **changes}
        update: dict[str, Any] = {"$set": fields, "$unset": {"lease": ""}}
        if attempts:
            update["$inc"] = {"attempts": attempts}
        await self._fenced(row_id, claim, update, session)

    async def _fenced(
        self,
        row_id: object,
        claim: Claim,
        update: Mapping[str, Any],
        session: AsyncClientSession | None = None,
    ) -> None:
        result = await self._db.events.update_one(claim.fence(row_id), update, session=session)
        if result.matched_count == 0 and not await self._ended_by(row_id, claim, session):
            raise LeaseLost("another worker took this event over")

    async def _ended_by(self, row_id: object, claim: Claim, session: AsyncClientSession | None) -> bool:
        """Whether an earlier try of this very claim did end the event and only its reply was lost."""
        query = {"_id": row_id, "completedBy": claim.token}
        return session is None and await self._db.events.find_one(query, {"_id": 1}) is not None
