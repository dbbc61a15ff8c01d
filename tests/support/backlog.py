"""A backlog of changes that nobody has read yet, and what working it off costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from models.database import Database
from tests.support import sample
from tests.support.daemon import entry

CHUNK = 500


async def write_backlog(db: Database, count: int) -> None:
    """So many orders that are inserted paid, each with the fact in its history."""
    for first in range(1, count + 1, CHUNK):
        numbers = range(first, min(first + CHUNK, count + 1))
        orders = [
            {**sample.order(number, status="completed"), "history": [entry(ref=sample.payment_id(number))]}
            for number in numbers
        ]
        await db.orders.insert_many(orders, ordered=False)


def memory(pid: int, what: str = "VmRSS") -> float:
    """A process's memory now (VmRSS) or at its highest (VmHWM), in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1024


@dataclass(frozen=True)
class Look:
    """One look at how far the watcher has come."""

    seconds: float
    unread: int
    unsent: int
    mebibytes: float


async def watched_to_its_end(
    db: Database, count: int, pid: int, arrived: Callable[[], int], every: float = 0.5
) -> AsyncIterator[Look]:
    """Look again and again until as many messages arrived; counting rows by status would slow the watcher down."""
    started = time.monotonic()
    while True:
        rows = await db.notification_log.estimated_document_count()
        look = Look(time.monotonic() - started, count - rows, count - arrived(), memory(pid))
        yield look
        if look.unsent <= 0:
            return
        await asyncio.sleep(every)
