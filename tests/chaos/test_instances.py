"""Several watchers on one database: a leader that is paused and comes back, and one whose clock is wrong."""

from __future__ import annotations

import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from models.clock import ServerClock
from models.database import Database
from tests.conftest import SettingsMaker
from tests.support.daemon import daemon
from tests.support.mailbox import HANG, QUIET, email, mailbox
from tests.support.oracle import told_by_mail, until_all
from tests.support.processes import processes
from tests.support.rows import now, paid, until_arrived
from tests.support.wait import eventually

pytestmark = QUIET


async def leader(db: Database) -> dict[str, Any]:
    found = await db.watcher_state.find_one({"_id": "leader"})
    assert found is not None
    return found


async def until_epoch(db: Database, epoch: int) -> None:
    async def check() -> bool:
        return bool((await leader(db))["epoch"] >= epoch)

    await eventually(check, f"the leader's epoch is {epoch}", 30)


@pytest.mark.acceptance
@pytest.mark.asyncio
async def test_scenario_20_a_leader_that_was_stopped_past_its_lease_comes_back_and_each_row_is_sent_once(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path) as running:
        paused = await running.watch()
        await running.until_reading()
        await until_epoch(db, 1)
        other = await running.watch()
        await paid(db, *range(1, 31))
        paused.kill(signal.SIGSTOP)  # with changes half read and mails half sent
        await paid(db, *range(31, 61))
        await until_epoch(db, 2)
        await until_arrived(box, 40)
        paused.kill(signal.SIGCONT)
        await paid(db, *range(61, 91))
        await until_all(db, 90, "sent", seconds=60)

        async def noticed() -> bool:
            return any(line["event"] == "leader.lost" for line in paused.lines())

        await eventually(noticed, "the old leader has noticed that it is none")
        assert (await leader(db))["epoch"] == 2, "and did not take the lead back"
        checkpoint = await db.watcher_state.find_one({"_id": "checkpoint"})
        assert checkpoint is not None
        assert checkpoint["epoch"] == 2
        await told_by_mail(db, box, range(1, 91))
        assert (paused.process.returncode, other.process.returncode) == (None, None)


@pytest.fixture(params=[-600.0, 600.0], ids=["ten minutes slow", "ten minutes fast"])
def skewed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second watcher of this process has a local clock that is wrong."""
    offset: float = request.param
    local = iter([0.0, offset])

    def clock(client: Any) -> ServerClock:
        wrong = next(local)
        return ServerClock(client, lambda: time.monotonic() + wrong)

    monkeypatch.setattr("watcher.app.ServerClock", clock)


@pytest.mark.asyncio
async def test_scenario_21_one_instances_clock_is_wrong_and_leases_follow_the_servers_time(
    skewed: None, db: Database, make_settings: SettingsMaker
) -> None:
    async with mailbox() as box:
        box.at_data.extend([HANG] * 2)
        only_mail = {"routes": {"payment_completed": {"customer": ["email"]}}}
        settings = make_settings(email=email(box, concurrency=2, timeout=20), notifications=only_mail)
        async with daemon(settings, db) as right, daemon(settings, db, leads=False) as wrong:
            await paid(db, 1, 2)
            await until_all(db, 2, "sending")
            for row in await db.notification_log.find({"status": "sending"}).to_list():
                left = row["lease"]["until"] - now()
                assert timedelta(seconds=10) < left < timedelta(seconds=30), "the channel's 20 s and a margin"
            box.release()
            await paid(db, *range(3, 41))
            await until_all(db, 40, "sent")
            first_epoch = (await leader(db))["epoch"]
            await right.stop()
            await wrong.until_emitted("stream.opened")
            assert (await leader(db))["epoch"] == first_epoch + 1, "one leader after the other"
            await paid(db, *range(41, 61))
            await until_all(db, 60, "sent")
            handled = right.events("notification.handled") + wrong.events("notification.handled")
            recorded = right.events("changes.recorded") + wrong.events("changes.recorded")
        assert await told_by_mail(db, box, range(1, 61)) == 0
    assert len(wrong.events("notification.handled")) > 0
    assert all(0 <= fields["age"] < 120 for fields in handled)
    assert all(0 <= fields["lag"] < 120 for fields in recorded)
