"""Scenarios 11, 12, 14, 15: streams that break, databases that are away, readers that die without a word."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import PyMongoError

from models.database import Database
from scripts.embedded import command, free_port, uri
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import PAID, daemon, record, shop_on, until_read, until_saved
from tests.support.failpoints import failing
from tests.support.mailbox import QUIET, email, mailbox
from tests.support.oracle import agree
from tests.support.proxy import proxy
from tests.support.server import until_listening
from tests.support.wait import PATIENCE, eventually

pytestmark = QUIET

QUICK = {"watcher": {"leader_lease": 0.8}}


@pytest.mark.asyncio
async def test_scenario_12_a_database_that_is_away_for_a_while_is_waited_out(
    db: Database, make_settings: SettingsMaker
) -> None:
    own = make_settings().mongodb
    async with mailbox() as box, proxy(own.uri.get_secret_value()) as (line, address):
        mongodb = {"uri": f"{address}&heartbeatFrequencyMS=500", "server_selection_seconds": 0.5}
        settings = make_settings(email=email(box), mongodb=mongodb, **QUICK)
        async with daemon(settings, db) as running:
            await db.orders.insert_many([sample.order(number) for number in (1, 2)])
            await record(db, 1)
            await until_saved(db)
            line.cut(refuse=True)
            await running.until_emitted("stream.failed", 2)
            await record(db, 2)

            async def not_ready() -> bool:
                return "the change stream does not answer" in running.parts.not_ready()

            await eventually(not_ready, "it is not ready", 20)
            line.resume()
            await agree(db, {"ord1": PAID, "ord2": PAID}, box)
            assert running.events("stream.gap") == []

            async def ready() -> bool:
                return running.parts.not_ready() == []

            await eventually(ready, "it is ready again", 20)


@pytest.mark.asyncio
async def test_scenario_12_a_database_that_is_killed_and_comes_back_loses_nothing(tmp_path: Path) -> None:
    port = free_port()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command(port, tmp_path / "data"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    process = start()
    try:
        until_listening(port, process)
        address = f"{uri(port)}&heartbeatFrequencyMS=500"
        async with shop_on(address, **QUICK) as (settings, db), daemon(settings, db) as running:
            await db.orders.insert_many([sample.order(number) for number in (1, 2)])
            await record(db, 1)
            await until_read(db)
            process.send_signal(signal.SIGKILL)
            process.wait()
            await running.until_emitted("stream.failed")
            process = start()

            async def back() -> bool:
                with contextlib.suppress(PyMongoError):
                    return bool(await db.client.admin.command("ping"))
                return False

            await eventually(back, "the database is back", PATIENCE)

            async def reads_again() -> bool:
                return len(running.events("stream.opened")) > 1

            await eventually(reads_again, "its pause is over and it reads again", PATIENCE)
            await record(db, 2)
            await agree(db, {"ord1": PAID, "ord2": PAID})
            assert running.events("stream.gap") == []
    finally:
        process.kill()
        process.wait()


@pytest.mark.asyncio
async def test_scenario_14_a_cursor_that_cannot_be_made_again_is_rebuilt_and_nothing_spins(failing_uri: str) -> None:
    """The driver's own attempt to resume fails too; the stream still calls itself alive."""
    async with shop_on(failing_uri, **QUICK) as (settings, db), daemon(settings, db) as running:
        await db.orders.insert_many([sample.order(number) for number in (1, 2, 3)])
        async with failing(db, ("getMore", "aggregate"), errorCode=10107):
            await running.until_emitted("stream.failed")
            for number in (1, 2, 3):
                await record(db, number)
            await running.until_emitted("stream.failed", 2)
        assert len(running.events("stream.failed")) <= 4, "it pauses between its attempts"
        await agree(db, dict.fromkeys(("ord1", "ord2", "ord3"), PAID))
        assert running.events("stream.gap") == []


def tasks_of(name: str) -> list[asyncio.Task[Any]]:
    """The running tasks whose coroutine has this qualified name."""
    found = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == name]
    assert found, f"no task runs {name}"
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize("part", ["Reader.run", "Reader._follow", "Reader._record", "Leadership._renew"])
async def test_scenario_15_a_reader_that_is_cancelled_is_rebuilt_from_its_token(
    db: Database, make_settings: SettingsMaker, part: str
) -> None:
    async with daemon(make_settings(**QUICK), db) as running:
        await db.orders.insert_many([sample.order(number) for number in (1, 2)])
        await record(db, 1)
        await until_saved(db)
        for task in tasks_of(part):
            task.cancel()
        await record(db, 2)
        await running.until_emitted("stream.opened", 2)
        await agree(db, {"ord1": PAID, "ord2": PAID})
        assert running.events("stream.opened")[-1]["resumed"]
        assert running.events("stream.failed")[0]["error"] == "TaskCancelled"
        assert not running.reading.done()
