"""Scenarios 7, 8, 9: whatever the server no longer has, every transition has its rows, and the process goes on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId, Timestamp
from prometheus_client import generate_latest

from models.clock import ServerClock
from models.database import Database
from models.errors import HistoryLost
from models.telemetry import Telemetry
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import (
    PAID,
    Daemon,
    alerts,
    checkpoint,
    daemon,
    entry,
    record,
    rows,
    shop_on,
    told,
    until_read,
    until_saved,
    until_told,
)
from tests.support.failpoints import failing
from tests.support.mailbox import QUIET, email, mailbox
from tests.support.oracle import agree
from tests.support.processes import processes
from tests.support.server import server
from tests.support.wait import eventually
from watcher.ladder import Ladder, pipeline
from watcher.observe import RowCensus
from watcher.outbox import Outbox
from watcher.place import cluster_time
from watcher.repair import Repair
from watcher.sweep import Sweeper, unlimited

pytestmark = QUIET

QUICK = {"watcher": {"leader_lease": 0.8}}
REFUNDED = ("payment_refunded:email:customer", "payment_refunded:inapp:admin")
FAILED = ("payment_failed:email:customer",)
TRUTH = {"ord1": PAID, "ord2": PAID, "ord3": FAILED, "ord4": REFUNDED, "ord5": PAID, "ord6": ()}
SHORT = ("--oplog-max-entries", "50", "--oplog-retention-seconds", "1")


async def read_up_to_now(settings: Any, db: Database) -> None:
    """A watcher that was here, saw order 1 being paid, and stopped with a saved place."""
    async with daemon(settings, db):
        await db.orders.insert_many([sample.order(number) for number in (1, 2, 3, 4, 6)])
        await record(db, 1)
        await until_told(db, "ord1", *PAID)
        await until_read(db)
        await until_saved(db)


async def transitions(db: Database) -> None:
    """Our own write, the merchant's in three shapes, and one that says nothing; together they make `TRUTH`."""
    await record(db, 2)
    await db.orders.update_one({"_id": "ord3"}, {"$set": {"payment.status": "failed"}})
    await db.orders.replace_one({"_id": "ord4"}, {**sample.order(4, status="refunded")})
    await db.orders.insert_one(sample.order(5, status="completed"))
    await db.orders.update_one({"_id": "ord6"}, {"$set": {"note": "completed"}})


async def of_another_cluster(db: Database) -> None:
    """Nothing but a sweep can find what happened after a place that is of no use."""
    await db.watcher_state.update_one({"_id": "checkpoint"}, {"$set": {"cluster.setName": "another"}})


def gaps(running: Daemon) -> int:
    found = re.search(rb"paylatch_stream_gaps_total (\d+)", generate_latest(running.parts.registry))
    assert found is not None
    return int(found[1])


async def until_swept(running: Daemon) -> dict[str, Any]:
    return await running.until_emitted("sweep.done")


async def forgotten(db: Database, token: Any) -> None:
    """Write until the server has forgotten the token."""

    async def check() -> bool:
        await db.handle["elsewhere"].insert_many([{"n": number} for number in range(100)])
        try:
            async with await db.handle.watch(pipeline("orders"), start_after=token):
                return False
        except Exception as error:  # noqa: BLE001 - its code is looked at
            return getattr(error, "code", None) == 286

    await eventually(check, "the server has forgotten the token")


@pytest.mark.asyncio
async def test_scenario_07_a_history_that_rolled_over_is_swept_and_the_process_goes_on(tmp_path: Path) -> None:
    async with mailbox() as box:
        with server(tmp_path, extra=SHORT) as address:
            async with shop_on(address, email=email(box), **QUICK) as (settings, db):
                await read_up_to_now(settings, db)
                place = await checkpoint(db)
                await transitions(db)
                await forgotten(db, place["token"])
                async with daemon(settings, db) as running:
                    await agree(db, TRUTH, box)
                    await until_swept(running)
                    assert gaps(running) == 1
                    assert running.events("stream.failed") == []
                    await db.orders.insert_one(sample.order(7, status="completed"))
                    await agree(db, {**TRUTH, "ord7": PAID}, box)
                assert {row["_id"] for row in await rows(db, "ord7", gap=True)} == set()
                assert len(await rows(db, "ord2", gap=True)) == len(PAID)
                (alert,) = await alerts(db, "stream_gap")
                assert (alert["ref"], alert["count"]) == ("code 286", 1)
                assert await db.watcher_state.find_one({"_id": "gap"}) is None


