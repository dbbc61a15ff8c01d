"""The leased reader on real change streams: every change becomes its rows once, whatever happens to the reader."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from pymongo import ReplaceOne, UpdateOne
from pymongo.errors import ServerSelectionTimeoutError

from models.clock import ServerClock
from models.database import Database, database
from models.errors import DatabaseUnfit, HistoryLost
from models.settings import Settings
from scripts.embedded import free_port, uri
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import (
    PAID,
    alerts,
    checkpoint,
    daemon,
    entry,
    first_started,
    record,
    rows,
    shop_on,
    told,
    until_read,
    until_saved,
    until_status,
    until_told,
)
from tests.support.endpoint import endpoint
from tests.support.failpoints import failing, failing_server
from tests.support.mailbox import QUIET, email, mailbox
from tests.support.wait import eventually
from watcher.ladder import pipeline
from watcher.notices import Notice, notices
from watcher.place import Place, PlaceKeeper, cluster_time

pytestmark = QUIET

QUICK = {"watcher": {"leader_lease": 0.8}}
"""A reader that died is replaced within a second."""
NAIVE = [{"$match": {"updateDescription.updatedFields.payment.status": "completed"}}]


@pytest.fixture(scope="module")
def failing_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with fail points."""
    with failing_server(tmp_path_factory.mktemp("failing")) as address:
        yield address


async def pending_order(db: Database, number: int = 1, **payment: Any) -> str:
    await db.orders.insert_one(sample.order(number, **payment))
    return f"ord{number}"


# --- what a write becomes ---


@pytest.mark.asyncio
async def test_a_filter_on_the_updated_status_matches_nothing_where_ours_gives_the_change(db: Database) -> None:
    await pending_order(db)
    async with (
        await db.handle.watch(NAIVE, max_await_time_ms=300) as naive,
        await db.handle.watch(pipeline("orders"), max_await_time_ms=300) as ours,
    ):
        await record(db, 1)
        change = await ours.try_next()
        assert change is not None
        assert change["updateDescription"]["updatedFields"]["payment.status"] == "completed"
        assert [notice.name for notice in notices(change)] == ["payment_completed"]
        assert await naive.try_next() is None


