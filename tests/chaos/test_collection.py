"""Scenarios 13 and 16: the orders collection is dropped, replaced or renamed; a change is too large to be read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from models.database import Database
from models.indexes import create_indexes
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import PAID, alerts, daemon, record, shop_on, until_read, until_saved, until_told
from tests.support.failpoints import failing
from tests.support.mailbox import QUIET, email, mailbox
from tests.support.oracle import agree
from tests.support.wait import eventually
from watcher.place import Baseline
from watcher.record import Recorder
from watcher.stream import Reader

pytestmark = QUIET

QUICK = {"watcher": {"leader_lease": 0.8}}


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["rename", "$out"])
async def test_scenario_13_orders_that_come_in_place_of_the_collection_are_swept(
    db: Database, make_settings: SettingsMaker, way: str
) -> None:
    async with mailbox() as box, daemon(make_settings(email=email(box), **QUICK), db) as running:
        await db.orders.insert_many([sample.order(number) for number in (1, 2)])
        await record(db, 1)
        await until_read(db)
        rebuilt = db.handle["rebuilt"]
        await rebuilt.insert_many([sample.order(1, status="completed"), sample.order(2), sample.order(3)])
        await rebuilt.update_many({"_id": {"$ne": "ord2"}}, {"$set": {"payment.status": "completed"}})
        if way == "rename":
            await rebuilt.rename(db.orders.name, dropTarget=True)
        else:
            await (await rebuilt.aggregate([{"$out": db.orders.name}])).to_list()
        truth = {"ord1": PAID, "ord2": (), "ord3": PAID}
        await agree(db, truth, box=None)
        await running.until_emitted("sweep.done")
        assert await alerts(db, "orders_collection_changed")
        assert running.events("stream.gap")
        await db.orders.insert_one(sample.order(4, status="completed"))
        await agree(db, {**truth, "ord4": PAID}, box=None)
        assert len(box.to("asha1@example.com")) == 1


@pytest.mark.asyncio
async def test_scenario_13_what_was_recorded_is_still_sent_when_the_orders_are_dropped(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with mailbox(started=False) as box, daemon(make_settings(email=email(box), **QUICK), db) as running:
        await db.orders.insert_one(sample.order(1))
        await record(db, 1)
        await until_told(db, "ord1", *PAID)
        before = await db.notification_log.count_documents({"orderId": "ord1"})
        await db.orders.drop()
        await running.until_emitted("stream.gap")
        assert await db.notification_log.count_documents({"orderId": "ord1"}) == before
        await db.orders.insert_one(sample.order(2, status="completed"))
        await box.start()
        await agree(db, {"ord1": PAID, "ord2": PAID}, box)


@pytest.mark.asyncio
async def test_scenario_13_a_dropped_database_ends_the_stream_and_a_new_one_goes_on(
    db: Database, make_settings: SettingsMaker
) -> None:
    settings = make_settings(**QUICK)
    async with daemon(settings, db) as running:
        await db.orders.insert_one(sample.order(1, status="completed"))
        await until_read(db)
        await db.client.drop_database(settings.mongodb.database)
        await create_indexes(db, settings)
        await running.until_emitted("stream.opened", 2)
        await db.orders.insert_one(sample.order(2, status="completed"))
        await agree(db, {"ord2": PAID})


@pytest.mark.asyncio
async def test_scenario_16_a_change_that_is_too_large_is_stepped_past_and_its_order_swept(
    failing_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mailbox() as box, shop_on(failing_uri, email=email(box), **QUICK) as (settings, db):
        async with daemon(settings, db):
            await db.orders.insert_many([sample.order(number) for number in (1, 2, 3)])
            await until_read(db)
            await until_saved(db)
        await record(db, 1)
        await record(db, 2)
        async with failing(db, "aggregate", {"times": 1}, errorCode=10334):
            monkeypatch.setattr("watcher.observe.RowCensus.run_once", no_counts)
            async with daemon(settings, db) as running:
                await record(db, 3)
                await agree(db, dict.fromkeys(("ord1", "ord2", "ord3"), PAID), box)
                (letter,) = await db.dead_letters.find().to_list()
                assert (letter["documentKey"], letter["error"]) == ({"_id": "ord1"}, "ChangeTooLarge")
                assert [alert["ref"] for alert in await alerts(db, "change_too_large")] == ["ord1"]
                assert running.events("stream.gap") == running.events("stream.failed") == []


async def no_counts(_: object) -> dict[str, int]:
    return {}


@pytest.mark.asyncio
async def test_scenario_16_what_was_read_before_it_is_recorded_before_it_is_stepped_past(
    failing_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 10334 comes at a getMore while changes wait to be recorded: none of them may be taken for the large one."""
    real, ours, read = Recorder.store, Reader._ours, set[Any]()

    def noticed(self: Reader, change: dict[str, Any]) -> dict[str, Any] | None:
        read.add((change["documentKey"]["_id"], change["operationType"]))
        return ours(self, change)

    async def three_read() -> bool:
        return {(f"ord{number}", "update") for number in (1, 2, 3)} <= read

    async def slow(self: Recorder, changes: Sequence[dict[str, Any]], baseline: Baseline) -> None:
        await asyncio.sleep(1 if changes else 0)
        await real(self, changes, baseline)

    monkeypatch.setattr(Recorder, "store", slow)
    monkeypatch.setattr(Reader, "_ours", noticed)
    async with shop_on(failing_uri, **QUICK) as (settings, db), daemon(settings, db) as running:
        await db.orders.insert_many([sample.order(number) for number in range(1, 6)])
        await until_read(db)
        for number in (1, 2, 3):
            await record(db, number)
        await eventually(three_read, "three changes are read")
        async with failing(db, "getMore", {"times": 1}, errorCode=10334):
            await running.until_emitted("stream.reopened")
        for number in (4, 5):
            await record(db, number)
        await agree(db, {f"ord{number}": PAID for number in range(1, 6)})
        assert running.events("stream.failed") == []
        letters = await db.dead_letters.find().to_list()
        assert {letter["documentKey"]["_id"] for letter in letters} <= {"ord4", "ord5"}
