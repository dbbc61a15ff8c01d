"""`paylatch reconcile` as an operator runs it, and the duty that does it on the watchers' hosts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from models.clock import ServerClock
from models.database import Database
from models.errors import SettingsError
from models.settings import Settings
from models.telemetry import Telemetry
from scripts.simulator.api import KEY_ID, KEY_SECRET, Fault
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.desk import Desk, Said
from tests.support.mailbox import mailbox
from tests.support.processes import processes
from tests.support.provider import Provider, provider
from tests.support.wait import eventually
from webhook.reconcile_duty import AGAIN_AFTER, ReconcileDuty, reconciling

DATE = datetime.fromtimestamp(sample.CREATED, UTC).date().isoformat()


@dataclass(frozen=True)
class ReconcileDesk(Desk):
    """An operator with an API key."""

    port: int

    @property
    def environment(self) -> dict[str, str]:
        return {
            **super().environment,
            "PAYLATCH_RAZORPAY__API_URL": f"http://127.0.0.1:{self.port}",
            "PAYLATCH_RAZORPAY__API_RETRIES": "0",
            "RAZORPAY_KEY_ID": KEY_ID,
            "RAZORPAY_KEY_SECRET": KEY_SECRET,
        }

    async def reconcile(self, *options: str) -> Said:
        return await self.run("reconcile", *options)


@pytest_asyncio.fixture
async def fake(db: Database) -> AsyncIterator[Provider]:
    """Order 1 is paid there and pending here."""
    await db.orders.insert_one(sample.order(1))
    async with provider() as running:
        running.order(1)
        running.payment(1)
        yield running


@pytest.fixture
def desk(db: Database, make_settings: SettingsMaker, fake: Provider, tmp_path: Path) -> ReconcileDesk:
    return ReconcileDesk(db, make_settings(), tmp_path, fake.port)


@pytest.mark.asyncio
async def test_a_dry_run_then_the_repair_then_nothing(desk: ReconcileDesk) -> None:
    looked = await desk.reconcile()
    assert (looked.code, looked.err) == (1, "")
    assert sample.payment_id(1) in looked.out
    assert "payment completed (pending → completed)" in looked.out
    assert "₹499.00" in looked.out
    assert "nothing was changed" in looked.out
    assert await desk.db.events.count_documents({}) == 0
    assert await desk.audited() == []
    applied = await desk.reconcile("--apply")
    assert applied.code == 0
    assert "1 repaired" in applied.out
    audited = await desk.audited()
    assert [(entry["command"], entry["count"]) for entry in audited] == [("reconcile", 1)]
    nothing = await desk.reconcile("--apply")
    assert (nothing.code, "found: 0 differences" in nothing.out) == (0, True)


@pytest.mark.asyncio
async def test_json_says_the_same_to_machines(desk: ReconcileDesk) -> None:
    said = await desk.reconcile("--json", "--no-orders", "--from", DATE, "--to", DATE)
    assert said.code == 1
    assert said.json == {
        "applied": False,
        "orders": False,
        "from": DATE,
        "to": DATE,
        "looked": {"payments": 1},
        "repaired": 0,
        "remaining": 1,
        "differences": [
            {
                "kind": "payment",
                "ref": sample.payment_id(1),
                "orderId": "ord1",
                "amount": sample.AMOUNT,
                "currency": "INR",
                "missing": "here",
                "detail": "payment completed (pending → completed)",
                "result": "found",
            }
        ],
    }
    assert (await desk.reconcile("--json", "--apply", "--from", DATE)).json["repaired"] == 1


@pytest.mark.asyncio
async def test_what_cannot_be_repaired_ends_with_1(desk: ReconcileDesk) -> None:
    await desk.db.orders.delete_many({})
    said = await desk.reconcile("--apply", "--from", DATE)
    assert said.code == 1
    assert "parked: waiting_for_order" in said.out


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("options", "code"),
    [(("--from", "2026-02-02", "--to", "2026-02-01"), 2), (("--from", "2999-01-01"), 2), (("--from", "soon"), 2)],
)
async def test_days_that_cannot_be_are_refused(desk: ReconcileDesk, options: tuple[str, ...], code: int) -> None:
    assert (await desk.reconcile(*options)).code == code


@pytest.mark.asyncio
@pytest.mark.parametrize(("fault", "code"), [(Fault(503), 5), (Fault(429, retry_after="900"), 5), (Fault(401), 2)])
async def test_an_api_that_does_not_serve_us_is_one_sentence(
    desk: ReconcileDesk, fake: Provider, fault: Fault, code: int
) -> None:
    fake.api.always = fault
    said = await desk.reconcile("--apply")
    assert (said.code, said.out, said.err.count("\n")) == (code, "", 1)
    assert KEY_SECRET not in said.err
    assert [entry["count"] for entry in await desk.audited()] == [0]


@pytest.mark.asyncio
async def test_without_a_key_the_sentence_names_the_settings(db: Database, desk: ReconcileDesk) -> None:
    said = await Desk.run(Desk(db, desk.settings, desk.folder), "reconcile")
    assert said.code == 2
    assert "PAYLATCH_RAZORPAY__KEY_ID" in said.err


@dataclass
class Host:
    """One host's duty and what it says."""

    duty: ReconcileDuty
    said: list[tuple[str, dict[str, Any]]]


