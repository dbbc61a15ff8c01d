"""An alert's life: open, acknowledged or resolved, and open again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from models.alerts import ADVICE, CONDITIONS, QUIET_AFTER, acknowledge, record_alert, resolve_quiet
from models.database import Database
from tests.conftest import SettingsMaker
from tests.support.desk import Desk

NOW = datetime(2026, 10, 1, 12, tzinfo=UTC)
LATER = NOW + QUIET_AFTER + timedelta(seconds=1)


async def alert(db: Database, kind: str, ref: str) -> dict[str, Any]:
    found = await db.alerts.find_one({"_id": f"{kind}:{ref}"})
    assert found is not None
    return found


@pytest.mark.asyncio
async def test_an_alert_is_one_row_however_often_it_happens_and_is_open(db: Database) -> None:
    await asyncio.gather(*(record_alert(db, "event_dead", "E1", NOW) for _ in range(10)))
    row = await alert(db, "event_dead", "E1")
    assert (row["count"], row["state"], row["firstAt"]) == (10, "open", NOW)


@pytest.mark.asyncio
async def test_only_one_operator_acknowledges_and_a_repetition_leaves_it_acknowledged(db: Database) -> None:
    await record_alert(db, "event_dead", "E1", NOW)
    done = await asyncio.gather(*(acknowledge(db, "event_dead:E1", who, "mine", NOW) for who in ("asha", "ravi")))
    assert sorted(done) == [False, True]
    await record_alert(db, "event_dead", "E1", NOW + QUIET_AFTER)
    row = await alert(db, "event_dead", "E1")
    assert (row["state"], row["count"], row["by"] in {"asha", "ravi"}) == ("acknowledged", 2, True)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("kind", "state"),
    [("stream_gap", "open"), ("notification_held", "open"), ("event_dead", "open"), ("payment_review", "acknowledged")],
)
async def test_what_happens_anew_long_after_it_was_acknowledged_is_open_again_and_untold(
    db: Database, kind: str, state: str
) -> None:
    await record_alert(db, kind, "code 286", NOW)
    await acknowledge(db, f"{kind}:code 286", "asha", "the oplog is larger now", NOW)
    await db.alerts.update_one({}, {"$set": {"notifiedAt": NOW}})
    await record_alert(db, kind, "code 286", LATER)
    row = await alert(db, kind, "code 286")
    assert (row["state"], row["notifiedAt"] is None, "by" in row) == (state, state == "open", state != "open")


@pytest.mark.asyncio
async def test_a_condition_that_is_quiet_is_resolved_and_opens_when_it_comes_back(db: Database) -> None:
    await record_alert(db, "notifications_delayed", "email:refused", NOW)
    await record_alert(db, "event_dead", "E1", NOW)
    assert await resolve_quiet(db, NOW + QUIET_AFTER) == 0
    assert await resolve_quiet(db, LATER) == 1
    assert (await alert(db, "notifications_delayed", "email:refused"))["state"] == "resolved"
    assert (await alert(db, "event_dead", "E1"))["state"] == "open", "a dead event does not mend itself"
    await db.alerts.update_one({"_id": "notifications_delayed:email:refused"}, {"$set": {"notifiedAt": NOW}})
    await record_alert(db, "notifications_delayed", "email:refused", LATER)
    row = await alert(db, "notifications_delayed", "email:refused")
    assert (row["state"], row["notifiedAt"]) == ("open", None)


@pytest.mark.asyncio
async def test_an_alert_of_before_there_were_states_is_open(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    await record_alert(db, "event_dead", "E1", NOW)
    await db.alerts.update_one({}, {"$unset": {"state": ""}})
    desk = Desk(db, make_settings(), tmp_path)
    (shown,) = (await desk.run("alerts", "list", "--json")).json
    assert (shown["state"], shown["todo"]) == ("open", ADVICE["event_dead"])


@pytest.mark.asyncio
async def test_the_operator_acknowledges_with_a_reason_and_the_log_keeps_it(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    for ref in ("E1", "E2"):
        await record_alert(db, "event_dead", ref, NOW)
    await record_alert(db, "event_unmatched", "E3", NOW)
    desk = Desk(db, make_settings(), tmp_path)
    assert (await desk.run("alerts", "ack", "event_dead", "E1")).code != 0, "a reason is needed"
    assert (await desk.run("alerts", "ack", "event_dead", "E1", "--why", "requeued")).code == 0
    left = (await desk.run("alerts", "list", "--json")).json
    assert {entry["ref"] for entry in left} == {"E2", "E3"}
    assert (await desk.run("alerts", "ack", "event_dead", "--why", "all seen", "--json")).json["acknowledged"] == 1
    table = (await desk.run("alerts", "list", "--all")).out
    assert "requeued" in table
    assert [(entry["command"], entry["count"]) for entry in await desk.audited()] == [
        ("alerts ack", 1),
        ("alerts ack", 1),
    ]
    refused = await desk.run("alerts", "ack", "event_dead", "E9", "--why", "x")
    assert (refused.code, "no alert event_dead E9 is open" in refused.err) == (1, True)


def test_conditions_are_kinds_that_exist() -> None:
    assert set(ADVICE) >= CONDITIONS
