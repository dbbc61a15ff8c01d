"""Changes that could not be understood or read, kept aside so that the stream goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.alerts import raise_alert
from models.clock import ServerClock
from models.database import Database
from models.telemetry import Telemetry


class DeadLetters:
    """Rows of `watcher_dead_letters`, each with an alert."""

    def __init__(self, db: Database, clock: ServerClock, telemetry: Telemetry) -> None:
        self._db, self._clock, self._telemetry = db, clock, telemetry

    async def keep(
        self, name: str, change: Mapping[str, Any], error: str, kind: str = "change_unreadable", ref: str | None = None
    ) -> None:
        """Store what is known of the change under this name, once, and raise an alert of this kind."""
        now, operation = self._clock.now(), str(change.get("operationType"))
        document = {
            "operation": operation,
            "documentKey": change.get("documentKey"),
            "token": change.get("_id"),
            "error": error,
            "createdAt": now,
            "updatedAt": now,
        }
        await self._db.dead_letters.update_one({"_id": name}, {"$setOnInsert": document}, upsert=True)
        detail = f"{operation} of {change.get('documentKey')}"
        await raise_alert(self._db, self._telemetry, kind, name[-24:] if ref is None else ref, now, detail)
