"""What an operator may do to a notification row: which rows, and the guarded writes that do it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from models.database import Database
from models.states import RowStatus

RETRIABLE = frozenset({RowStatus.DEAD, RowStatus.HELD, RowStatus.UNKNOWN, RowStatus.EXPIRED, RowStatus.SKIPPED})
RESOLVABLE = frozenset({RowStatus.UNKNOWN, RowStatus.HELD, RowStatus.DEAD})
RESOLVED = "resolved_by_operator"
_NOT_RETRIED = {
    RowStatus.PENDING: "it is due already",
    RowStatus.RETRY: "it is tried again by itself",
    RowStatus.SENDING: "it is being sent",
    RowStatus.SENT: "it was sent",
    RowStatus.SUPPRESSED: "it is no news any more",
}


def retry_refusal(row: Mapping[str, Any], now: datetime, expire_after: float, *, force: bool) -> str | None:
    """Why this row must not be tried again, or None."""
    status = RowStatus(row["status"])
    if status not in RETRIABLE:
        return _NOT_RETRIED[status]
    if not force and (status is RowStatus.EXPIRED or now - row["factAt"] > timedelta(seconds=expire_after)):
        return "what it tells is too old (--force sends it all the same)"
    return None


async def retry(db: Database, row: Mapping[str, Any], now: datetime, *, force: bool) -> bool:
    """Due now, attempts anew, the reason kept; worded anew unless a copy may be out, which must then be the same."""
    changes = {**_due(now), "attempts": 0, **({"forced": True} if force else {})}
    return await _move(db, row, changes, () if row.get("unknownAt") else ("message",))


def release_refusal(row: Mapping[str, Any]) -> str | None:
    """Why this row cannot be released, or None."""
    return None if row["status"] == RowStatus.HELD else f"it is {row['status']}, not held"


async def release(db: Database, row: Mapping[str, Any], now: datetime) -> bool:
    """A held row is due now; it needs no place under the cap and is not held for its earlier unknown end again."""
    return await _move(db, row, _due(now))


def resolve_refusal(row: Mapping[str, Any]) -> str | None:
    """Why nobody needs to resolve this row, or None."""
    return None if row["status"] in RESOLVABLE else f"it is {row['status']}; unknown, held and dead ones are resolved"


async def resolve(db: Database, row: Mapping[str, Any], now: datetime, actor: str, *, sent: bool) -> bool:
    """End it by a person's word: `sent` (without `sentAt`, which nobody knows) or `suppressed`."""
    status = RowStatus.SENT if sent else RowStatus.SUPPRESSED
    changes = {"status": status, "reason": RESOLVED, "nextAttemptAt": None, "resolvedBy": actor, "resolvedAt": now}
    return await _move(db, row, {**changes, "updatedAt": now})


def _due(now: datetime) -> dict[str, Any]:
    return {"status": RowStatus.PENDING, "nextAttemptAt": now, "gap": False, "updatedAt": now}


async def _move(db: Database, row: Mapping[str, Any], changes: Mapping[str, Any], gone: tuple[str, ...] = ()) -> bool:
    """Write unless the row moved since it was read; always the same row, never a copy."""
    guard = {"_id": row["_id"], "status": row["status"], "interventions": row.get("interventions")}
    update: dict[str, Any] = {"$set": dict(changes), "$inc": {"interventions": 1}}
    if gone:
        update["$unset"] = dict.fromkeys(gone, "")
    result = await db.notification_log.update_one(guard, update)
    return result.matched_count == 1
