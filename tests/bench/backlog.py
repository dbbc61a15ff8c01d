"""How a watcher works off a backlog: `make backlog`, or `python -m tests.bench.backlog --changes 100000`.

A database, a mail sink and a real `paylatch watch` of its own; prints how far it is, its memory, and the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from models.database import Database, database
from scripts.embedded import free_port
from scripts.sink import mail_sink
from scripts.stack import Stack, local_stack, settings_of
from tests.support.backlog import memory, watched_to_its_end, write_backlog
from tests.support.daemon import until_saved

OPTIONS = {
    "PAYLATCH_NOTIFICATIONS__ROUTES": json.dumps({"payment_completed": {"customer": ["email"]}}),
    "PAYLATCH_NOTIFICATIONS__RATES": json.dumps({"email": 100_000}),
    "PAYLATCH_EMAIL__CONCURRENCY": "16",
    "PAYLATCH_EMAIL__TLS": "none",
}


async def backlog(changes: int) -> bool:
    """Whether every change was told exactly once."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, mail_sink(port) as sink:
        async with (
            local_stack(Path(folder), port, port=0, **OPTIONS) as stack,
            database(settings_of(stack.environment)) as db,
        ):
            first = await stack.start("watch")
            await until_saved(db)
            first.kill(signal.SIGTERM)
            await first.process.wait()
            started = time.monotonic()
            await write_backlog(db, changes)
            say(f"{changes} changes written in {time.monotonic() - started:.0f} s")
            await _worked_off(stack, db, changes, lambda: len(sink.mails))
            ids = {mail.message_id for mail in sink.mails}
            rows = await db.notification_log.estimated_document_count()
            say(f"rows {rows}, mails {len(sink.mails)}, different mails {len(ids)}")
            return rows == changes == len(sink.mails) == len(ids)


async def _worked_off(stack: Stack, db: Database, changes: int, arrived: Callable[[], int]) -> None:
    watcher = await stack.start("watch")
    pid = watcher.process.pid
    at_first, read_after, seconds = memory(pid), 0.0, 0.0
    async for look in watched_to_its_end(db, changes, pid, arrived, every=5.0):
        say(f"{look.seconds:6.0f} s  unread {look.unread:7}  unsent {look.unsent:7}  {look.mebibytes:6.0f} MiB")
        read_after, seconds = read_after or (look.seconds if look.unread == 0 else 0.0), look.seconds
    say(f"read in {read_after:.0f} s, {changes / max(read_after, 1):.0f}/s")
    say(f"sent in {seconds:.0f} s, {changes / max(seconds, 1):.0f}/s")
    say(f"memory {at_first:.0f} MiB at first, {memory(pid, 'VmHWM'):.0f} MiB at most")


def say(line: str) -> None:
    """At once, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """0 when every change was told exactly once."""
    parser = argparse.ArgumentParser(description="How a watcher works off a backlog.")
    parser.add_argument("--changes", type=int, default=100_000)
    return 0 if asyncio.run(backlog(parser.parse_args().changes)) else 1


if __name__ == "__main__":
    sys.exit(main())
