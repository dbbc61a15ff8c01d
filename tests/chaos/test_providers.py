"""A provider in trouble: what each kind of trouble makes of a row, and what it never does to the other channels."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from models.database import Database
from tests.conftest import SettingsMaker
from tests.support.daemon import daemon, until_status
from tests.support.mailbox import HANG, QUIET, RESET, email, mailbox
from tests.support.rows import paid, until_arrived
from tests.support.wait import eventually
from watcher.channels import Message, NotSent, Sent
from watcher.channels.email import EmailChannel
from watcher.dispatch import Dispatcher

pytestmark = QUIET

MAIL = {"orderId": "ord1", "channel": "email"}


@dataclass(frozen=True)
class Fault:
    """What the mail server does to the one mail, and what becomes of its row."""

    answer: str | None
    status: str
    reason: str
    tls: str = "none"


FAULTS = {
    "read timeout after the content": Fault(HANG, "unknown", "content_timeout"),
    "reset after the content": Fault(RESET, "unknown", "content_disconnected"),
    "4xx": Fault("451 4.3.0 local error", "retry", "content_451"),
    "5xx": Fault("554 5.0.0 transaction failed", "dead", "content_554"),
    "down": Fault(None, "retry", "connect_refused"),
    "no TLS": Fault(HANG, "retry", "connect_unsupported", "starttls"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_scenario_22_each_trouble_has_its_own_consequence_and_other_channels_go_on(
    fault: Fault, db: Database, make_settings: SettingsMaker
) -> None:
    async with (
        mailbox(started=fault.answer is not None) as box,
        daemon(make_settings(email={**email(box, timeout=1.0), "tls": fault.tls}), db),
    ):
        box.at_data.append(fault.answer or "")
        await paid(db, 1)
        row = await until_status(db, MAIL, "unknown", "retry", "dead", "sent")
        assert (row["status"], row["reason"], row["attempts"]) == (fault.status, fault.reason, 1)
        assert ("unknownAt" in row) == (fault.status == "unknown")
        for to in ("admin", "user"):
            await until_status(db, {"orderId": "ord1", "channel": "inapp", "to": to}, "sent")


@pytest.mark.asyncio
async def test_scenario_22_a_provider_that_names_a_time_is_not_asked_before(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_many(self: EmailChannel, key: str, message: Message) -> Sent:
        raise NotSent("http_429", 120.0)

    monkeypatch.setattr(EmailChannel, "send", too_many)
    async with mailbox() as box, daemon(make_settings(email=email(box)), db) as running:
        await paid(db, *range(1, 21))
        await running.until_emitted("channel.breaker_opened")
        retry = await until_status(db, MAIL, "retry")
        assert retry["nextAttemptAt"] - retry["updatedAt"] > timedelta(seconds=115)
        await until_status(db, {"orderId": "ord20", "channel": "inapp", "to": "user"}, "sent")
        tried = await db.notification_log.count_documents({"channel": "email", "attempts": {"$gt": 0}})
        assert 5 <= tried <= 5 + 4, "the others are not even tried"


@pytest.mark.asyncio
async def test_scenario_22_a_provider_that_hangs_holds_up_nothing_but_its_own_few_places(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, int] = {}
    real = Dispatcher.run_once

    async def counted(self: Dispatcher) -> dict[str, int]:
        result = await real(self)
        seen[self.channel] = max(seen.get(self.channel, 0), len(self._sending))
        return result

    monkeypatch.setattr(Dispatcher, "run_once", counted)
    async with mailbox() as box, daemon(make_settings(email=email(box, concurrency=3, timeout=30)), db):
        box.at_data.extend([HANG] * 3)
        await paid(db, *range(1, 4))
        await until_arrived(box, 3)
        await paid(db, *range(4, 101))

        async def all_there() -> bool:
            return await db.notifications.count_documents({}) == 2 * 100

        await eventually(all_there, "every message inside the application is there", 30)
        assert len(box.arrived) == 3, "while mail still hangs"
        assert await db.notification_log.count_documents({"channel": "email", "status": "pending"}) == 97
        box.release()
        await until_arrived(box, 100)
    assert seen["email"] == 3, "what waits, waits in the database"
    assert seen["inapp"] <= 8
