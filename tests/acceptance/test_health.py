"""What monitoring and operators see: the private ports, `paylatch doctor`, and one notice for one payment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from models.database import Database
from tests.acceptance.test_processes import KEY, paylatch
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.mailbox import QUIET, mailbox
from tests.support.processes import Processes, processes
from tests.support.wait import eventually

pytestmark = [pytest.mark.acceptance, QUIET]


async def get(running: Processes, port: int, path: str) -> tuple[int, str]:
    async with running.http.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


@pytest.mark.asyncio
async def test_the_private_ports_tell_what_is_going_on(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path) as running:
        await db.orders.insert_one(sample.order(1))
        serve, watch = await running.serve(), await running.watch()
        private, watching = serve.ports["private_port"], watch.ports["private_port"]

        async def ready() -> bool:
            return (await get(running, watching, "/readyz"))[0] == 200

        await eventually(ready, "the watcher is ready")
        assert (await get(running, watching, "/livez"))[0] == 200
        assert (await get(running, private, "/readyz"))[0] == 200
        assert "paylatch_notification_lag_seconds{" not in (await get(running, watching, "/metrics"))[1]
        assert await running.post(serve, sample.captured(1), "E1") == 200
        assert await running.post(serve, sample.captured(1), "E1") == 200
        assert await running.post(serve, sample.captured(1), "E2") == 200
        await running.until_told(KEY)
        metrics = (await get(running, private, "/metrics"))[1]
        assert 'paylatch_webhook_duplicates_total{kind="redelivery"} 1.0' in metrics
        assert 'paylatch_webhook_duplicates_total{kind="suspected_replay"} 1.0' in metrics
        assert 'paylatch_webhook_requests_total{outcome="accepted",provider="razorpay"} 1.0' in metrics
        assert "paylatch_transition_conflicts_total 0.0" in metrics
        assert "paylatch_oldest_due_event_seconds 0.0" in metrics
        lag = (await get(running, watching, "/metrics"))[1]
        assert 'paylatch_notification_lag_seconds{stage="recorded"}' in lag
        assert 'paylatch_notification_lag_seconds{stage="sent"}' in lag
        status, stats = await get(running, private, "/health/stats")
        assert status == 200
        assert '"completed":1' in stats


@pytest.mark.asyncio
async def test_captured_and_order_paid_of_one_payment_are_one_credit_one_fulfilment_and_one_mail(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path) as running:
        await db.orders.insert_one(sample.order(1))
        serve = await running.serve()
        await running.watch()
        for body, event_id in ((sample.order_paid(1), "E2"), (sample.captured(1), "E1"), (sample.authorized(1), "E0")):
            assert await running.post(serve, body, event_id) == 200
        await running.until_told(KEY)

        async def all_done() -> bool:
            return await db.events.count_documents({"status": "completed"}) == 3

        await eventually(all_done, "all three events are processed")
        assert await db.ledger.count_documents({}) == await db.fulfilments.count_documents({}) == 1
        assert len(box.to("asha1@example.com")) == 1


@pytest.mark.asyncio
async def test_the_doctor_names_what_is_missing(tmp_path: Path, mongodb_uri: str) -> None:
    values = {"PAYLATCH_MONGODB__URI": mongodb_uri, "PAYLATCH_MONGODB__DATABASE": "paylatch_test_doctor"}
    done = paylatch("doctor", folder=tmp_path, **values)
    assert done.returncode == 1
    assert not done.stderr
    found = {line[8:30].strip(): line[:8].strip() for line in done.stdout.splitlines()}
    wrong = {what for what, grade in found.items() if grade == "WRONG"}
    assert wrong == {"webhook secrets", "channel email", "indexes"}
    assert paylatch("indexes", folder=tmp_path, **values).returncode == 0
    async with mailbox() as box:
        mail = {"PAYLATCH_EMAIL__HOST": "127.0.0.1", "PAYLATCH_EMAIL__PORT": str(box.port)}
        mail["PAYLATCH_EMAIL__FROM"] = "shop@example.com"
        well = await asyncio.to_thread(
            paylatch, "doctor", folder=tmp_path, RAZORPAY_WEBHOOK_SECRET="x", **mail, **values
        )
    assert "WRONG" not in well.stdout
    assert well.returncode == 0, well.stdout
    assert "mail server" in well.stdout


def test_the_doctor_says_when_there_is_no_database_or_no_mail_server(tmp_path: Path) -> None:
    done = paylatch(
        "doctor",
        folder=tmp_path,
        PAYLATCH_MONGODB__URI="mongodb://127.0.0.1:1",
        PAYLATCH_MONGODB__SERVER_SELECTION_SECONDS="0.5",
        PAYLATCH_EMAIL__HOST="127.0.0.1",
        PAYLATCH_EMAIL__PORT="1",
        RAZORPAY_WEBHOOK_SECRET="x",
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert any(line.startswith("WRONG   database") and "no MongoDB server answers" in line for line in lines)
    assert any(line.startswith("WRONG   mail") for line in lines)