@pytest.mark.asyncio
async def test_scenario_07_a_history_lost_at_the_first_answer_is_swept(failing_uri: str) -> None:
    async with shop_on(failing_uri, **QUICK) as (settings, db):
        await read_up_to_now(settings, db)
        await transitions(db)
        async with failing(db, "getMore", {"times": 1}, errorCode=286), daemon(settings, db) as running:
            await agree(db, TRUTH)
            await until_swept(running)
            assert gaps(running) == 1
            assert running.events("stream.failed") == []


@pytest.mark.asyncio
@pytest.mark.parametrize("command", ["aggregate", "getMore"])
async def test_scenario_07_a_server_that_loses_every_history_ends_the_process_and_keeps_the_gap(
    failing_uri: str, command: str
) -> None:
    async with shop_on(failing_uri, **QUICK) as (settings, db):
        await read_up_to_now(settings, db)
        await transitions(db)

        async def reads_to_its_end() -> None:
            async with daemon(settings, db) as running:
                await running.reading

        async with failing(db, command, errorCode=286):
            with pytest.raises(HistoryLost):
                await reads_to_its_end()
        async with daemon(settings, db):
            await agree(db, TRUTH)


async def nothing(_: object) -> dict[str, int]:
    return {}


@pytest.mark.asyncio
@pytest.mark.parametrize("command", ["aggregate", "getMore"])
async def test_scenario_08_a_stream_of_another_pipeline_goes_on_by_cluster_time_without_a_gap(
    failing_uri: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowCensus, "run_once", nothing)  # its counts are aggregates too
    async with shop_on(failing_uri, **QUICK) as (settings, db):
        await read_up_to_now(settings, db)
        await transitions(db)
        async with failing(db, command, {"times": 1}, errorCode=280), daemon(settings, db) as running:
            await agree(db, TRUTH)
            done = await until_swept(running)
            assert (done["reason"], gaps(running)) == ("code 280", 0)
            assert await alerts(db, "stream_gap") == []


@pytest.mark.asyncio
async def test_scenario_08_a_changed_pipeline_hash_is_swept_too_and_holds_nothing_back(
    db: Database, make_settings: SettingsMaker
) -> None:
    settings = make_settings(**QUICK)
    await read_up_to_now(settings, db)
    await transitions(db)
    await db.watcher_state.update_one({"_id": "checkpoint"}, {"$set": {"pipelineHash": "older"}})
    async with daemon(settings, db) as running:
        await agree(db, TRUTH)
        done = await until_swept(running)
        assert (done["reason"], gaps(running)) == ("another pipeline", 0)
        assert await db.notification_log.count_documents({"gap": True}) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("token", [{"_data": "corrupt"}, {"_data": "ABCD"}, {"_data": ""}, {"other": 1}, "text", {}])
async def test_scenario_09_a_damaged_token_is_refused_told_and_swept(
    db: Database, make_settings: SettingsMaker, token: Any
) -> None:
    settings = make_settings(**QUICK)
    await read_up_to_now(settings, db)
    await db.watcher_state.update_one({"_id": "checkpoint"}, {"$set": {"token": token}})
    await transitions(db)
    async with daemon(settings, db) as running:
        await agree(db, TRUTH)
        await until_swept(running)
        assert gaps(running) == len(await alerts(db, "stream_gap")) == 1


