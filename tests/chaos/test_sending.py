"""Kill -9 and SIGTERM around a send: nothing is lost, and what may have been doubled says so."""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from models.database import Database
from scripts.stack import Daemon
from tests.conftest import SettingsMaker
from tests.support.daemon import alerts
from tests.support.mailbox import HANG, QUIET, Mailbox, mailbox
from tests.support.oracle import key_of, told_by_mail, until_all
from tests.support.processes import Processes, processes
from tests.support.receiver import receiver
from tests.support.rows import now, paid, until_arrived
from tests.support.stages import sections_of
from tests.support.wait import eventually

pytestmark = [pytest.mark.acceptance, QUIET]

POLICIES = ["resend", "hold"]
INAPP = "order:ord1:payment_completed:inapp:user"


def policy(name: str) -> dict[str, str]:
    return {"PAYLATCH_NOTIFICATIONS__UNKNOWN_POLICY": json.dumps({"email": name})}


async def killed_while_sending(running: Processes, point: str) -> Daemon:
    """A watcher that died at this point with order 1's message; its lease is made to be over."""
    doomed = await running.watch(point)
    await running.until_reading()
    await paid(running.db, 1)
    assert await doomed.process.wait() == -signal.SIGKILL, f"it was not killed at {point}"
    over = now() - timedelta(seconds=10)
    left = await running.db.notification_log.update_one({"status": "sending"}, {"$set": {"nextAttemptAt": over}})
    assert left.matched_count == 1
    return await running.watch()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", POLICIES)
async def test_scenario_04_killed_after_sending_was_written_and_before_the_call(
    name: str, db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path, **policy(name)) as running:
        await killed_while_sending(running, "watcher.sending_written")
        row = await running.until_told(key_of(1), "sent" if name == "resend" else "held")
        assert row["unknownAt"]
        assert len(box.arrived) == (1 if name == "resend" else 0)
        assert await told_by_mail(db, box, [1]) == 0
        assert len(await alerts(db, "notification_held")) == (0 if name == "resend" else 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", POLICIES)
async def test_scenario_05_killed_after_an_unkeyed_provider_accepted(
    name: str, db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path, **policy(name)) as running:
        await killed_while_sending(running, "watcher.provider_accepted")
        row = await running.until_told(key_of(1), "sent" if name == "resend" else "held")
        assert row["unknownAt"]
        assert len(box.arrived) == (2 if name == "resend" else 1)
        assert len({mail.message_id for mail in box.arrived}) == 1
        assert await told_by_mail(db, box, [1]) == (1 if name == "resend" else 0)


@pytest.mark.asyncio
async def test_scenario_05_killed_after_a_keyed_receiver_accepted_leaves_one_message(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    routes = {"PAYLATCH_NOTIFICATIONS__ROUTES": json.dumps({"payment_completed": {"user": ["inapp"]}})}
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path, **routes) as running:
        await killed_while_sending(running, "watcher.provider_accepted")
        row = await running.until_told(INAPP)
        assert (row["attempts"], "unknownAt" in row) == (2, True)
        assert [message["_id"] for message in await db.notifications.find({}).to_list()] == [INAPP]


@pytest.mark.asyncio
async def test_scenario_05_killed_after_a_keyed_webhook_was_taken_repeats_it_under_the_same_id(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with receiver() as erp, mailbox() as box:
        own = sections_of("webhook", f"127.0.0.1:{erp.port}")["outgoing_webhook"]
        options = {
            "PAYLATCH_NOTIFICATIONS__ROUTES": json.dumps({"payment_completed": {"admin": ["webhook"]}}),
            "PAYLATCH_OUTGOING_WEBHOOK__URL": own["url"],
            "PAYLATCH_OUTGOING_WEBHOOK__SECRETS": json.dumps(own["secrets"]),
            "PAYLATCH_OUTGOING_WEBHOOK__PRIVATE_TARGETS": "true",
        }
        async with processes(make_settings(), db, box, tmp_path, **options) as running:
            await killed_while_sending(running, "watcher.provider_accepted")
            row = await running.until_told("order:ord1:payment_completed:webhook:admin")
    assert (row["attempts"], "unknownAt" in row) == (2, True)
    ids = {request.headers["webhook-id"] for request in erp.requests}
    assert (len(erp.requests), ids) == (2, {row["providerMessageId"]}), "so the receiver takes it once"
    assert len({request.body for request in erp.requests}) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("provider", ["answers in time", "hangs"])
async def test_scenario_06_sigterm_with_slow_sends_under_way(
    provider: str, db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    answered = provider == "answers in time"
    slow = {"PAYLATCH_EMAIL__TIMEOUT": "30", "PAYLATCH_WATCHER__DRAIN": "8" if answered else "1"}
    numbers = range(1, 9)
    async with mailbox() as box, processes(make_settings(), db, box, tmp_path, **slow) as running:
        box.at_data.extend([HANG] * 4)
        first = await running.watch()
        await running.until_reading()
        await paid(db, *numbers)
        await until_all(db, 4, "sending")
        await until_arrived(box, 4)
        await stopping(first, box, answered=answered)
        assert await first.process.wait() == 0
        leader = await db.watcher_state.find_one({"_id": "leader"})
        assert leader is not None
        assert leader["holder"] is None, "the lease is released"
        await until_all(db, 4, "sent" if answered else "unknown")
        assert await db.notification_log.count_documents({"status": "pending"}) == 4, "nothing more was begun"
        await running.watch()
        await until_all(db, 8, "sent")
        assert await told_by_mail(db, box, numbers) == (0 if answered else 4)


async def stopping(watcher: Daemon, box: Mailbox, *, answered: bool) -> None:
    watcher.kill(signal.SIGTERM)

    async def noticed() -> bool:
        return any(line["event"] == "watcher.stopping" for line in watcher.lines())

    await eventually(noticed, "it has noticed the signal")
    if answered:
        box.release()
