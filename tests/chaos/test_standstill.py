"""Scenarios 24 and 25: a quiet shop, a stream that stands still, a place that cannot be stored."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure

from models.clock import ServerClock
from models.database import Database
from models.errors import DatabaseUnfit
from models.telemetry import Telemetry
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import PAID, alerts, checkpoint, daemon, record, shop_on, until_read, until_saved
from tests.support.failpoints import failing
from tests.support.mailbox import QUIET
from tests.support.oracle import agree
from tests.support.server import server
from tests.support.wait import eventually
from watcher.heartbeat import Heartbeat
from watcher.ladder import pipeline
from watcher.notices import AlertNotice
from watcher.outbox import Outbox
from watcher.place import Place, PlaceKeeper
from watcher.stream import Reader

pytestmark = QUIET

QUICK = {"watcher": {"leader_lease": 0.8}}
ALERT = 5.0


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


async def heartbeat(db: Database) -> tuple[Heartbeat, Clock]:
    clock, monotonic = ServerClock(db.client), Clock()
    await clock.run_once()
    return Heartbeat(db, clock, ALERT, Telemetry(), monotonic), monotonic


@pytest.mark.asyncio
async def test_scenario_24_a_heartbeat_moves_the_checkpoint_of_a_quiet_shop_and_tells_nobody(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with daemon(make_settings(watcher={"heartbeat_interval": 0.1}), db) as running:
        first = await until_saved(db)

        async def moved() -> bool:
            return bool((await checkpoint(db))["clusterTime"] > first["clusterTime"])

        await eventually(moved, "the cluster time moves on")
        assert running.parts.not_ready() == []
        assert running.events("changes.recorded") == []
        assert await db.notification_log.count_documents({}) == await db.dead_letters.count_documents({}) == 0
        assert "paylatch_notification_lag_seconds{" not in generate_latest(running.parts.registry).decode()
        await db.heartbeat.drop()
        await db.orders.insert_one(sample.order(1, status="completed"))
        await agree(db, {"ord1": PAID})
        assert await alerts(db, "orders_collection_changed") == []


@pytest.mark.asyncio
async def test_scenario_24_a_quiet_shop_resumes_when_the_history_of_its_last_change_is_gone(
    tmp_path: Path,
) -> None:
    short = ("--oplog-max-entries", "50", "--oplog-retention-seconds", "1")
    with server(tmp_path, extra=short) as address:
        async with shop_on(address, watcher={"leader_lease": 0.8, "heartbeat_interval": 0.1}) as (settings, db):
            async with daemon(settings, db):
                await db.orders.insert_one(sample.order(1, status="completed"))
                await until_read(db)
                last_change = (await checkpoint(db))["token"]

                async def rolled_over() -> bool:
                    await db.handle["elsewhere"].insert_many([{"n": number} for number in range(100)])
                    try:
                        async with await db.handle.watch(pipeline("orders"), start_after=last_change):
                            return False
                    except OperationFailure as error:
                        return error.code == 286

                await eventually(rolled_over, "the server has forgotten the last change")
            async with daemon(settings, db) as second:
                await db.orders.insert_one(sample.order(2, status="completed"))
                await agree(db, {"ord1": PAID, "ord2": PAID})
                assert second.events("stream.opened") == [{"epoch": 2, "resumed": True}]
                assert second.events("stream.gap") == []


@pytest.mark.asyncio
async def test_scenario_24_a_standby_writes_no_heartbeat(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(watcher={"heartbeat_interval": 0.1, "leader_lease": 0.8})
    beats: list[Heartbeat] = []
    real = Heartbeat.run_once

    async def counted(self: Heartbeat) -> dict[str, int]:
        beats.append(self)
        return await real(self)

    monkeypatch.setattr(Heartbeat, "run_once", counted)

    async def beaten(times: int, hearts: int) -> None:
        async def check() -> bool:
            return len(beats) >= times

        await eventually(check, f"{times} beats")
        assert len({id(heart) for heart in beats}) == hearts

    async with daemon(settings, db) as leader, daemon(settings, db, leads=False) as standby:
        await beaten(5, hearts=1)
        await leader.stop()
        beats.clear()
        await standby.until_emitted("stream.opened")
        await beaten(2, hearts=1)


@pytest.mark.asyncio
async def test_scenario_24_a_missing_heartbeat_is_told_once_until_one_arrives(db: Database) -> None:
    heart, monotonic = await heartbeat(db)
    heart.opened()
    await heart.run_once()
    monotonic.now += ALERT
    assert not heart.stalled
    monotonic.now += 0.1
    for _ in range(3):
        await heart.run_once()
        assert heart.stalled
    (alert,) = await alerts(db, "stream_stalled")
    assert alert["count"] == 1
    heart.opened()
    assert heart.stalled, "a new stream is not trusted before it brings something"
    assert not heart.missing, "but it has its time, too"
    heart.arrived()
    assert not heart.stalled


@pytest.mark.asyncio
async def test_scenario_24_a_beat_that_arrives_before_its_write_is_answered_is_not_missing(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    heart, monotonic = await heartbeat(db)
    real = AsyncCollection.update_one

    async def overtaken(self: AsyncCollection[Any], *arguments: Any, **options: Any) -> Any:
        result = await real(self, *arguments, **options)
        heart.arrived()
        return result

    monkeypatch.setattr(AsyncCollection, "update_one", overtaken)
    await heart.run_once()
    monotonic.now += 10 * ALERT
    assert not heart.missing


@pytest.mark.asyncio
async def test_scenario_24_a_heartbeat_that_cannot_be_written_is_not_missing(failing_uri: str) -> None:
    async with shop_on(failing_uri) as (_, db):
        heart, monotonic = await heartbeat(db)
        async with failing(db, "update", errorCode=13):
            with pytest.raises(OperationFailure):
                await heart.run_once()
        monotonic.now += 10 * ALERT
        assert not heart.stalled


@pytest.mark.asyncio
async def test_scenario_24_a_stream_that_stands_still_is_not_ready_and_is_told(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream hangs: not even an empty answer comes, so only the duty beside it can say so."""
    held = asyncio.Event()
    check = Reader._ours

    async with daemon(make_settings(watcher={"heartbeat_interval": 0.1, "stalled_after": 0.5}), db) as running:
        await until_saved(db)

        def deaf(self: Reader, change: dict[str, Any]) -> dict[str, Any] | None:
            return check(self, change) if held.is_set() else None

        monkeypatch.setattr(Reader, "_ours", deaf)

        async def told() -> bool:
            return bool(await alerts(db, "stream_stalled"))

        await eventually(told, "it is told")

        async def not_ready() -> bool:
            return "the change stream stands still" in running.parts.not_ready()

        await eventually(not_ready, "it is not ready")
        held.set()

        async def ready() -> bool:
            return running.parts.not_ready() == []

        await eventually(ready, "it is ready again")


