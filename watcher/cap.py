"""After a gap in the stream only so many messages go out until an operator releases more.

A sweep can find thousands of facts at once, and some of them may have been told before the gap: a person looks first.
The cap is one document; a row takes its place under it by one guarded write, so several instances share one count.
"""

from __future__ import annotations

from datetime import datetime

from pymongo.errors import DuplicateKeyError

from models.database import Database, RawDocument

CAP = "send_cap"


async def impose(db: Database, now: datetime, reason: str) -> None:
    """Cap the rows that carry `gap: true`; call it before the first of them is inserted. Safe to repeat.

    A cap that nobody has lifted stays as it is: a second gap does not open room for more messages.
    """
    fresh = {"active": True, "used": 0, "rows": [], "reason": reason, "imposedAt": now, "updatedAt": now}
    try:
        await db.watcher_state.update_one({"_id": CAP, "active": False}, {"$set": fresh}, upsert=True)
    except DuplicateKeyError:
        await db.watcher_state.update_one({"_id": CAP}, {"$set": {"reason": reason, "updatedAt": now}})


async def lift(db: Database, now: datetime) -> bool:
    """Let every row through again; False when there was no cap to lift."""
    changes = {"active": False, "liftedAt": now, "updatedAt": now}
    result = await db.watcher_state.update_one({"_id": CAP, "active": True}, {"$set": changes})
    return result.matched_count == 1


async def in_force(db: Database) -> RawDocument | None:
    """The cap with `used` and `reason`; None when there is none."""
    return await db.watcher_state.find_one({"_id": CAP, "active": True})


async def admit(db: Database, row_id: object, most: int) -> bool:
    """Whether this row may go out: under a place that it takes now or has taken before, or because nothing is capped.

    The place belongs to the row, so a second try, or another instance with the same row, takes no second one.
    """
    free = {"_id": CAP, "active": True, "used": {"$lt": most}, "rows": {"$ne": row_id}}
    result = await db.watcher_state.update_one(free, {"$push": {"rows": row_id}, "$inc": {"used": 1}})
    if result.matched_count:
        return True
    cap = await in_force(db)
    return cap is None or row_id in cap["rows"]
