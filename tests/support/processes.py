"""Real processes on the test's database: `paylatch serve` and `watch`, killed and started again at will."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from models.database import Database
from models.settings import Settings
from scripts.stack import Daemon, Stack, environment
from tests.support import sample
from tests.support.mailbox import Mailbox
from tests.support.wait import eventually

ONLY_MAIL = {"payment_completed": {"customer": ["email"]}, "payment_failed": {"customer": ["email"]}}


@dataclass
class Processes:
    """The two daemons, the database they work on and the mail server they use."""

    stack: Stack
    db: Database
    box: Mailbox
    http: aiohttp.ClientSession

    async def serve(self, crash_point: str = "") -> Daemon:
        return await self.stack.start("serve", **_armed(crash_point))

    async def watch(self, crash_point: str = "", **more: str) -> Daemon:
        return await self.stack.start("watch", **_armed(crash_point), **more)

    async def until_reading(self) -> None:
        """The watcher has a baseline, so what comes now is news."""

        async def check() -> object:
            return await self.db.watcher_state.find_one({"_id": "baseline"})

        await eventually(check, "the watcher has its baseline")

    async def post(self, serve: Daemon, body: Any, event_id: str) -> int:
        """The answer's status; 0 when the process died over it."""
        raw, headers = sample.signed(body, event_id)
        url = f"http://127.0.0.1:{serve.ports['port']}/webhooks/razorpay"
        try:
            async with self.http.post(url, data=raw, headers=headers, timeout=aiohttp.ClientTimeout(5)) as response:
                return response.status
        except (aiohttp.ClientError, TimeoutError):
            return 0

    async def order(self, number: int) -> dict[str, Any]:
        return await self.db.orders.find_one({"_id": f"ord{number}"}) or {}

    async def until_status(self, number: int, status: str) -> None:
        async def check() -> bool:
            return bool((await self.order(number))["payment"]["status"] == status)

        await eventually(check, f"order {number} is {status}", 20)

    async def until_told(self, key: str, status: str = "sent") -> dict[str, Any]:
        async def check() -> dict[str, Any] | None:
            return await self.db.notification_log.find_one({"key": key, "status": status})

        row = await eventually(check, f"{key} is {status}", 30)
        assert row is not None
        return row


def _armed(crash_point: str) -> dict[str, str]:
    return {"PAYLATCH_CRASH_POINT": crash_point} if crash_point else {}


@contextlib.asynccontextmanager
async def processes(
    settings: Settings, db: Database, box: Mailbox, folder: Path, **more: str
) -> AsyncIterator[Processes]:
    """Nothing runs yet; everything that was started ends on leaving. Leases last 2 s."""
    values = environment(
        settings.mongodb.uri.get_secret_value(),
        box.port,
        **{
            "PAYLATCH_MONGODB__DATABASE": settings.mongodb.database,
            "PAYLATCH_RAZORPAY__WEBHOOK_SECRETS": json.dumps({"new": sample.SECRET, "old": sample.OLD_SECRET}),
            "PAYLATCH_PROCESSING__LEASE": "2",
            "PAYLATCH_PROCESSING__RECOVERY_INTERVAL": "0.2",
            "PAYLATCH_WATCHER__LEADER_LEASE": "2",
            "PAYLATCH_WATCHER__POLL_INTERVAL": "0.3",
            "PAYLATCH_EMAIL__TIMEOUT": "1",
            "PAYLATCH_EMAIL__TLS": "none",
            "PAYLATCH_NOTIFICATIONS__ROUTES": json.dumps(ONLY_MAIL),
            **more,
        },
    )
    routes = json.loads(values["PAYLATCH_NOTIFICATIONS__ROUTES"])
    values["PAYLATCH_NOTIFICATIONS__ROUTES"] = json.dumps({**sample.QUIET_ALERTS, **routes})
    stack = Stack(folder, settings.mongodb.uri.get_secret_value(), values)
    async with aiohttp.ClientSession() as http:
        try:
            yield Processes(stack, db, box, http)
        finally:
            await stack.stop()
