"""Open alerts reach the administrators by the same channels as every notice, once, and many in one message."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from models.alerts import acknowledge, record_alert
from models.clock import ServerClock
from models.database import Database
from tests.conftest import SettingsMaker
from tests.support.daemon import Daemon, daemon
from tests.support.mailbox import QUIET, Mailbox, mailbox
from tests.support.wait import eventually
from watcher.alerting import AlertTeller
from watcher.notices import AlertNotice
from watcher.outbox import Outbox

pytestmark = QUIET
KEY = "alert:event_dead:1:email:admin"
BY_DEFAULT = {"alert": {"admin": ["inapp", "email"]}}
"""The default route without Apprise, which is not configured here."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watcher.app.ALERT_INTERVAL", 0.2)


def teller(running: Daemon, settings: Any) -> AlertTeller:
    parts, notifications = running.parts, settings.notifications
    outbox = Outbox(running.db, parts.clock, notifications, {"email", "inapp"})
    return AlertTeller(running.db, parts.clock, outbox, notifications, lambda: None)


async def dead(running: Daemon, ref: str) -> None:
    await record_alert(running.db, "event_dead", ref, running.parts.clock.now(), f"about {ref}")


async def row_of(db: Database, key: str, *statuses: str) -> dict[str, Any]:
    async def check() -> dict[str, Any] | None:
        row = await db.notification_log.find_one({"key": key})
        return row if row and row["status"] in statuses else None

    found = await eventually(check, f"{key} is {' or '.join(statuses)}")
    assert found is not None
    return found


def by_mail(box: Mailbox, **notifications: Any) -> dict[str, Any]:
    """Sections of a watcher that tells alerts by the default route."""
    notifications = {"routes": BY_DEFAULT, **notifications}
    return {"email": {"host": "127.0.0.1", "port": box.port, "tls": "none"}, "notifications": notifications}


@pytest.mark.asyncio
async def test_a_new_alert_is_mailed_once_and_shown_in_the_shop(db: Database, make_settings: SettingsMaker) -> None:
    async with mailbox() as box, daemon(make_settings(**by_mail(box)), db) as running:
        await dead(running, "E1")
        row = await row_of(db, KEY, "sent")
        shown = await row_of(db, "alert:event_dead:1:inapp:admin", "sent")
        (mail,) = box.mails
        assert mail.recipients == ("admin@example.com",)
        assert "event dead: 1 to look at" in mail.subject
        assert "E1: about E1" in mail.text
        assert "paylatch alerts ack event_dead" in mail.text
        assert (row["orderId"], row["refs"]) == (None, ["event_dead", "1"])
        stored = await db.notifications.find_one({"_id": shown["key"]})
        assert stored is not None
        assert (stored["type"], stored["role"]) == ("alert", "admin")


@pytest.mark.asyncio
async def test_what_comes_soon_after_waits_for_the_next_message_and_is_in_it(
    db: Database, make_settings: SettingsMaker
) -> None:
    """The 70 mails for 70 events are two."""
    settings = make_settings(notifications={"alert_spacing": 3600, "routes": BY_DEFAULT})
    async with mailbox() as box, daemon(make_settings(**by_mail(box, alert_spacing=3600)), db) as running:
        await dead(running, "E1")
        await row_of(db, KEY, "sent")
        for number in range(2, 71):
            await dead(running, f"E{number}")
        told = teller(running, settings)
        assert (await told.run_once())["told"] == 0
        assert await db.notification_log.count_documents({"notice": "alert", "channel": "email"}) == 1
        await db.watcher_state.update_one({"_id": "alerting:event_dead"}, {"$unset": {"at": ""}})
        await db.watcher_state.update_one({"_id": "alerting:event_dead"}, {"$set": {"at": None}})
        await row_of(db, "alert:event_dead:2:email:admin", "sent")
        assert "70 to look at" in box.mails[-1].subject
        assert len(box.mails) == 2


@pytest.mark.asyncio
async def test_several_watchers_make_one_message(db: Database, make_settings: SettingsMaker) -> None:
    settings = make_settings(notifications={"routes": BY_DEFAULT})
    async with mailbox() as box, daemon(make_settings(**by_mail(box)), db) as running:
        await dead(running, "E1")
        await asyncio.gather(*(teller(running, settings).run_once() for _ in range(5)))
        await row_of(db, KEY, "sent")
        assert await db.notification_log.count_documents({"notice": "alert"}) == 2
        assert len(box.mails) == 1


