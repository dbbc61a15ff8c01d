"""Kill -9 at every named point, over real processes: after a restart everything is as if nothing had happened."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from models.crash import POINTS
from models.database import Database
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.mailbox import QUIET, mailbox
from tests.support.processes import Processes, processes
from tests.support.wait import eventually

pytestmark = [pytest.mark.acceptance, QUIET]

WEBHOOK_POINTS = sorted(point for point in POINTS if point.startswith("webhook."))
WATCHER_POINTS = sorted(point for point in POINTS if point.startswith("watcher."))
KEY = "order:ord1:payment_completed:email:customer"
MAY_BE_SENT_TWICE = {"watcher.provider_accepted"}


async def oracle(running: Processes, point: str) -> None:
    """One transition, one credit, one go-ahead, one row, one mail (or more, all of them announced by `unknownAt`)."""
    order = await running.order(1)
    assert order["payment"]["status"] == "completed"
    assert [entry["fact"] for entry in order["history"]].count("payment_completed") == 1
    assert [entry["seq"] for entry in order["history"]] == list(range(1, len(order["history"]) + 1))
    assert await running.db.ledger.count_documents({}) == 1
    assert await running.db.fulfilments.count_documents({}) == 1
    rows = await running.db.notification_log.find({}).to_list()
    assert [row["key"] for row in rows] == [KEY]
    copies = Counter(mail.message_id for mail in running.box.to("asha1@example.com"))
    assert len(copies) == 1, "every copy carries the same Message-ID"
    if sum(copies.values()) > 1:
        assert point in MAY_BE_SENT_TWICE
        assert rows[0]["unknownAt"], "a mail was doubled in silence"


@pytest.mark.parametrize("point", WEBHOOK_POINTS)
@pytest.mark.asyncio
async def test_killing_the_webhook_process_loses_and_doubles_nothing(
    point: str, db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path) as running:
        if point != "webhook.parked":
            await db.orders.insert_one(sample.order(1))
        await running.watch()
        doomed = await running.serve(point)
        status = await running.post(doomed, sample.captured(1), "E1")
        assert await doomed.process.wait() == -9, f"it was not killed at {point}"
        if point == "webhook.parked":
            await db.orders.insert_one(sample.order(1))
        serve = await running.serve()
        if status != 200:  # the provider saw no answer and sends it again
            assert await running.post(serve, sample.captured(1), "E1") == 200
        await running.until_told(KEY)
        event = await db.events.find_one({"eventId": "E1"})
        assert event is not None
        assert (event["status"], await db.events.count_documents({})) == ("completed", 1)
        await oracle(running, point)


@pytest.mark.parametrize("point", WATCHER_POINTS)
@pytest.mark.asyncio
async def test_killing_the_watcher_loses_nothing_and_doubles_nothing_in_silence(
    point: str, db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path) as running:
        await db.orders.insert_one(sample.order(1))
        serve = await running.serve()
        if point == "watcher.baseline_stored":
            doomed = await running.stack.launch("watch", PAYLATCH_CRASH_POINT=point)
        else:
            doomed = await running.watch(point)
            await _reading(db)
        if point == "watcher.baseline_stored":
            assert await doomed.process.wait() == -9
        assert await running.post(serve, sample.captured(1), "E1") == 200
        assert await doomed.process.wait() == -9, f"it was not killed at {point}"
        await running.watch()
        row = await running.until_told(KEY)
        if point in {"watcher.sending_written", "watcher.provider_accepted"}:
            assert row["unknownAt"], "nobody could know whether the mail went out"
        await oracle(running, point)


async def _reading(db: Database) -> None:
    """The watcher has a baseline, so what comes now is news."""

    async def check() -> object:
        return await db.watcher_state.find_one({"_id": "baseline"})

    await eventually(check, "the watcher has its baseline")


@pytest.mark.asyncio
async def test_a_kill_inside_the_transaction_locks_the_order_no_longer_than_the_lease(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path) as running:
        await db.orders.insert_one(sample.order(1))
        survivor = await running.serve()
        doomed = await running.serve("webhook.in_transaction")
        assert await running.post(doomed, sample.captured(1), "E1") in {0, 200}
        assert await doomed.process.wait() == -9
        await running.until_status(1, "completed")  # by the survivor's recovery, well before the server's 60 s
        assert survivor.process.returncode is None
        event = await db.events.find_one({"eventId": "E1"})
        assert event is not None
        assert event["attempts"] == 2
        assert (event["processedAt"] - event["receivedAt"]).total_seconds() < 12