@pytest.mark.asyncio
async def test_a_payment_told_by_the_provider_reaches_the_customers_mailbox(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with mailbox() as box:
        settings = make_settings(email=email(box))
        async with daemon(settings, db), endpoint(settings) as shop:
            await pending_order(db)
            for _ in range(2):
                status, _ = await shop.post(sample.captured(1), "E1")
                assert status == 200
            await until_told(db, "ord1", *PAID)
            sent = await until_status(db, {"orderId": "ord1", "channel": "email"}, "sent")
    (mail,) = box.arrived
    assert mail.recipients == ("asha1@example.com",)
    assert mail.message_id == sent["providerMessageId"]


Write = Callable[[Database], Awaitable[Any]]
PAID_NOW: dict[str, Any] = {"payment.status": "completed"}
WHOLE: dict[str, Any] = {"status": "completed", "amount": 100}


async def in_a_transaction(db: Database) -> None:
    async with db.client.start_session() as session, await session.start_transaction():
        await db.orders.update_one({"_id": "ord1"}, {"$set": PAID_NOW}, session=session)


async def rolled_back(db: Database) -> None:
    async with db.client.start_session() as session:
        await session.start_transaction()
        await db.orders.update_one({"_id": "ord1"}, {"$set": PAID_NOW}, session=session)
        await session.abort_transaction()


async def replaced_twice(db: Database) -> None:
    for _ in range(2):
        await db.orders.replace_one({"_id": "ord1"}, {"payment": WHOLE})


async def reborn(db: Database) -> None:
    await db.orders.delete_one({"_id": "ord1"})
    await db.orders.insert_one({"_id": "ord1", "payment": WHOLE})


async def upserted(db: Database) -> None:
    await db.orders.delete_one({"_id": "ord1"})
    await db.orders.update_one({"_id": "ord1"}, {"$set": PAID_NOW}, upsert=True)


async def to_and_fro(db: Database) -> None:
    for status in ("completed", "pending", "completed"):
        await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment.status": status}})


async def merged(db: Database) -> None:
    await db.handle["imported"].insert_one({"_id": "ord1", "payment": WHOLE})
    onto = {"into": db.orders.name, "on": "_id", "whenMatched": "merge", "whenNotMatched": "insert"}
    await (await db.handle["imported"].aggregate([{"$merge": onto}])).to_list()


async def in_bulk(db: Database) -> None:
    """Twice paid in one command, and between them something else."""
    paid = UpdateOne({"_id": "ord1"}, {"$set": PAID_NOW})
    other = UpdateOne({"_id": "ord1"}, {"$set": {"payment.status": "pending"}})
    await db.orders.bulk_write([paid, other, ReplaceOne({"_id": "ord1"}, {"payment": WHOLE})])


async def replaced_after_our_push(db: Database) -> None:
    await record(db, 1)
    order = await db.orders.find_one({"_id": "ord1"})
    assert order is not None
    await db.orders.replace_one({"_id": "ord1"}, {**order, "note": "packed"})


WRITES: list[tuple[str, Write, tuple[str, ...]]] = [
    ("dotted set", lambda db: db.orders.update_one({"_id": "ord1"}, {"$set": PAID_NOW}), PAID),
    ("sub-document set", lambda db: db.orders.update_one({"_id": "ord1"}, {"$set": {"payment": WHOLE}}), PAID),
    ("replace", lambda db: db.orders.replace_one({"_id": "ord1"}, {"payment": WHOLE}), PAID),
    ("replace twice", replaced_twice, PAID),
    ("born paid", reborn, PAID),
    ("upsert", upserted, PAID),
    ("pipeline", lambda db: db.orders.update_one({"_id": "ord1"}, [{"$set": PAID_NOW}]), PAID),
    ("findAndModify", lambda db: db.orders.find_one_and_update({"_id": "ord1"}, {"$set": PAID_NOW}), PAID),
    ("find and replace", lambda db: db.orders.find_one_and_replace({"_id": "ord1"}, {"payment": WHOLE}), PAID),
    ("bulk", lambda db: db.orders.bulk_write([UpdateOne({"_id": "ord1"}, {"$set": PAID_NOW})]), PAID),
    ("bulk to and fro", in_bulk, PAID),
    ("merge stage", merged, PAID),
    ("pipeline of the payment", lambda db: db.orders.update_one({}, [{"$set": {"payment": WHOLE}}]), PAID),
    ("saved after our push", replaced_after_our_push, PAID),
    ("updateMany", lambda db: db.orders.update_many({}, {"$set": PAID_NOW}), PAID),
    ("transaction", in_a_transaction, PAID),
    ("rolled back", rolled_back, ()),
    ("to and fro", to_and_fro, PAID),
    ("same value again", lambda db: db.orders.update_one({}, {"$set": {"payment.status": "pending"}}), ()),
    ("another status", lambda db: db.orders.update_one({}, {"$set": {"payment.status": "cancelled"}}), ()),
    ("another field", lambda db: db.orders.update_one({}, {"$set": {"note": "completed"}}), ()),
    ("unset status", lambda db: db.orders.update_one({}, {"$unset": {"payment.status": ""}}), ()),
    ("unset payment", lambda db: db.orders.update_one({}, {"$unset": {"payment": ""}}), ()),
    ("delete", lambda db: db.orders.delete_one({"_id": "ord1"}), ()),
    ("our push", lambda db: record(db, 1), PAID),
    ("our pushes", lambda db: record(db, 1, entry(1, "payment_authorized"), entry(2)), PAID),
    (
        "failed",
        lambda db: db.orders.update_one({}, {"$set": {"payment.status": "failed"}}),
        ("payment_failed:email:customer",),
    ),
    (
        "refunded",
        lambda db: db.orders.update_one({}, {"$set": {"payment.status": "refunded"}}),
        ("payment_refunded:email:customer", "payment_refunded:inapp:admin"),
    ),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("write", "expected"), [each[1:] for each in WRITES], ids=[each[0] for each in WRITES])
async def test_scenario_18_every_shape_of_write_gives_exactly_its_rows(
    db: Database, make_settings: SettingsMaker, write: Write, expected: tuple[str, ...]
) -> None:
    async with daemon(make_settings(), db):
        await pending_order(db)
        await write(db)
        await until_read(db)
        assert await told(db, "ord1") == sorted(expected)
        assert await db.dead_letters.count_documents({}) == 0


@pytest.mark.asyncio
async def test_scenario_18_one_transaction_over_a_hundred_orders_tells_each_of_them_once(
    db: Database, make_settings: SettingsMaker
) -> None:
    routes = {"payment_completed": {"user": ["inapp"]}}
    async with daemon(make_settings(notifications={"routes": routes}), db):
        await db.orders.insert_many([sample.order(number) for number in range(100)])
        async with db.client.start_session() as session, await session.start_transaction():
            for number in range(100):
                await db.orders.update_one({"_id": f"ord{number}"}, {"$set": PAID_NOW}, session=session)
        await until_read(db)

        async def all_sent() -> bool:
            return await db.notification_log.count_documents({"orderId": {"$regex": "^ord"}, "status": "sent"}) == 100

        await eventually(all_sent, "a hundred rows are sent")
        assert len(await db.notification_log.distinct("orderId")) == 101
        assert await db.notifications.count_documents({"orderId": {"$regex": "^ord"}}) == 100


@pytest.mark.asyncio
async def test_orders_with_ids_of_any_type_have_rows_of_their_own(db: Database, make_settings: SettingsMaker) -> None:
    number = ObjectId()
    ids: list[Any] = [str(number), number, 5, "5", "int~5", {"shop": 1}, True, "a:b%"]
    async with daemon(make_settings(), db):
        await db.orders.insert_many([{"_id": one, "payment": WHOLE, "userId": "u"} for one in ids])
        await until_read(db)
        for one in ids:
            assert await told(db, one) == sorted(PAID), one
            await until_status(db, {"orderId": one, "channel": "inapp", "to": "user"}, "sent")


@pytest.mark.asyncio
async def test_scenario_19_paid_refunded_and_deleted_faster_than_it_is_read_is_recorded_in_full(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with daemon(make_settings(), db):
        pass
    await pending_order(db)
    await record(db, 1)
    refund = entry(2, "refund_processed", ref="rfnd_1", **{"from": "completed", "to": "refunded"})
    await record(db, 1, refund, status="refunded")
    await db.orders.delete_one({"_id": "ord1"})
    async with daemon(make_settings(), db):
        await until_told(db, "ord1", *PAID, "refund_processed:email:customer", "refund_processed:inapp:admin")
        for stored in await rows(db, "ord1"):
            ended = await until_status(db, {"_id": stored["_id"]})
            assert (ended["status"], ended["reason"]) == ("skipped", "order_deleted")


@pytest.mark.asyncio
async def test_changes_of_other_collections_tell_nothing(db: Database, make_settings: SettingsMaker) -> None:
    async with daemon(make_settings(), db):
        await db.handle["carts"].insert_one({"_id": "cart1", "payment": WHOLE})
        await until_read(db)
        assert await rows(db, "cart1") == []


def test_a_date_past_the_year_9999_in_an_order_can_be_read(make_settings: SettingsMaker) -> None:
    async def decoded() -> dict[str, Any]:
        async with shop_on(make_settings().mongodb.uri.get_secret_value()) as (_, db):
            raw = bson.encode({"paidAt": DatetimeMS(8_640_000_000_000_000), "at": datetime(2026, 1, 1, tzinfo=UTC)})
            return bson.decode(raw, codec_options=db.handle.codec_options)

    order = asyncio.run(decoded())
    assert order == {"paidAt": DatetimeMS(8_640_000_000_000_000), "at": datetime(2026, 1, 1, tzinfo=UTC)}


# --- the checkpoint ---


@pytest.mark.asyncio
async def test_scenario_25_rows_come_before_the_checkpoint_which_only_moves_forward(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves: list[tuple[Timestamp, int, set[Any]]] = []
    real = PlaceKeeper.save

    async def watched(self: PlaceKeeper, epoch: int, place: Place) -> bool:
        saves.append((place.cluster_time, place.seq, set(await db.notification_log.distinct("orderId"))))
        return await real(self, epoch, place)

    monkeypatch.setattr(PlaceKeeper, "save", watched)
    committed: dict[Any, Timestamp] = {}
    async with daemon(make_settings(watcher={"checkpoint_interval": 0.001}), db):
        async with await db.orders.watch() as mine:
            for number in range(20):
                await pending_order(db, number, status="completed")
                change = await mine.next()
                committed[change["documentKey"]["_id"]] = change["clusterTime"]
        await until_read(db)
    assert len(saves) > 5
    for moment, _, known in saves:
        assert {order for order, at in committed.items() if at <= moment} <= known
    seqs = [seq for _, seq, _ in saves]
    assert seqs == sorted(set(seqs))
    assert [moment for moment, _, _ in saves] == sorted(moment for moment, _, _ in saves)
    assert (await checkpoint(db))["seq"] == seqs[-1]


@pytest.mark.asyncio
async def test_scenario_25_a_late_write_of_an_earlier_place_or_leader_changes_nothing(db: Database) -> None:
    await first_started(db, hours_ago=0)
    clock = ServerClock(db.client)
    await clock.run_once()
    keeper = PlaceKeeper(db, clock, "hash")
    start = await keeper.adopt(2, await keeper.baseline())
    assert await keeper.save(2, replace(start, token={"_data": "second"}, seq=2))
    assert not await keeper.save(2, replace(start, token={"_data": "first"}, seq=1))
    await keeper.adopt(1, await keeper.baseline())
    assert not await keeper.save(1, replace(start, token={"_data": "of an older leader"}, seq=3))
    stored = await checkpoint(db)
    assert (stored["epoch"], stored["seq"], stored["token"]) == (2, 2, {"_data": "second"})


@pytest.mark.asyncio
async def test_scenario_24_the_checkpoint_moves_on_while_the_orders_are_quiet(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with daemon(make_settings(), db):
        await pending_order(db, status="completed")
        await until_read(db)
        before = await checkpoint(db)
        for number in range(20):
            await db.handle["elsewhere"].insert_one({"n": number})

        async def moved() -> bool:
            now = await checkpoint(db)
            return bool(now["token"] != before["token"] and now["seq"] > before["seq"])

        await eventually(moved, "the post-batch token is stored")
        assert (await checkpoint(db))["clusterTime"] >= before["clusterTime"]


@pytest.mark.asyncio
async def test_a_stop_stores_the_place_behind_everything_that_was_recorded(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with daemon(make_settings(watcher={"checkpoint_interval": 60.0}), db):
        await until_saved(db)
        await pending_order(db, 1, status="completed")
        await until_told(db, "ord1", *PAID)
    async with daemon(make_settings(), db) as second:
        await until_read(db)
    assert sum(event["changes"] for event in second.events("changes.recorded")) == 1, "only the mark"


@pytest.mark.asyncio
async def test_a_restart_resumes_after_the_token(db: Database, make_settings: SettingsMaker) -> None:
    async with daemon(make_settings(), db) as first:
        assert first.events("stream.opened") == [{"epoch": 1, "resumed": False}]
        await pending_order(db, 1, status="completed")
        await until_read(db)
    await pending_order(db, 2, status="completed")
    await db.handle["elsewhere"].insert_one({})
    later = await cluster_time(db)  # so that only the token can lead to the change
    await db.watcher_state.update_one({"_id": "checkpoint"}, {"$set": {"clusterTime": later}})
    async with daemon(make_settings(), db) as second:
        assert second.events("stream.opened") == [{"epoch": 2, "resumed": True}]
        await until_told(db, "ord2", *PAID)
        assert sum(event["rows"] for event in second.events("changes.recorded")) == len(PAID)
        assert await told(db, "ord1") == sorted(PAID)


@pytest.mark.asyncio
@pytest.mark.parametrize("token", [{"_data": "ABCD"}, {}, None, "text", 7])
async def test_scenario_08_a_token_of_another_pipeline_is_not_used_and_the_cluster_time_leaves_no_gap(
    db: Database, make_settings: SettingsMaker, token: Any
) -> None:
    """So does a value that is no token at all; an empty one would otherwise mean `from now`."""
    hashes = {"pipelineHash": "of an older version"} if token == {"_data": "ABCD"} else {}
    async with daemon(make_settings(), db):
        await pending_order(db, 1, status="completed")
        await until_read(db)
    await pending_order(db, 2, status="completed")
    await db.watcher_state.update_one({"_id": "checkpoint"}, {"$set": {**hashes, "token": token}})
    async with daemon(make_settings(), db):
        await until_told(db, "ord2", *PAID)
        await until_read(db)
        assert await told(db, "ord1") == sorted(PAID)
        after = await checkpoint(db)
    assert after["pipelineHash"] != "of an older version"
    assert after["token"]["_data"] != "ABCD"


# --- the first start ---


class KilledError(BaseException):
    """The process died here."""


def dies_at(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    def reached(name: str) -> None:
        if name == point:
            raise KilledError

    for module in ("stream", "place"):
        monkeypatch.setattr(f"watcher.{module}.crash_point", reached)


@pytest.mark.asyncio
async def test_scenario_10_the_baseline_is_stored_first_and_nothing_older_is_told(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pending_order(db, 1)
    await record(db, 1, entry(at=datetime.now(UTC) - timedelta(minutes=5)))
    await pending_order(db, 2, status="completed")
    with monkeypatch.context() as patched:
        dies_at(patched, "watcher.baseline_stored")
        with pytest.raises(KilledError):
            async with daemon(make_settings(**QUICK), db):
                pass
    states = {state["_id"] for state in await db.watcher_state.find().to_list()}
    assert states == {"leader", "baseline"}
    await pending_order(db, 3, status="completed")
    async with daemon(make_settings(**QUICK), db):
        await until_told(db, "ord3", *PAID)
        await db.orders.replace_one({"_id": "ord1"}, await db.orders.find_one({"_id": "ord1"}) or {})
        await until_read(db)
        assert await told(db, "ord1") == []
        assert await told(db, "ord2") == []


@pytest.mark.asyncio
async def test_a_fact_whose_transaction_was_open_at_the_first_start_is_told(
    db: Database, make_settings: SettingsMaker
) -> None:
    await first_started(db, hours_ago=0)
    await pending_order(db)
    await record(db, 1, entry(at=datetime.now(UTC) - timedelta(seconds=8)))
    async with daemon(make_settings(), db):
        await until_told(db, "ord1", *PAID)


@pytest.mark.asyncio
async def test_a_second_start_keeps_the_baseline(db: Database, make_settings: SettingsMaker) -> None:
    async with daemon(make_settings(), db):
        before = await db.watcher_state.find_one({"_id": "baseline"})
    async with daemon(make_settings(), db):
        assert await db.watcher_state.find_one({"_id": "baseline"}) == before


@pytest.mark.asyncio
@pytest.mark.parametrize("point", ["watcher.change_received", "watcher.rows_inserted", "watcher.checkpoint_saved"])
async def test_scenarios_01_02_03_wherever_a_reader_dies_the_next_one_tells_everything_once(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    async with mailbox() as box:
        settings = make_settings(email=email(box), **QUICK)
        async with daemon(settings, db):
            await pending_order(db)
            await until_read(db)

        async def dies_while_reading() -> None:
            with monkeypatch.context() as patched:
                async with daemon(settings, db) as running:
                    dies_at(patched, point)
                    await record(db, 1)
                    await running.reading

        with pytest.raises(KilledError):
            await dies_while_reading()
        async with daemon(settings, db):
            await until_told(db, "ord1", *PAID)
            await until_read(db)
            assert await told(db, "ord1") == sorted(PAID)
            await until_status(db, {"orderId": "ord1", "channel": "email"}, "sent")
    assert len(box.arrived) == 1


# --- changes that cannot be understood ---


@pytest.mark.asyncio
async def test_scenario_17_a_poison_change_is_kept_aside_with_its_token_and_the_stream_goes_on(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(change: Mapping[str, Any]) -> list[Notice]:
        if change["documentKey"]["_id"] == "ord2":
            raise ZeroDivisionError
        return notices(change)

    monkeypatch.setattr("watcher.record.notices", odd)
    async with daemon(make_settings(), db) as running:
        for number in (1, 2, 3):
            await pending_order(db, number, status="completed")
        await until_told(db, "ord3", *PAID)
        assert await told(db, "ord1") == sorted(PAID)
        assert await told(db, "ord2") == []
        (letter,) = await db.dead_letters.find().to_list()
        assert (letter["operation"], letter["documentKey"], letter["error"]) == (
            "insert",
            {"_id": "ord2"},
            "ZeroDivisionError",
        )
        async with await db.handle.watch(pipeline("orders"), start_after=letter["token"]) as after:
            assert (await after.next())["documentKey"] == {"_id": "ord3"}
        (alert,) = await alerts(db, "change_unreadable")
        assert letter["_id"].endswith(alert["ref"])
        assert [event["kind"] for event in running.events("alert.raised")] == ["change_unreadable"]
        assert running.events("stream.failed") == []


@pytest.mark.asyncio
async def test_a_history_entry_without_its_parts_is_poison_over_the_wire_too(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with daemon(make_settings(), db):
        await pending_order(db, 1)
        broken = entry(1, "refund_processed")
        del broken["ref"]
        await record(db, 1, broken)
        await until_read(db)
        (letter,) = await db.dead_letters.find().to_list()
        assert (letter["documentKey"], letter["error"]) == ({"_id": "ord1"}, "KeyError")
        await record(db, 1, entry(2))
        await until_told(db, "ord1", *PAID)


@pytest.mark.asyncio
async def test_an_order_that_lost_its_history_raises_an_alert(db: Database, make_settings: SettingsMaker) -> None:
    async with daemon(make_settings(), db):
        for number in (1, 2):
            await pending_order(db, number)
            await record(db, number, entry(1, "payment_failed", to="failed"), entry(2))
        await db.orders.update_one({"_id": "ord1"}, [{"$set": {"history": {"$slice": ["$history", 1]}}}])
        await db.orders.update_one({"_id": "ord2"}, {"$unset": {"history": ""}})
        await until_read(db)
        assert {alert["ref"] for alert in await alerts(db, "history_shortened")} == {"ord1", "ord2"}


@pytest.mark.asyncio
async def test_scenario_13_the_orders_being_dropped_or_renamed_raises_an_alert_and_the_stream_goes_on(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with daemon(make_settings(), db):
        await pending_order(db, 1, status="completed")
        await until_read(db)
        await db.orders.drop()
        await pending_order(db, 2, status="completed")
        await until_told(db, "ord2", *PAID)
        assert [alert["ref"] for alert in await alerts(db, "orders_collection_changed")] == ["drop"]
        await db.handle["rebuilt"].insert_one({"_id": "ord9", "payment": {"status": "pending"}})
        await db.handle["rebuilt"].rename(db.orders.name, dropTarget=True)
        await pending_order(db, 3, status="completed")
        await until_told(db, "ord3", *PAID)
        assert {alert["ref"] for alert in await alerts(db, "orders_collection_changed")} == {"drop", "rename"}
        assert await told(db, "ord1") == sorted(PAID)


# --- a database in trouble ---


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "how",
    [
        {"errorCode": 8},
        {"writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}},
    ],
    ids=["refused", "not confirmed"],
)
async def test_scenarios_17_25_trouble_with_the_outbox_stops_the_checkpoint_and_skips_nothing(
    failing_uri: str, how: dict[str, Any]
) -> None:
    async with shop_on(failing_uri, **QUICK) as (settings, db), daemon(settings, db) as running:
        await pending_order(db, 1)
        await pending_order(db, 2)
        await until_read(db)
        async with failing(db, "insert", **how):
            await record(db, 1)
            change = await newest(db)
            await running.until_emitted("stream.failed")
            assert (await checkpoint(db))["clusterTime"] < change
            await running.until_emitted("stream.failed", 2)
            assert (await checkpoint(db))["clusterTime"] < change
        await record(db, 2)
        await until_told(db, "ord2", *PAID)
        assert await told(db, "ord1") == sorted(PAID)
        assert await db.dead_letters.count_documents({}) == 0


@pytest.mark.asyncio
async def test_connections_that_break_while_rows_are_written_lose_nothing(failing_uri: str) -> None:
    async with shop_on(failing_uri, **QUICK) as (settings, db), daemon(settings, db):
        for number in (1, 2, 3):
            await pending_order(db, number)
        await until_read(db)
        async with failing(db, "insert", {"times": 3}, closeConnection=True):
            for number in (1, 2, 3):
                await record(db, number)
            for number in (1, 2, 3):
                await until_told(db, f"ord{number}", *PAID)
        assert await db.dead_letters.count_documents({}) == 0


async def newest(db: Database) -> Timestamp:
    """Of the server's newest change of orders, by a stream of our own."""
    last: Timestamp | None = None
    async with await db.orders.watch(start_at_operation_time=Timestamp(1, 1), max_await_time_ms=100) as changes:
        while (change := await changes.try_next()) is not None:
            last = change["clusterTime"]
    assert last is not None
    return last


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "how",
    [{"errorCode": 10107}, {"errorCode": 11600}, {"closeConnection": True}, {"errorCode": 8}],
    ids=["not primary", "shutting down", "disconnected", "unknown error"],
)
async def test_scenario_11_a_stream_that_breaks_goes_on_without_loss(failing_uri: str, how: dict[str, Any]) -> None:
    async with shop_on(failing_uri, **QUICK) as (settings, db), daemon(settings, db) as running:
        for number in (1, 2, 3):
            await pending_order(db, number)
        async with failing(db, "getMore", {"times": 3}, **how):
            for number in (1, 2, 3):
                await record(db, number)
            for number in (1, 2, 3):
                await until_told(db, f"ord{number}", *PAID)
        await until_read(db)
        assert running.events("stream.gap") == []


@pytest.mark.asyncio
async def test_cancelling_operations_that_wait_for_a_server_leaves_the_client_usable() -> None:
    settings = sample.settings(uri(free_port()), "nowhere", mongodb={"server_selection_seconds": 1.5})
    async with database(settings) as nowhere:
        asked = [asyncio.create_task(nowhere.orders.find_one({})) for _ in range(10)]

        async def waiting() -> bool:
            return bool(nowhere.client._topology._condition._waiters)

        await eventually(waiting, "the operations wait for a server")
        for _ in range(2):
            for task in asked[:5]:
                task.cancel()
            await asyncio.sleep(0)
        done, hanging = await asyncio.wait(asked, timeout=5)
        assert not hanging
        assert [task.cancelled() for task in asked] == [True] * 5 + [False] * 5
        assert {type(task.exception()) for task in done if not task.cancelled()} == {ServerSelectionTimeoutError}


@pytest.mark.asyncio
@pytest.mark.parametrize("command", ["aggregate", "getMore"])
@pytest.mark.parametrize(
    ("code", "kind"),
    [(286, HistoryLost), (280, HistoryLost), (9, HistoryLost), (50811, HistoryLost), (13, DatabaseUnfit)],
)
async def test_what_only_an_operator_can_mend_ends_the_reader_with_one_sentence(
    failing_uri: str, command: str, code: int, kind: type[Exception]
) -> None:
    async with shop_on(failing_uri, **QUICK) as (settings, db):
        async with daemon(settings, db):
            await until_saved(db)

        async def reads_to_its_end() -> None:
            async with daemon(settings, db) as running, asyncio.timeout(10):
                await asyncio.shield(running.reading)

        async with failing(db, command, errorCode=code):
            with pytest.raises(kind, match=rf"\(code {code}\)") as ended:
                await reads_to_its_end()
    assert "\n" not in str(ended.value)


@pytest.mark.asyncio
async def test_the_command_says_in_one_line_that_no_stream_can_be_read(failing_uri: str, tmp_path: Path) -> None:
    async with shop_on(failing_uri) as (settings, db), failing(db, "aggregate", errorCode=286):
        returncode, lines = await watched_to_its_end(settings, tmp_path)
    assert returncode == 4
    assert [line for line in lines if not line.startswith("{")] == [lines[-1]]
    assert lines[-1].startswith("paylatch: not even a new change stream can be read (code 286)")


async def watched_to_its_end(settings: Settings, folder: Path) -> tuple[int | None, list[str]]:
    """`paylatch watch` as a process: its exit code and what it said."""
    environment = {
        "PATH": os.environ["PATH"],
        "PAYLATCH_MONGODB__URI": settings.mongodb.uri.get_secret_value(),
        "PAYLATCH_MONGODB__DATABASE": settings.mongodb.database,
        "PAYLATCH_EMAIL__HOST": "127.0.0.1",
        "PAYLATCH_EMAIL__FROM": "shop@example.com",
        "PAYLATCH_WATCHER__PRIVATE_PORT": "0",
        "PAYLATCH_LOG__FORMAT": "json",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    code = "import sys; from scripts.cli import main; sys.argv[1:] = ['watch']; main()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code), env=environment, cwd=folder, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, words = await process.communicate()
    return process.returncode, words.decode().splitlines()


# --- one leader ---


@pytest.mark.asyncio
async def test_of_two_watchers_one_reads_both_send_and_each_row_is_sent_once(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with mailbox() as box:
        settings = make_settings(email=email(box, concurrency=1), watcher={"poll_interval": 0.05})
        async with daemon(settings, db) as leader, daemon(settings, db, leads=False) as standby:
            for number in range(40):
                await pending_order(db, number, status="completed")

            async def all_sent() -> bool:
                return await db.notification_log.count_documents({"status": "sent"}) == 40 * len(PAID)

            await eventually(all_sent, "every row is sent")
            assert standby.events("leader.won") == standby.events("changes.recorded") == []
            handled = [[event["key"] for event in one.events("notification.handled")] for one in (leader, standby)]
            assert all(handled), "both send"
            keys = [key for one in handled for key in one]
            assert len(keys) == len(set(keys)) == 40 * len(PAID)
    assert sorted(mail.recipients[0] for mail in box.arrived) == sorted(f"asha{n}@example.com" for n in range(40))
    assert await db.notifications.count_documents({}) == 80


@pytest.mark.asyncio
async def test_a_leader_that_stops_hands_over_at_once(db: Database, make_settings: SettingsMaker) -> None:
    settings = make_settings(watcher={"leader_lease": 24.0})  # longer than anybody waits here
    async with daemon(settings, db) as leader, daemon(settings, db, leads=False) as standby:
        await leader.stop()
        await standby.until_emitted("leader.won")
        await pending_order(db, 1, status="completed")
        await until_told(db, "ord1", *PAID)
        assert standby.events("stream.opened") == [{"epoch": 2, "resumed": True}]


@pytest.mark.asyncio
async def test_a_leader_that_shows_no_life_is_replaced_and_can_no_longer_move_the_checkpoint(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(watcher={"leader_lease": 1.0})
    async with daemon(settings, db) as leader, daemon(settings, db, leads=False) as standby:
        await pending_order(db, 1, status="completed")
        await until_read(db)
        monkeypatch.setattr(leader.parts.leadership._lease, "renew", asyncio.Event().wait)
        won = await standby.until_emitted("leader.won")
        assert won == {"epoch": 2}
        assert leader.parts.leadership._reader is not standby.parts.leadership._reader
        await standby.until_emitted("stream.opened")
        failed = await leader.until_emitted("stream.failed")
        assert failed["error"] == "LeadershipLost"
        taken = await checkpoint(db)
        assert taken["epoch"] == 2
        keeper = leader.parts.leadership._reader._keeper
        assert not await keeper.save(1, Place(None, Timestamp(1, 1), taken["seq"] + 1000, None))
        after = await checkpoint(db)
        assert after["clusterTime"] >= taken["clusterTime"]
        assert after["seq"] < taken["seq"] + 1000
        await pending_order(db, 2, status="completed")
        await until_told(db, "ord2", *PAID)
        assert await told(db, "ord1") == sorted(PAID)
