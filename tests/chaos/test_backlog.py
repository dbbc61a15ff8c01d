"""A watcher that comes back to thousands of changes: it catches up steadily and its memory stays small."""

from __future__ import annotations

import asyncio
import shutil
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from models.database import Database
from scripts.embedded import FAST_SERVER
from tests.conftest import SettingsMaker
from tests.support.backlog import Look, memory, watched_to_its_end, write_backlog
from tests.support.daemon import until_saved
from tests.support.mailbox import QUIET, mailbox
from tests.support.oracle import told_by_mail, until_all
from tests.support.processes import processes

pytestmark = [pytest.mark.acceptance, QUIET]

CHANGES = 3000 if shutil.which(FAST_SERVER) else 600
"""The slower engine would need several minutes for 3,000; `make backlog` tries 100,000."""
GROWTH = 48.0
"""MiB that the process may grow by: a read-ahead of 500 changes, batches of 200 and 64 due rows are well below."""
CONNECTIONS = 8
GIVEN_UP_AFTER = 300.0


@pytest.mark.asyncio
async def test_scenario_23_a_backlog_is_worked_off_steadily_in_little_memory(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    options = {
        "PAYLATCH_EMAIL__CONCURRENCY": str(CONNECTIONS),
        "PAYLATCH_EMAIL__TIMEOUT": "30",
        "PAYLATCH_LOG__LEVEL": "debug",
    }
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path, **options) as running:
        first = await running.watch()
        await until_saved(db)
        first.kill(signal.SIGTERM)
        assert await first.process.wait() == 0
        await write_backlog(db, CHANGES)
        watcher = await running.watch()
        pid = watcher.process.pid
        at_first, looks = memory(pid), list[Look]()
        async with asyncio.timeout(GIVEN_UP_AFTER):
            async for look in watched_to_its_end(db, CHANGES, pid, lambda: len(box.arrived)):
                looks.append(look)
        await until_all(db, CHANGES, "sent")
        most = memory(pid, "VmHWM")
        batches = [line["changes"] for line in watcher.lines() if line["event"] == "changes.recorded"]
        assert await told_by_mail(db, box, range(1, CHANGES + 1)) == 0
    assert all(later.unread <= sooner.unread and later.unsent <= sooner.unsent for sooner, later in pairwise(looks))
    assert most - at_first < GROWTH
    assert max(batches) <= 200
    assert box.most_open <= CONNECTIONS, "the limit of the channel holds, whatever is due"
    assert await db.notification_log.count_documents({"unknownAt": {"$exists": True}}) == 0
