"""A webhook process inside the test: real HTTP on a real port, real database, the real composition root."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from models.database import Database
from models.private_port import listening
from models.settings import Settings
from tests.support import sample
from tests.support.wait import eventually
from webhook.app import Webhook, webhook


@dataclass
class Endpoint:
    """Posts signed bodies and looks at what was stored."""

    parts: Webhook
    port: int
    http: aiohttp.ClientSession
    emitted: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/webhooks/razorpay"

    @property
    def db(self) -> Database:
        return self.parts.engine.db

    async def post(
        self,
        body: Any,
        event_id: str | None,
        *,
        secret: str = sample.SECRET,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Status and JSON answer."""
        raw, signed = sample.signed(body, event_id, secret)
        async with self.http.post(self.url, data=raw, headers={**signed, **(headers or {})}) as response:
            return response.status, await response.json()

    async def event(self, event_id: str) -> dict[str, Any]:
        row = await self.db.events.find_one({"eventId": event_id})
        assert row is not None, f"event {event_id} is not stored"
        return row

    async def settled(self, event_id: str, *statuses: str) -> dict[str, Any]:
        """The event's row once it has one of the statuses (default: any end)."""
        wanted = statuses or ("completed", "ignored", "dead")

        async def check() -> dict[str, Any] | None:
            row = await self.db.events.find_one({"eventId": event_id})
            return row if row and row["status"] in wanted else None

        row = await eventually(check, f"{event_id} is {' or '.join(wanted)}")
        assert row is not None
        return row

    async def processed(self, body: Any, event_id: str) -> str:
        """Post it, wait for its end; `status/outcome`."""
        status, said = await self.post(body, event_id)
        assert (status, said["status"]) == (200, "accepted")
        row = await self.settled(event_id)
        return f"{row['status']}/{row['outcome']['code']}"

    async def order(self, number: int) -> dict[str, Any]:
        found = await self.db.orders.find_one({"_id": f"ord{number}"})
        assert found is not None
        return found


@contextlib.asynccontextmanager
async def endpoint(settings: Settings) -> AsyncIterator[Endpoint]:
    """Start it, stop it as the process does."""
    emitted: list[tuple[str, dict[str, Any]]] = []
    async with (
        webhook(settings, lambda name, fields: emitted.append((name, fields))) as parts,
        listening(parts.public_app(), "127.0.0.1", 0, auto_decompress=False, lingering_time=1.0) as port,
        aiohttp.ClientSession() as http,
    ):
        yield Endpoint(parts, port, http, emitted)
