"""`paylatch status` on real processes: with nothing running, with all well, and with something to look at."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from models.database import Database
from tests.acceptance.test_processes import KEY
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.desk import Desk
from tests.support.mailbox import QUIET, mailbox
from tests.support.processes import processes
from tests.support.wait import eventually

pytestmark = [pytest.mark.acceptance, QUIET]


@pytest.mark.asyncio
async def test_a_system_of_which_nothing_runs_is_not_well(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    said = await Desk(db, make_settings(), tmp_path).run("status")
    assert said.code == 1
    assert "none: nobody reads the change stream" in said.out
    assert "none yet" in said.out


@pytest.mark.asyncio
async def test_a_leader_that_was_killed_long_ago_reads_nothing_whatever_it_left_behind(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    await db.watcher_state.insert_one({"_id": "leader", "holder": "killed", "epoch": 3, "beat": 7})
    place = {"_id": "checkpoint", "clusterTime": "damaged", "updatedAt": datetime.now(UTC) - timedelta(minutes=5)}
    await db.watcher_state.insert_one(place)
    said = await Desk(db, make_settings(), tmp_path).run("status", "--json")
    assert (said.code, said.json["watcher"]["leading"], said.json["watcher"]["read_up_to"]) == (1, False, None)


@pytest.mark.asyncio
async def test_lag_and_place_are_seen_and_an_alert_makes_it_unwell(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    settings = make_settings()
    async with mailbox() as box, processes(settings, db, box, tmp_path) as running:
        await db.orders.insert_one(sample.order(1))
        serve, watch = await running.serve(), await running.watch()
        ports = {"http": serve.ports["private_port"], "watcher": watch.ports["private_port"]}
        seen_from = {name: {"private_port": port} for name, port in ports.items()}
        desk = PortDesk(db, make_settings(**seen_from), tmp_path)
        assert await running.post(serve, sample.captured(1), "E1") == 200
        await running.until_told(KEY)

        async def well() -> bool:
            return (await desk.run("status")).code == 0

        await eventually(well, "all is well", 30)
        said = (await desk.run("status", "--json")).json
        by_name = {process["name"]: process for process in said["processes"]}
        assert (said["well"], said["watcher"]["leading"], said["alerts"]) == (True, True, {})
        assert by_name["serve"]["ready"]
        assert set(by_name["watch"]["lag"]) == {"recorded", "sent"}
        assert said["watcher"]["checkpoint_age"] < 60
        assert await running.post(serve, sample.order_paid(2, amount=7), "E2") == 200
        assert await running.post(serve, b"[]", "E3") == 200
        told = await desk.run("status")
        assert (told.code, "1 event_unparseable" in told.out) == (1, True)
        assert "1 parked, 1 dead" in told.out
        assert "ready" in told.out


class PortDesk(Desk):
    """A desk on the host of the processes, whose private ports it knows."""

    @property
    def environment(self) -> dict[str, str]:
        ports = {
            "PAYLATCH_HTTP__PRIVATE_PORT": self.settings.http.private_port,
            "PAYLATCH_WATCHER__PRIVATE_PORT": self.settings.watcher.private_port,
        }
        return {**super().environment, **{name: json.dumps(port) for name, port in ports.items()}}