@pytest.mark.asyncio
async def test_what_comes_after_a_message_whose_maker_was_killed_is_in_the_next_message(
    db: Database, make_settings: SettingsMaker
) -> None:
    """Killed between the rows and the marks; the message may have gone out before the next alert was there."""
    settings = make_settings(notifications={"alert_spacing": 0.1, "routes": BY_DEFAULT})
    async with daemon(settings, db) as running:
        now = running.parts.clock.now()
        await teller(running, settings)._outbox.add([AlertNotice("event_dead", 1, now)], now)
        await row_of(db, "alert:event_dead:1:inapp:admin", "suppressed")
        await dead(running, "E1")
        await row_of(db, "alert:event_dead:2:inapp:admin", "sent")


@pytest.mark.asyncio
async def test_what_still_goes_on_long_after_it_was_told_is_told_again_and_what_stopped_is_not(
    db: Database, make_settings: SettingsMaker
) -> None:
    notifications, clock = make_settings(notifications={"routes": BY_DEFAULT}).notifications, ServerClock(db.client)
    await clock.run_once()
    now = clock.now()
    told_before = now - timedelta(seconds=2 * notifications.alert_repeat)
    await record_alert(db, "event_dead", "E1", now)
    await record_alert(db, "event_unmatched", "E2", told_before)
    await db.alerts.update_many({}, {"$set": {"notifiedAt": told_before}})
    outbox = Outbox(db, clock, notifications, {"inapp"})
    assert (await AlertTeller(db, clock, outbox, notifications, lambda: None).run_once())["told"] == 1
    assert await db.notification_log.distinct("key") == ["alert:event_dead:1:inapp:admin"]


@pytest.mark.asyncio
async def test_nobody_is_told_of_what_somebody_looks_after_or_what_has_a_notice_of_its_own(
    db: Database, make_settings: SettingsMaker
) -> None:
    settings = make_settings(notifications={"routes": {"alert": {"admin": ["inapp"]}}})
    async with daemon(settings, db) as running:
        now = running.parts.clock.now()
        await record_alert(db, "payment_review", "amount_mismatch:pay_A", now)
        await dead(running, "E1")
        await acknowledge(db, "event_dead:E1", "asha", "mine", now)
        await record_alert(db, "event_unmatched", "E2", now)
        await row_of(db, "alert:event_unmatched:1:inapp:admin", "sent")
        kinds = {row["refs"][0] async for row in db.notification_log.find({"notice": "alert"})}
        assert "payment_review" not in kinds
        await dead(running, "E1")
        assert (await teller(running, settings).run_once())["told"] == 0


@pytest.mark.asyncio
async def test_a_message_about_alerts_that_cannot_be_delivered_makes_no_alert(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with mailbox() as box, daemon(make_settings(**by_mail(box)), db) as running:
        box.at_rcpt.extend(["550 no such user"] * 5)
        await dead(running, "E1")
        await row_of(db, KEY, "dead")
        assert await db.alerts.count_documents({}) == 1


@pytest.mark.asyncio
async def test_a_message_whose_alerts_were_closed_before_it_went_out_is_not_sent(
    db: Database, make_settings: SettingsMaker
) -> None:
    settings = make_settings(notifications={"routes": {"alert": {"admin": ["inapp"]}}})
    async with daemon(settings, db) as running:
        outbox = Outbox(db, running.parts.clock, settings.notifications, {"inapp"})
        await dead(running, "E1")
        await acknowledge(db, "event_dead:E1", "asha", "mine", running.parts.clock.now())
        await db.notification_log.delete_many({})
        await db.watcher_state.delete_many({"_id": "alerting:event_dead"})
        from watcher.notices import AlertNotice

        now = running.parts.clock.now()
        await outbox.add([AlertNotice("event_dead", 9, now)], now)
        row = await row_of(db, "alert:event_dead:9:inapp:admin", "suppressed")
        assert row["reason"] == "alert_closed"