@contextlib.asynccontextmanager
async def useless_place(db: Database, settings: Any, change: dict[str, Any]) -> AsyncIterator[Daemon]:
    await read_up_to_now(settings, db)
    await transitions(db)
    await db.watcher_state.update_one({"_id": "checkpoint"}, {"$set": change})
    async with daemon(settings, db) as running:
        yield running


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cluster.setName": "another"}, "another cluster"),
        ({"cluster.collection": "another"}, "another cluster"),
        ({"clusterTime": Timestamp(int(datetime.now(UTC).timestamp()) + 86_400, 1)}, "ahead of the server"),
        ({"clusterTime": "yesterday"}, "damaged checkpoint"),
    ],
    ids=["replica set", "collection", "ahead", "damaged"],
)
async def test_scenario_09_a_place_that_cannot_be_of_this_server_is_refused_told_and_swept(
    db: Database, make_settings: SettingsMaker, change: dict[str, Any], reason: str
) -> None:
    async with mailbox() as box:
        async with useless_place(db, make_settings(email=email(box), **QUICK), change) as running:
            await agree(db, TRUTH, box)
            await until_swept(running)
            assert gaps(running) == 1
            assert [alert["ref"] for alert in await alerts(db, "stream_gap")] == [reason]
            assert running.events("stream.opened") == [{"epoch": 2, "resumed": False}]
        settled = await checkpoint(db)
        assert settled["clusterTime"] <= await cluster_time(db)
    async with daemon(make_settings(**QUICK), db) as third:
        assert third.events("stream.gap") == [], "the gap is over"


