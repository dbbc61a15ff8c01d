"""`/health/stats`: the last 24 hours by status, for a look without a metrics system."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from aiohttp import web
from pymongo.errors import PyMongoError

from models.clock import ServerClock
from models.database import Database
from models.errors import Unavailable
from models.private_port import json_response

CACHED_FOR = 60.0


class Stats:
    """Answers from memory for a minute, so that looking often costs the database nothing."""

    def __init__(self, db: Database, clock: ServerClock) -> None:
        self._db, self._clock = db, clock
        self._counted: dict[str, Any] = {}
        self._until = 0.0

    async def handle(self, _request: web.Request) -> web.Response:
        """The counts, or 503 while the database cannot say."""
        if time.monotonic() >= self._until:
            try:
                self._counted = await self._count()
            except (PyMongoError, Unavailable):
                return json_response({"error": "unavailable", "detail": "the database does not answer"}, status=503)
            self._until = time.monotonic() + CACHED_FOR
        return json_response(self._counted)

    async def _count(self) -> dict[str, Any]:
        now = self._clock.now()
        since = now - timedelta(hours=24)
        pipeline: list[dict[str, Any]] = [
            {"$match": {"receivedAt": {"$gte": since}}},
            {"$group": {"_id": "$status", "count": {"$sum": 1}, "duplicates": {"$sum": "$duplicates.count"}}},
        ]
        groups = [group async for group in await self._db.events.aggregate(pipeline)]
        return {
            "since": since.isoformat(),
            "until": now.isoformat(),
            "events": {str(group["_id"]): group["count"] for group in groups},
            "duplicates": sum(group["duplicates"] for group in groups),
        }
