"""A watcher process inside the test: real database, real change streams, the real composition root."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from models.database import Database, database
from models.indexes import create_indexes
from models.settings import Settings
from tests.support import sample
from tests.support.wait import eventually
from watcher.app import Watcher, watcher
from watcher.place import cluster_time

ENDS = ("sent", "dead", "expired", "suppressed", "skipped")


@dataclass
class Daemon:
    """Looks at what the watcher emitted and stored."""

    parts: Watcher
    db: Database
    stopping: asyncio.Event
    reading: asyncio.Task[None]
    emitted: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.emitted if event == name]

    async def until_emitted(self, name: str, times: int = 1) -> dict[str, Any]:
        """The fields of the `times`-th event of that name; fails at once when the reader has ended."""

        async def check() -> list[dict[str, Any]]:
            if self.reading.done() and len(self.events(name)) < times:
                self.reading.result()
                assert self.stopping.is_set(), "the reader ended"
            return self.events(name)[times - 1 :]

        found = await eventually(check, f"{name} was emitted {times} times")
        return found[0]

    async def stop(self) -> None:
        """As SIGTERM does: stop reading and hand the leader lease over."""
        self.stopping.set()
        await self.reading


@contextlib.asynccontextmanager
async def daemon(settings: Settings, db: Database, *, leads: bool = True) -> AsyncIterator[Daemon]:
    """Start it, stop it as the process does; yields when its stream is open, or at once for a standby."""
    stopping = asyncio.Event()
    emitted: list[tuple[str, dict[str, Any]]] = []
    async with watcher(settings, stopping, lambda name, fields: emitted.append((name, fields))) as parts:
        reading = asyncio.create_task(parts.leadership.run(stopping))
        running = Daemon(parts, db, stopping, reading, emitted)
        try:
            if leads:
                await running.until_emitted("stream.opened")
            yield running
        finally:
            stopping.set()
            await asyncio.wait((reading,), timeout=20)
            if not reading.done():
                reading.cancel()
                raise AssertionError("the watcher does not stop")
        if not reading.cancelled():
            reading.result()


def entry(seq: int = 1, fact: str = "payment_completed", **changes: Any) -> dict[str, Any]:
    """A history entry as the webhook process writes it."""
    return {
        "seq": seq,
        "at": datetime.now(UTC),
        "fact": fact,
        "ref": sample.payment_id(1),
        "from": "pending",
        "to": "completed",
        "amount": sample.AMOUNT,
        "currency": "INR",
        "cause": {"eventId": f"evt{seq}", "eventType": "payment.captured", "origin": "webhook"},
        **changes,
    }


async def record(db: Database, number: int, *entries: Mapping[str, Any], status: str | None = "completed") -> None:
    """Write facts onto order `number` as the webhook process does."""
    fields = {} if status is None else {"payment.status": status}
    await db.orders.update_one(
        {"_id": f"ord{number}"},
        {
            "$set": {**fields, "version": len(entries)},
            "$currentDate": {"payment.changedAt": True},
            "$push": {"history": {"$each": list(entries) or [entry()]}},
        },
    )


async def rows(db: Database, order_id: object, **query: Any) -> list[dict[str, Any]]:
    """The order's notification rows by key."""
    return await db.notification_log.find({"orderId": order_id, **query}).sort("key", 1).to_list()


async def told(db: Database, order_id: object) -> list[str]:
    """What is told of the order, as `notice:channel:recipient`."""
    return [f"{row['notice']}:{row['channel']}:{row['to']}" for row in await rows(db, order_id)]


async def until_told(db: Database, order_id: object, *expected: str) -> None:
    """Wait until exactly these `notice:channel:recipient` are in the log for the order."""

    async def check() -> bool:
        return await told(db, order_id) == sorted(expected)

    try:
        await eventually(check, f"{order_id} has its rows")
    except AssertionError:
        assert await told(db, order_id) == sorted(expected)


async def until_status(db: Database, query: Mapping[str, Any], *statuses: str) -> dict[str, Any]:
    """The one row that the query finds, once it has one of the statuses (default: any end)."""
    wanted = statuses or ENDS

    async def check() -> dict[str, Any] | None:
        row = await db.notification_log.find_one(query)
        return row if row and row["status"] in wanted else None

    try:
        row = await eventually(check, "the row has its status")
    except AssertionError:
        raise AssertionError(
            f"{query} is not {' or '.join(wanted)}: {await db.notification_log.find_one(query)}",
        ) from None
    assert row is not None
    return row


async def until_read(db: Database) -> None:
    """Wait until the reader has gone past everything that is written by now: past a paid order of our own."""
    mark = f"mark-{uuid.uuid4().hex}"
    await db.orders.insert_one({"_id": mark, "payment": {"status": "completed"}})

    async def check() -> bool:
        return bool(await rows(db, mark))

    await eventually(check, "the reader has seen the mark")


PAID = ("payment_completed:email:customer", "payment_completed:inapp:admin", "payment_completed:inapp:user")
"""What the default routes make of one completed payment, whatsapp being off."""


async def checkpoint(db: Database) -> dict[str, Any]:
    found = await db.watcher_state.find_one({"_id": "checkpoint"})
    assert found is not None, "there is no checkpoint"
    return found


async def until_saved(db: Database) -> dict[str, Any]:
    """The checkpoint once it has a token."""

    async def check() -> dict[str, Any] | None:
        return await db.watcher_state.find_one({"_id": "checkpoint", "token": {"$ne": None}})

    found = await eventually(check, "the checkpoint is saved")
    assert found is not None
    return found


async def alerts(db: Database, kind: str) -> list[dict[str, Any]]:
    return await db.alerts.find({"kind": kind}).to_list()


async def first_started(db: Database, *, hours_ago: float) -> None:
    """Make it so that the watcher was first started long ago, and so that older facts count."""
    at = datetime.now(UTC) - timedelta(hours=hours_ago)
    baseline = {"clusterTime": await cluster_time(db), "at": at, "createdAt": at, "updatedAt": at}
    await db.watcher_state.insert_one({"_id": "baseline", **baseline})


@contextlib.asynccontextmanager
async def shop_on(uri: str, **sections: Any) -> AsyncIterator[tuple[Settings, Database]]:
    """A shop with a fresh database on a server of the test's own."""
    settings = sample.settings(uri, f"paylatch_test_{uuid.uuid4().hex[:12]}", **sections)
    async with database(settings) as db:
        _, problems = await create_indexes(db, settings)
        assert not problems
        yield settings, db