@pytest.mark.asyncio
async def test_scenario_09_a_stream_that_stays_silent_is_told_and_given_up_for_a_sweep(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an embedded server's is behind a token from its future: opened without complaint, and nothing ever comes."""
    settings = make_settings(watcher={"leader_lease": 0.8, "heartbeat_interval": 0.1, "stalled_after": 0.4})
    await read_up_to_now(settings, db)
    await transitions(db)
    deaf, opens = iter([True, True]), Ladder._watch  # behind the token, and behind the cluster time

    async def silent(self: Ladder, stages: Any) -> Any:
        if next(deaf, False):
            stages = [{"$match": {"operationType": "drop"}}, *stages]
        return await opens(self, stages)

    monkeypatch.setattr(Ladder, "_watch", silent)
    async with daemon(settings, db) as running:
        await agree(db, TRUTH)
        await until_swept(running)
        assert gaps(running) >= 1
        assert {alert["ref"] for alert in await alerts(db, "stream_gap")} == {"silent"}
        assert len(await alerts(db, "stream_stalled")) == 1

        async def ready() -> bool:
            return running.parts.not_ready() == []

        await eventually(ready, "a heartbeat has arrived in the new stream")


@pytest.mark.asyncio
async def test_a_sweep_that_was_cut_off_is_done_by_the_next_reader(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(**QUICK)
    await read_up_to_now(settings, db)
    await transitions(db)
    await of_another_cluster(db)

    async def never(*_: Any, **__: Any) -> dict[str, int]:
        raise ConnectionResetError

    with monkeypatch.context() as patched:
        patched.setattr(Sweeper, "sweep", never)
        async with daemon(settings, db) as running:
            await running.until_emitted("duty.failed")
            await until_saved(db)
            await until_read(db)
    assert await told(db, "ord2") == []
    assert await db.watcher_state.find_one({"_id": "gap"}) is not None
    async with daemon(settings, db) as running:
        await agree(db, TRUTH)
        assert running.events("stream.gap") == [], "it is the same gap"


@pytest.mark.asyncio
async def test_a_gap_that_is_noted_while_another_one_is_mended_is_mended_after_it(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, quiet = ServerClock(db.client), Telemetry()
    await clock.run_once()
    outbox = Outbox(db, clock, make_settings().notifications, {"inapp"})
    sweeper = Sweeper(db, clock, outbox, Repair(db, clock, quiet), 60.0, quiet, unlimited)
    now, mend = clock.now(), sweeper._mend
    await sweeper.owe(now, "first", gap=True)

    async def meanwhile(noted: dict[str, Any]) -> dict[str, int]:
        await sweeper.owe(now + timedelta(seconds=9), "second", gap=False)
        return await mend(noted)

    with monkeypatch.context() as patched:
        patched.setattr(sweeper, "_mend", meanwhile)
        await sweeper.run_once()
    noted = await db.watcher_state.find_one({"_id": "gap"})
    assert noted is not None
    since = noted["since"] - now
    assert (noted["reason"], noted["gap"], abs(since) < timedelta(seconds=1)) == ("second", True, True)
    await sweeper.run_once()
    assert await db.watcher_state.find_one({"_id": "gap"}) is None


@pytest.mark.asyncio
async def test_a_sweep_tells_nothing_that_is_older_than_the_first_start(
    db: Database, make_settings: SettingsMaker
) -> None:
    settings = make_settings(**QUICK)
    long_ago = datetime.now(UTC) - timedelta(days=3)
    legacy: list[Any] = ["ord11", 12, ObjectId(), {"shop": 1}]
    await db.orders.insert_many([{"_id": one, "payment": {"status": "completed"}} for one in legacy])
    await db.orders.insert_one(sample.order(13))
    await record(db, 13, entry(at=long_ago))
    await read_up_to_now(settings, db)
    await transitions(db)
    await db.orders.update_one({"_id": 12}, {"$set": {"payment.status": "refunded"}})
    await of_another_cluster(db)
    async with daemon(settings, db) as running:
        await agree(db, {**TRUTH, "ord13": ()})
        await until_swept(running)
        assert [await told(db, one) for one in legacy] == [[], sorted(REFUNDED), [], []]


@pytest.mark.asyncio
async def test_what_is_too_old_when_a_sweep_finds_it_is_born_expired(
    db: Database, make_settings: SettingsMaker
) -> None:
    settings = make_settings(**QUICK)
    await read_up_to_now(settings, db)
    await db.watcher_state.update_one({"_id": "baseline"}, {"$set": {"at": datetime.now(UTC) - timedelta(days=9)}})
    await record(db, 2, entry(at=datetime.now(UTC) - timedelta(days=2)))
    await of_another_cluster(db)
    async with daemon(settings, db) as running:
        await until_swept(running)
        assert {row["status"] for row in await rows(db, "ord2")} == {"expired"}


@pytest.mark.asyncio
async def test_a_gap_is_announced_before_its_rows_are_made(db: Database, make_settings: SettingsMaker) -> None:
    settings = make_settings(**QUICK)
    await read_up_to_now(settings, db)
    await transitions(db)
    await of_another_cluster(db)
    told_of: list[tuple[str, int]] = []

    async def on_gap(now: datetime, reason: str) -> None:
        assert now.tzinfo is not None
        told_of.append((reason, len(await rows(db, "ord2"))))

    async with daemon(settings, db, leads=False) as running:
        running.parts.leadership._reader._sweeper._on_gap = on_gap
        await until_swept(running)
    assert told_of == [("another cluster", 0)]


@pytest.mark.acceptance
@pytest.mark.asyncio
async def test_scenario_09_a_real_process_with_a_place_of_another_cluster_goes_on_and_says_so(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path) as running:
        await db.orders.insert_many([sample.order(number) for number in (1, 2)])
        first = await running.watch()
        await until_saved(db)
        await record(db, 1)
        await running.until_told("order:ord1:payment_completed:email:customer")
        first.kill()
        await first.process.wait()
        await record(db, 2)
        await of_another_cluster(db)
        second = await running.watch()
        await running.until_told("order:ord2:payment_completed:email:customer")
        mail = ("payment_completed:email:customer",)
        await agree(db, {"ord1": mail, "ord2": mail}, box)
        assert second.process.returncode is None
        (said,) = [line for line in second.lines() if line["event"] == "stream.gap"]
        assert (said["reason"], said["level"]) == ("another cluster", "warning")
