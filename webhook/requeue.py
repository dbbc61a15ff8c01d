"""Requeue a stored event: which statuses may be worked on again, and the guarded write that does it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from models.clock import TAKER_MARGIN
from models.database import Database
from models.states import EventStatus

DEFAULT_STATUSES = (EventStatus.FAILED, EventStatus.DEAD)


def refusal(row: Mapping[str, Any], now: datetime, *, force: bool) -> str | None:
    """Why this event must not be requeued, or None."""
    if row["status"] == EventStatus.PROCESSING:
        ends = row["lease"]["until"] + TAKER_MARGIN
        return "a worker holds it" if ends > now else "its worker died; it is due already"
    if row["status"] == EventStatus.COMPLETED and not force:
        return "it is completed (--force evaluates it again, which changes nothing that is already applied)"
    return None


def requeue_update(row: Mapping[str, Any], now: datetime, parked_for: float) -> dict[str, Any]:
    """The write: due now, attempts anew, error kept; a parked event keeps waiting, with a new deadline."""
    changes: dict[str, Any] = {"nextAttemptAt": now, "updatedAt": now}
    if row["status"] == EventStatus.PARKED:
        changes |= {"parks": 0, "parkedUntil": now + timedelta(seconds=parked_for)}
    else:
        changes |= {"status": EventStatus.RECEIVED, "attempts": 0, "parkedUntil": None, "parks": 0}
    return {"$set": changes, "$inc": {"requeues": 1}}


async def requeue(db: Database, row: Mapping[str, Any], now: datetime, parked_for: float) -> bool:
    """Requeue it unless it moved since it was read; always the same row, never a copy."""
    guard = {"_id": row["_id"], "status": row["status"], "requeues": row.get("requeues", 0)}
    result = await db.events.update_one(guard, requeue_update(row, now, parked_for))
    return result.matched_count == 1
