"""Three watchers on one database, two of them killed at random: every customer is told, and once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from models.database import Database
from tests.conftest import SettingsMaker
from tests.support.mailbox import QUIET, mailbox
from tests.support.oracle import told_by_mail, until_all
from tests.support.processes import processes
from tests.support.rows import paid
from tests.support.wait import eventually

pytestmark = [pytest.mark.acceptance, QUIET]

ORDERS = 120


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", [1, 2])
async def test_each_row_is_sent_once_whichever_watchers_die(
    seed: int, db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path) as running:
        watchers = [await running.watch() for _ in range(3)]
        await running.until_reading()
        doomed = chance.sample(watchers, 2)
        moments = sorted(chance.sample(range(10, ORDERS - 10), 2))
        for number in range(1, ORDERS + 1):
            await paid(db, number)
            if number in moments:
                sent_before = len(box.arrived)

                async def something_is_sent(before: int = sent_before) -> bool:
                    return len(box.arrived) > before

                await eventually(something_is_sent, "somebody sends")
                await asyncio.sleep(chance.uniform(0, 0.1))  # anywhere in its work
                doomed.pop().kill()
        await until_all(db, ORDERS, "sent", seconds=60)
        doubled = await told_by_mail(db, box, range(1, ORDERS + 1))
        unknown = await db.notification_log.count_documents({"unknownAt": {"$exists": True}})
        assert doubled <= unknown <= 8, "no more than the two had under way"
        survivors = [one for one in watchers if one.process.returncode is None]
        assert len(survivors) == 1
