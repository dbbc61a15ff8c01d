"""Every command that changes or reveals something leaves an entry in `audit_log`."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from models.database import Database


async def audit(db: Database, command: str, chosen: Mapping[str, Any], count: int, now: datetime) -> object:
    """Write the entry, before the deed; the id under which `audit_done` corrects the count."""
    entry = {
        "actor": getpass.getuser(),
        "command": command,
        "filter": dict(chosen),
        "count": count,
        "createdAt": now,
        "updatedAt": now,
    }
    return (await db.audit_log.insert_one(entry)).inserted_id


async def audit_done(db: Database, entry: object, count: int, now: datetime) -> None:
    """How many documents it really was."""
    await db.audit_log.update_one({"_id": entry}, {"$set": {"count": count, "updatedAt": now}})