def host(settings: Settings, db: Database) -> Host:
    said: list[tuple[str, dict[str, Any]]] = []
    telemetry = Telemetry(lambda event, fields: said.append((event, fields)))
    return Host(ReconcileDuty(settings, db, ServerClock(db.client), telemetry), said)


@pytest.fixture
def settings(make_settings: SettingsMaker, fake: Provider) -> Settings:
    return make_settings(razorpay={**fake.section, "api_retries": 0}, reconcile={"every": 3600})


async def _due(db: Database) -> None:
    past = datetime.now(UTC) - timedelta(days=1)
    await db.watcher_state.update_one({"_id": "reconcile"}, {"$set": {"nextAt": past}})


@pytest.mark.asyncio
async def test_of_several_hosts_one_does_each_round(db: Database, settings: Settings, fake: Provider) -> None:
    hosts = [host(settings, db) for _ in range(4)]
    for round_number in range(3):
        fake.api.requests.clear()
        done = await asyncio.gather(*(each.duty.run_once() for each in hosts))
        assert [bool(counts) for counts in done].count(True) == 1, f"round {round_number}"
        await _due(db)
    order = await db.orders.find_one({"_id": "ord1"})
    assert order
    assert order["payment"]["status"] == "completed"
    assert await db.ledger.count_documents({}) == 1


@pytest.mark.asyncio
async def test_a_round_that_is_not_due_asks_nothing(db: Database, settings: Settings, fake: Provider) -> None:
    assert (await host(settings, db).duty.run_once())["repaired"] == 1
    fake.api.requests.clear()
    assert await host(settings, db).duty.run_once() == {}
    assert fake.api.requests == []


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", [Fault(503), Fault(401), Fault(502, html=True)])
async def test_a_failed_round_is_an_alert_and_comes_again_sooner(
    db: Database, settings: Settings, fake: Provider, fault: Fault
) -> None:
    fake.api.always = fault
    first = host(settings, db)
    assert await first.duty.run_once() == {"failed": 1}
    alert = await db.alerts.find_one({"_id": "reconcile_failed:razorpay"})
    assert alert
    assert KEY_SECRET not in alert["detail"]
    assert [event for event, _ in first.said].count("alert.raised") == 1
    state = await db.watcher_state.find_one({"_id": "reconcile"})
    assert state
    assert state["nextAt"] - state["updatedAt"] == timedelta(seconds=AGAIN_AFTER)
    fake.api.always = None
    await _due(db)
    assert (await host(settings, db).duty.run_once())["repaired"] == 1


@pytest.mark.asyncio
async def test_a_round_whose_host_dies_is_due_again_soon(db: Database, settings: Settings, fake: Provider) -> None:
    fake.api.always = Fault(pause=60)
    dying = asyncio.create_task(host(settings, db).duty.run_once())

    async def asking() -> bool:
        return bool(fake.api.requests)

    await eventually(asking, "the round has begun")
    dying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dying
    state = await db.watcher_state.find_one({"_id": "reconcile"})
    assert state
    assert state["nextAt"] - state["updatedAt"] == timedelta(seconds=AGAIN_AFTER)
    fake.api.always = None
    await _due(db)
    assert (await host(settings, db).duty.run_once())["repaired"] == 1
    state = await db.watcher_state.find_one({"_id": "reconcile"})
    assert state
    assert state["nextAt"] - state["updatedAt"] > timedelta(seconds=settings.reconcile.every / 2)


@pytest.mark.asyncio
async def test_the_duty_is_off_by_default_and_needs_a_key(make_settings: SettingsMaker, fake: Provider) -> None:
    async with reconciling(make_settings(razorpay=fake.section), Telemetry()):
        pass
    with pytest.raises(SettingsError, match="KEY_SECRET"):
        async with reconciling(make_settings(reconcile={"every": 60}), Telemetry()):
            pass
    assert fake.api.requests == []


@pytest.mark.acceptance
@pytest.mark.asyncio
async def test_two_watchers_reconcile_by_themselves_and_the_customer_is_told(
    db: Database, make_settings: SettingsMaker, fake: Provider, tmp_path: Path
) -> None:
    """No webhook process runs at all: order, ledger and mail come from what the API says."""
    own = {
        "PAYLATCH_RAZORPAY__API_URL": f"http://127.0.0.1:{fake.port}",
        "PAYLATCH_RAZORPAY__KEY_ID": KEY_ID,
        "PAYLATCH_RAZORPAY__KEY_SECRET": KEY_SECRET,
        "PAYLATCH_RAZORPAY__WEBHOOK_SECRETS": json.dumps({}),
        "PAYLATCH_RECONCILE__EVERY": "1",
    }
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path, **own) as running:
        first, second = await asyncio.gather(running.watch(), running.watch())
        await running.until_status(1, "completed")
        await running.until_told("order:ord1:payment_completed:email:customer")
        assert await db.ledger.count_documents({}) == 1
        fake.api.always = Fault(503)

        async def alerted() -> bool:
            return await db.alerts.count_documents({"kind": "reconcile_failed"}) == 1

        await eventually(alerted, "the failed round is an alert")
        assert [daemon.process.returncode for daemon in (first, second)] == [None, None], "they go on"
        await running.stack.stop()
        assert [daemon.process.returncode for daemon in (first, second)] == [0, 0]
