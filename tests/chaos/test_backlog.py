"""A watcher that comes back to thousands of changes: it catches up steadily and its memory stays small."""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from models.database import Database
from tests.conftest import SettingsMaker
from tests.support.backlog import Look, memory, watched_to_its_end, write_backlog
from tests.support.daemon import until_saved
from tests.support.mailbox import QUIET, mailbox
from tests.support.oracle import told_by_mail
from tests.support.processes import processes

pytestmark = [pytest.mark.acceptance, QUIET]

CHANGES = 3000
GROWTH = 48.0
"""MiB that the process may grow by: a read-ahead of 500 changes and 200 rows is well below."""
CONNECTIONS = 4


@pytest.mark.asyncio
async def test_scenario_23_a_backlog_is_worked_off_steadily_in_little_memory(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    options = {"PAYLATCH_EMAIL__CONCURRENCY": str(CONNECTIONS), "PAYLATCH_LOG__LEVEL": "debug"}
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path, **options) as running:
        first = await running.watch()
        await until_saved(db)
        first.kill(signal.SIGTERM)
        assert await first.process.wait() == 0
        await write_backlog(db, CHANGES)
        watcher = await running.watch()
        at_first, looks = memory(watcher.process.pid), list[Look]()
        await watched_to_its_end(db, CHANGES, watcher.process.pid, 240, looks.append)
        most = memory(watcher.process.pid, "VmHWM")
        batches = [line for line in watcher.lines() if line["event"] == "changes.recorded"]
        assert await told_by_mail(db, box, range(1, CHANGES + 1)) == 0
        print(json.dumps({"seconds": looks[-1].seconds, "mebibytes": [at_first, most], "batches": len(batches)}))
        print([(round(x.seconds, 1), x.unread, x.unsent) for x in looks][::4], [round(b["lag"], 1) for b in batches])
    assert all(later.unread <= sooner.unread and later.unsent <= sooner.unsent for sooner, later in pairwise(looks))
    assert most - at_first < GROWTH
    assert max(batch["changes"] for batch in batches) <= 200
    assert box.connections <= CONNECTIONS, "the limit of the channel holds, whatever is due"
    assert await db.notification_log.count_documents({"unknownAt": {"$exists": True}}) == 0