@pytest.mark.asyncio
async def test_scenario_25_a_place_that_is_stored_slowly_holds_the_reader_up_and_is_told(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watcher.stream.READ_AHEAD", 3)
    monkeypatch.setattr("watcher.stream.BATCH", 2)
    release, saves, real = asyncio.Event(), [0], PlaceKeeper.save

    async def slow(self: PlaceKeeper, epoch: int, place: Place) -> bool:
        saves[0] += 1
        await release.wait()
        return await real(self, epoch, place)

    quick = {"heartbeat_interval": 0.1, "stalled_after": 0.5, "checkpoint_interval": 0.001}
    async with daemon(make_settings(watcher=quick), db) as running:
        await db.orders.insert_many([sample.order(number) for number in range(20)])
        await until_read(db)
        monkeypatch.setattr(PlaceKeeper, "save", slow)

        async def under_way() -> bool:
            return saves[0] == 1  # of a heartbeat; from now on nothing else moves the place

        await eventually(under_way, "a save is under way")
        before = await checkpoint(db)
        for number in range(20):
            await record(db, number)

        async def told() -> bool:
            return bool(await alerts(db, "checkpoint_delayed"))

        await eventually(told, "it is told")
        assert await db.notification_log.count_documents({"orderId": {"$regex": "^ord"}}) <= 2 * len(PAID)
        assert (await checkpoint(db))["seq"] == before["seq"]
        assert saves[0] == 1, "it waits for the one that is under way"
        release.set()
        await agree(db, {f"ord{number}": PAID for number in range(20)})
        assert running.events("stream.gap") == []


@pytest.mark.asyncio
async def test_scenario_25_a_log_that_is_written_slowly_holds_the_reader_up_and_is_told(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watcher.stream.READ_AHEAD", 3)
    monkeypatch.setattr("watcher.stream.BATCH", 2)
    release, batches, real = asyncio.Event(), list[int](), Outbox.add

    async def slow(self: Outbox, notices: list[Any], since: datetime, *, gap: bool = False) -> int:
        if not any(isinstance(notice, AlertNotice) for notice in notices):
            batches.append(len(notices))
            await release.wait()
        return await real(self, notices, since, gap=gap)

    async with daemon(make_settings(watcher={"heartbeat_interval": 0.1, "stalled_after": 0.5}), db) as running:
        await db.orders.insert_many([sample.order(number) for number in range(20)])
        await until_read(db)
        await until_saved(db)
        monkeypatch.setattr(Outbox, "add", slow)
        for number in range(20):
            await record(db, number)

        async def told() -> bool:
            return bool(await alerts(db, "checkpoint_delayed"))

        await eventually(told, "it is told")
        before = await checkpoint(db)
        assert await db.notification_log.count_documents({"orderId": {"$regex": "^ord"}}) == 0
        assert len(batches) == 1, "it waits for the one that is under way"
        release.set()
        await agree(db, {f"ord{number}": PAID for number in range(20)})
        assert running.events("stream.gap") == []
        assert max(batches) <= 2
        assert (await checkpoint(db))["seq"] > before["seq"]


@pytest.mark.asyncio
async def test_scenario_25_a_place_that_cannot_be_stored_stops_the_reader_and_is_told(
    failing_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, places = PlaceKeeper.save, []

    async def refused(self: PlaceKeeper, epoch: int, place: Place) -> bool:
        places.append(place.cluster_time)
        raise OperationFailure("no", 8)

    async with shop_on(failing_uri, **QUICK) as (settings, db), daemon(settings, db) as running:
        await db.orders.insert_many([sample.order(number) for number in (1, 2)])
        await until_read(db)
        before = await until_saved(db)
        monkeypatch.setattr(PlaceKeeper, "save", refused)
        await record(db, 1)
        await running.until_emitted("stream.failed", 2)
        assert (await checkpoint(db))["token"] == before["token"]
        (alert,) = await alerts(db, "checkpoint_delayed")
        assert alert["count"] == 1
        await record(db, 2)
        monkeypatch.setattr(PlaceKeeper, "save", real)
        await agree(db, {"ord1": PAID, "ord2": PAID})
        assert (await checkpoint(db))["seq"] > before["seq"]


@pytest.mark.asyncio
@pytest.mark.parametrize("code", [13, 40573])
async def test_scenario_25_what_no_retry_can_mend_fails_fast_with_one_sentence(failing_uri: str, code: int) -> None:
    async with shop_on(failing_uri, **QUICK) as (settings, db):

        async def reads_to_its_end() -> None:
            async with daemon(settings, db, leads=False) as running:
                await running.reading

        async with failing(db, "aggregate", errorCode=code):
            with pytest.raises(DatabaseUnfit, match=rf"\(code {code}\)") as ended:
                await reads_to_its_end()
    assert "\n" not in str(ended.value)
