"""What `paylatch doctor` finds in a database and asks of the provider."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from models.alerts import record_alert
from models.database import Database
from models.settings import Settings
from scripts.checks import Finding
from scripts.checks.servers import server_findings
from scripts.checks.stored import stored_findings
from scripts.simulator.api import Fault
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.provider import provider

pytestmark = pytest.mark.asyncio

NO_MAIL = {"host": None}


async def stored(settings: Settings) -> dict[str, Finding]:
    return {finding.what: finding async for finding in stored_findings(settings)}


async def asked(settings: Settings) -> list[Finding]:
    return [finding async for finding in server_findings(settings, online=True)]


async def test_an_empty_database_only_lacks_a_watcher(db: Database, make_settings: SettingsMaker) -> None:
    found = await stored(make_settings())
    graded = {what: finding.grade for what, finding in found.items() if what != "transaction lifetime"}
    assert {what for what, grade in graded.items() if grade != "ok"} == {"watcher"}
    assert len(graded) == 9


async def test_what_waits_for_a_person_is_counted_with_the_command_that_shows_it(
    db: Database, make_settings: SettingsMaker
) -> None:
    settings = make_settings()
    now = datetime.now(UTC) - timedelta(hours=1)
    await db.notification_log.insert_many(
        [{"key": f"k{n}", "status": status} for n, status in enumerate(("held", "dead", "dead", "sent"))]
    )
    await db.events.insert_many(
        [{"eventId": f"E{n}", "bodyHash": f"{n}", "status": status} for n, status in enumerate(("dead", "parked"))]
    )
    await record_alert(db, "event_dead", "E0", now)
    await db.watcher_state.insert_many(
        [{"_id": "leader", "holder": "h", "epoch": 4}, {"_id": "checkpoint", "updatedAt": now}]
    )
    found = await stored(settings)
    said = {what: found[what].says for what in ("messages", "events", "open alerts", "watcher")}
    assert {found[what].grade for what in said} == {"warning"}
    assert said["messages"].startswith("1 held, 2 dead: see `paylatch notifications list")
    assert said["events"].startswith("1 dead, 1 waiting for their order: see `paylatch events list")
    assert said["open alerts"] == "1 event_dead: see `paylatch alerts list`"
    assert "does `paylatch watch` still run?" in said["watcher"]


@pytest.mark.parametrize(
    ("payment", "says"),
    [
        ({"razorpayOrderId": None, "paymentLinkId": "plink_1"}, "0 with neither"),
        ({"razorpayOrderId": None}, "1 with neither"),
        ({"amount": None}, "1 without a readable amount"),
        ({"status": "cancelled"}, "1 with a status of the shop's own"),
    ],
)
async def test_orders_that_no_money_could_complete_are_counted(
    db: Database, make_settings: SettingsMaker, payment: dict[str, Any], says: str
) -> None:
    order = sample.order(1)
    changed = {name: value for name, value in {**order["payment"], **payment}.items() if value is not None}
    await db.orders.insert_one({**order, "payment": changed})
    assert says in (await stored(make_settings()))["orders"].says


async def test_a_database_that_cannot_be_used_is_one_finding(make_settings: SettingsMaker) -> None:
    for uri, says in (
        ("nonsense://", "is not a MongoDB address"),
        ("mongodb://127.0.0.1:1", "no MongoDB server answers"),
    ):
        found = await stored(make_settings(mongodb={"uri": uri, "server_selection_seconds": 0.5}))
        assert list(found) == ["database"]
        assert (found["database"].grade, says in found["database"].says) == ("WRONG", True)


async def test_online_tries_the_key_with_one_request(make_settings: SettingsMaker) -> None:
    async with provider() as fake:
        settings = make_settings(razorpay={**fake.section, "api_retries": 0}, email=NO_MAIL)
        fake.api.faults.extend([Fault(), Fault(401), Fault(503)])
        first, second, third = [(await asked(settings))[0] for _ in range(3)]
    assert not fake.api.faults
    assert (first.grade, "takes the key, of test mode" in first.says) == ("ok", True)
    assert (second.grade, "does not take our key (401)" in second.says) == ("WRONG", True)
    assert (third.grade, "out of order" in third.says) == ("WRONG", True)


async def test_online_without_a_key_says_which_settings_are_missing(make_settings: SettingsMaker) -> None:
    (finding,) = await asked(make_settings(email=NO_MAIL))
    assert (finding.grade, "PAYLATCH_RAZORPAY__KEY_ID" in finding.says) == ("WRONG", True)
