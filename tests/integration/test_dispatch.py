"""What becomes of a notification row, with a real database, a real mail server and the whole watcher."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo.errors import OperationFailure

from models.clock import ServerClock
from models.database import Database
from models.errors import LeaseLost, SettingsError
from models.leases import Claim
from models.telemetry import Telemetry
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import (
    PAID,
    Daemon,
    alerts,
    daemon,
    entry,
    first_started,
    record,
    rows,
    told,
    until_status,
    until_told,
)
from tests.support.mailbox import HANG, QUIET, email, mailbox, silent_server
from tests.support.rows import abandoned, now, paid, row, until_arrived
from tests.support.wait import eventually
from watcher.app import watcher
from watcher.channels import Message, Sent
from watcher.channels.email import EmailChannel
from watcher.dispatch import Dispatcher
from watcher.render import Renderer
from watcher.rows import NotificationRows

pytestmark = QUIET

MAIL = {"orderId": "ord1", "channel": "email"}
KEY = "order:ord1:payment_completed:email:customer"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first retry after half a second instead of five."""
    monkeypatch.setattr("watcher.rows.FIRST_RETRY", 0.5)


# --- the life of a row ---


@pytest.mark.asyncio
async def test_a_row_goes_from_pending_over_sending_to_sent(db: Database, make_settings: SettingsMaker) -> None:
    async with mailbox() as box, daemon(make_settings(email=email(box, concurrency=1, timeout=10)), db):
        box.at_data.append(HANG)
        await paid(db, 1, 2)
        await until_arrived(box)
        sending = await until_status(db, {"channel": "email", "status": "sending"}, "sending")
        assert sending["attempts"] == 1
        assert sending["lease"]["token"]
        assert sending["nextAttemptAt"] == sending["lease"]["until"]
        assert sending["message"]["address"] in box.arrived[0].recipients
        other = await until_status(db, {"channel": "email", "_id": {"$ne": sending["_id"]}}, "pending")
        assert (other["attempts"], "message" in other, "lease" in other) == (0, False, False)
        box.release()
        for number in (1, 2):
            sent = await until_status(db, {"orderId": f"ord{number}", "channel": "email"}, "sent")
            assert sent["attempts"] == 1
            assert "lease" not in sent
            assert "unknownAt" not in sent
            assert sent["nextAttemptAt"] is None
            assert sent["sentAt"] >= sent["createdAt"]
            (mail,) = [mail for mail in box.arrived if f"asha{number}@example.com" in mail.recipients]
            assert sent["providerMessageId"] == mail.message_id
            assert f"TEA-{number}" in mail.subject
            assert "₹499.00" in mail.text


@pytest.mark.asyncio
async def test_a_mail_refused_for_now_is_tried_again_and_sent_once(
    db: Database, make_settings: SettingsMaker, quick: None
) -> None:
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        box.at_rcpt.append("451 4.7.1 Greylisted")
        await paid(db, 1)
        retry = await until_status(db, MAIL, "retry")
        assert (retry["reason"], retry["attempts"], "lease" in retry) == ("rcpt_451", 1, False)
        assert retry["nextAttemptAt"] > retry["updatedAt"]
        sent = await until_status(db, MAIL, "sent")
    assert (sent["attempts"], sent["reason"]) == (2, None)
    assert "unknownAt" not in sent
    assert len(box.arrived) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize(("stage", "reason"), [("at_rcpt", "rcpt_550"), ("at_data", "content_550")])
async def test_a_mail_refused_for_good_is_dead_after_one_attempt_and_somebody_is_alerted(
    db: Database, make_settings: SettingsMaker, quick: None, stage: str, reason: str
) -> None:
    async with mailbox() as box, daemon(make_settings(email=email(box)), db) as running:
        getattr(box, stage).append("550 5.1.1 No such user")
        await paid(db, 1)
        dead = await until_status(db, MAIL, "dead")
        assert (dead["reason"], dead["attempts"], dead["nextAttemptAt"]) == (reason, 1, None)
        (alert,) = await alerts(db, "notification_dead")
        assert (alert["ref"], alert["count"], alert["detail"]) == (KEY, 1, reason)
        assert running.events("alert.raised")
        await paid(db, 2)
        await until_status(db, {"orderId": "ord2", "channel": "email"}, "sent")
    assert box.to("asha1@example.com") == []


@pytest.mark.asyncio
async def test_a_server_that_says_nothing_after_the_mail_leaves_it_unknown_and_it_is_sent_again_as_the_same(
    db: Database, make_settings: SettingsMaker, quick: None
) -> None:
    async with mailbox() as box, daemon(make_settings(email=email(box, timeout=0.5)), db):
        box.at_data.append(HANG)
        await paid(db, 1)
        unknown = await until_status(db, MAIL, "unknown")
        assert unknown["reason"] == "content_timeout"
        sent = await until_status(db, MAIL, "sent")
    assert sent["unknownAt"] == unknown["unknownAt"]
    first, second = box.arrived
    assert (first.accepted, second.accepted) == (False, True)
    assert first.message_id == second.message_id == sent["providerMessageId"]
    assert first.recipients == second.recipients


@pytest.mark.asyncio
async def test_a_server_that_never_says_a_word_has_certainly_not_taken_the_mail(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with silent_server() as port, daemon(make_settings(email=email(port, timeout=0.4)), db):
        await paid(db, 1)
        retry = await until_status(db, MAIL, "retry", "unknown")
    assert (retry["status"], retry["reason"]) == ("retry", "connect_timeout")
    assert "unknownAt" not in retry


@pytest.mark.asyncio
async def test_a_mail_server_that_is_down_gets_the_mail_when_it_is_back(
    db: Database, make_settings: SettingsMaker, quick: None
) -> None:
    async with mailbox(started=False) as box, daemon(make_settings(email=email(box)), db):
        await paid(db, 1)
        retry = await until_status(db, MAIL, "retry")
        assert retry["reason"] == "connect_refused"
        await box.start()
        sent = await until_status(db, MAIL, "sent")
    assert sent["attempts"] >= 2
    assert "unknownAt" not in sent
    assert len(box.arrived) == 1


@pytest.mark.asyncio
async def test_what_was_certainly_not_sent_is_tried_on_and_somebody_is_told(
    db: Database, make_settings: SettingsMaker, quick: None
) -> None:
    settings_of = {"notifications": {"max_attempts": 2}}
    async with mailbox() as box, daemon(make_settings(email=email(box), **settings_of), db):
        box.at_rcpt.extend(["451 later"] * 4)
        await paid(db, 1)
        sent = await until_status(db, MAIL, "dead", "sent")
        assert (sent["status"], sent["attempts"]) == ("sent", 5)
        assert await alerts(db, "notifications_delayed")
    assert len(box.mails) == 1


@pytest.mark.asyncio
async def test_a_mail_given_up_after_an_unknown_end_still_says_that_it_may_have_arrived(
    db: Database, make_settings: SettingsMaker
) -> None:
    settings_of = {"notifications": {"max_attempts": 1}}
    async with mailbox() as box, daemon(make_settings(email=email(box, timeout=0.4), **settings_of), db):
        box.at_data.append(HANG)
        await paid(db, 1)
        dead = await until_status(db, MAIL, "dead", "unknown")
    assert (dead["status"], dead["reason"]) == ("dead", "content_timeout")
    assert dead["unknownAt"]


@pytest.mark.asyncio
async def test_a_row_whose_sender_died_becomes_unknown_and_its_frozen_message_is_sent_again(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1, status="completed"))
    row = abandoned()
    await db.notification_log.insert_one(row)
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        sent = await until_status(db, {"key": KEY}, "sent")
    assert sent["unknownAt"] >= row["createdAt"] - timedelta(seconds=1)
    assert sent["attempts"] == 2
    (mail,) = box.arrived
    assert (mail.recipients, mail.subject) == (("first@example.com",), "A subject")


@pytest.mark.asyncio
async def test_a_row_that_is_being_sent_belongs_to_its_sender_until_its_lease_is_over(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_many([sample.order(1, status="completed"), sample.order(2, status="completed")])
    await db.notification_log.insert_one(abandoned(nextAttemptAt=now() + timedelta(minutes=1)))
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        await db.notification_log.insert_one(row(2))
        await until_status(db, {"orderId": "ord2"}, "sent")
        held = await until_status(db, {"key": KEY}, "sending")
    assert held["lease"]["token"] == "dead"
    assert len(box.arrived) == 1


@pytest.mark.asyncio
async def test_a_lease_that_ended_this_moment_still_belongs_to_its_sender(db: Database) -> None:
    """Whoever takes over waits a little longer than the holder believes."""
    clock = ServerClock(db.client)
    await clock.run_once()
    await db.notification_log.insert_one(abandoned(nextAttemptAt=clock.now()))
    assert await NotificationRows(db, clock).abandon_dead() == 0


@pytest.mark.asyncio
async def test_of_many_claims_of_one_row_one_succeeds_and_a_late_sender_changes_nothing(db: Database) -> None:
    clock = ServerClock(db.client)
    await clock.run_once()
    all_rows = NotificationRows(db, clock)
    stored = row()
    await db.notification_log.insert_one(stored)
    (seen,) = await all_rows.due("email", 10, ())
    claims = [Claim.of(clock, 5) for _ in range(8)]
    won = await asyncio.gather(*(all_rows.claim(seen, claim, {"address": claim.token}) for claim in claims))
    assert sorted(won) == [False] * 7 + [True]
    winner = claims[won.index(True)]
    after = await until_status(db, {"key": KEY}, "sending")
    assert after["message"]["address"] == winner.token
    for loser in claims:
        if loser is winner:
            continue
        with pytest.raises(LeaseLost):
            await all_rows.sent(stored["_id"], loser, "<late@example.com>")
    assert await until_status(db, {"key": KEY}, "sending") == after
    await all_rows.sent(stored["_id"], winner, "<mine@example.com>")
    assert (await until_status(db, {"key": KEY}, "sent"))["providerMessageId"] == "<mine@example.com>"


@pytest.mark.asyncio
async def test_a_channel_that_fails_in_an_unheard_of_way_leaves_the_row_unknown_and_not_stuck(
    db: Database, make_settings: SettingsMaker, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = EmailChannel.send, []

    async def odd(self: EmailChannel, key: str, message: Message) -> Sent:
        calls.append(key)
        if len(calls) == 1:
            raise ZeroDivisionError
        return await real(self, key, message)

    monkeypatch.setattr(EmailChannel, "send", odd)
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        await paid(db, 1)
        unknown = await until_status(db, MAIL, "unknown")
        assert unknown["reason"] == "unexpected_ZeroDivisionError"
        await until_status(db, MAIL, "sent")
        assert await alerts(db, "notification_dead") == []
    assert len(box.arrived) == 1


# --- who is written to ---


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("no address", "bad_email"),
        ("a@example.com, b@example.com", "bad_email"),
        ("a@example.com\nBcc: b@example.com", "bad_email"),
        (["a@example.com"], "bad_email"),
        ("", "no_email"),
        (None, "no_email"),
    ],
)
async def test_an_order_without_one_usable_address_is_skipped_with_its_reason(
    db: Database, make_settings: SettingsMaker, address: Any, reason: str
) -> None:
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        await paid(db, 1, email=address)
        skipped = await until_status(db, MAIL)
        assert (skipped["status"], skipped["reason"], skipped["attempts"]) == ("skipped", reason, 0)
        await until_status(db, {"orderId": "ord1", "channel": "inapp", "to": "user"}, "sent")
    assert box.arrived == []


@pytest.mark.asyncio
async def test_a_line_break_in_the_order_number_never_becomes_a_header(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        await db.orders.insert_one({**sample.order(1), "orderNumber": "TEA-1\r\nBcc: evil@example.com"})
        await record(db, 1)
        dead = await until_status(db, MAIL)
        assert (dead["status"], dead["reason"], dead["attempts"]) == ("dead", "header_injection", 1)
        (alert,) = await alerts(db, "notification_dead")
        assert alert["ref"] == KEY
        await paid(db, 2)
        await until_status(db, {"orderId": "ord2", "channel": "email"}, "sent")
    (mail,) = box.arrived
    assert mail.recipients == ("asha2@example.com",)


@pytest.mark.asyncio
async def test_a_message_is_frozen_at_its_first_sending(
    db: Database, make_settings: SettingsMaker, quick: None
) -> None:
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        box.at_rcpt.append("451 later")
        await paid(db, 1)
        await until_status(db, MAIL, "retry")
        changes = {"shippingAddress.email": "other@example.com", "orderNumber": "TEA-999"}
        await db.orders.update_one({"_id": "ord1"}, {"$set": changes})
        await until_status(db, MAIL, "sent")
    (mail,) = box.arrived
    assert mail.recipients == ("asha1@example.com",)
    assert "TEA-1" in mail.subject
    assert "TEA-999" not in mail.subject


@pytest.mark.asyncio
async def test_admins_are_told_of_a_review_in_the_application_and_by_mail(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        await db.orders.insert_one(sample.order(1))
        await record(db, 1, entry(1, "payment_review", ref="pay_1", reason="amount_mismatch"), status=None)
        await until_told(db, "ord1", "payment_review:email:admin", "payment_review:inapp:admin")
        await until_status(db, MAIL, "sent")
        await until_status(db, {"orderId": "ord1", "channel": "inapp"}, "sent")
        message = await db.notifications.find_one({"role": "admin"})
    assert [mail.recipients for mail in box.arrived] == [("admin@example.com",)]
    assert message is not None
    assert (message["type"], message["userId"], message["readAt"]) == ("payment_review", None, None)
    assert "amount mismatch" in message["body"]


# --- whether it is still worth sending ---


async def between_two_runs(db: Database, make_settings: SettingsMaker) -> None:
    """A watcher ran and was stopped; what is written now is read by the next one."""
    async with daemon(make_settings(), db):
        pass


@pytest.mark.asyncio
async def test_a_failure_is_not_told_once_the_order_is_paid(db: Database, make_settings: SettingsMaker) -> None:
    await between_two_runs(db, make_settings)
    await db.orders.insert_one(sample.order(1))
    await record(db, 1, entry(1, "payment_failed", ref="pay_A", to="failed"), status="failed")
    await record(db, 1, entry(2))
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        failed = await until_status(db, {"key": "order:ord1:payment_failed:pay_A:email:customer"})
        assert (failed["status"], failed["reason"], failed["attempts"]) == ("suppressed", "paid_meanwhile", 0)
        await until_status(db, {"key": KEY}, "sent")
    assert len(box.arrived) == 1


@pytest.mark.asyncio
async def test_a_failure_is_told_while_it_is_news_and_no_longer(db: Database, make_settings: SettingsMaker) -> None:
    await first_started(db, hours_ago=48)
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        for number, hours in ((1, 1), (2, 3)):
            await db.orders.insert_one(sample.order(number))
            old = entry(1, "payment_failed", ref="pay_A", at=now() - timedelta(hours=hours), to="failed")
            await record(db, number, old, status="failed")
        stale = await until_status(db, {"orderId": "ord2"})
        assert (stale["status"], stale["reason"]) == ("suppressed", "stale")
        await until_status(db, {"orderId": "ord1"}, "sent")
    assert [mail.recipients for mail in box.arrived] == [("asha1@example.com",)]


@pytest.mark.asyncio
async def test_a_fact_that_is_a_day_old_when_it_is_first_seen_is_born_expired(
    db: Database, make_settings: SettingsMaker
) -> None:
    await first_started(db, hours_ago=48)
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        for number, hours in ((1, 25), (2, 23)):
            await db.orders.insert_one(sample.order(number))
            await record(db, number, entry(at=now() - timedelta(hours=hours)))
        await until_told(db, "ord1", *PAID)
        for stored in await rows(db, "ord1"):
            assert (stored["status"], stored["reason"]) == ("expired", "too_old_when_first_seen")
            assert (stored["attempts"], stored["nextAttemptAt"]) == (0, None)
        await until_status(db, {"orderId": "ord2", "channel": "email"}, "sent")
    assert [mail.recipients for mail in box.arrived] == [("asha2@example.com",)]


@pytest.mark.asyncio
async def test_a_row_that_waited_for_a_day_expires(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(sample.order(1, status="completed"))
    await db.notification_log.insert_one(row(factAt=now() - timedelta(hours=24, minutes=1), status="retry", attempts=3))
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        expired = await until_status(db, {"key": KEY})
    assert (expired["status"], expired["reason"], expired["attempts"]) == ("expired", "too_old", 3)
    assert box.arrived == []


@pytest.mark.asyncio
async def test_nobody_is_written_to_about_an_order_that_was_deleted(db: Database, make_settings: SettingsMaker) -> None:
    await between_two_runs(db, make_settings)
    await paid(db, 1)
    await db.orders.delete_one({"_id": "ord1"})
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        await until_told(db, "ord1", *PAID)
        for part in PAID:
            _, channel, to = part.split(":")
            skipped = await until_status(db, {"orderId": "ord1", "channel": channel, "to": to})
            assert (skipped["status"], skipped["reason"]) == ("skipped", "order_deleted")
    assert box.arrived == []
    assert await db.notifications.count_documents({}) == 0


# --- channels do not hinder each other ---


@pytest.mark.asyncio
async def test_a_hanging_mail_server_does_not_delay_in_app_messages(db: Database, make_settings: SettingsMaker) -> None:
    async with mailbox() as box, daemon(make_settings(email=email(box, concurrency=1, timeout=30)), db) as running:
        box.at_data.append(HANG)
        await paid(db, 1)
        await until_arrived(box)
        await paid(db, *range(2, 12))

        async def all_there() -> bool:
            return await db.notifications.count_documents({}) == 2 * 11

        await eventually(all_there, "every in-app message is there", 5)
        assert len(box.arrived) == 1
        assert await db.notification_log.count_documents({"channel": "email", "status": "pending"}) == 10
        box.release()
        await until_arrived(box, 11)
        await settled(db, running)


async def settled(db: Database, running: Daemon) -> None:
    async def check() -> bool:
        open_rows = {"status": {"$in": ["pending", "sending", "retry", "unknown"]}}
        return await db.notification_log.count_documents(open_rows) == 0

    await eventually(check, f"no row is open ({running.events('duty.failed')})")


@pytest.mark.asyncio
async def test_an_in_app_message_that_is_sent_twice_is_there_once(db: Database, make_settings: SettingsMaker) -> None:
    key = "order:ord1:payment_completed:inapp:user"
    await db.orders.insert_one(sample.order(1, status="completed"))
    await db.notifications.insert_one({"_id": key, "title": "the first", "role": "user", "userId": "user1"})
    await db.notification_log.insert_one(abandoned(key=key, channel="inapp", to="user"))
    async with daemon(make_settings(), db):
        sent = await until_status(db, {"key": key}, "sent")
    assert (sent["attempts"], sent["providerMessageId"]) == (2, key)
    assert [message["title"] for message in await db.notifications.find().to_list()] == ["the first"]


@pytest.mark.asyncio
async def test_each_user_finds_the_message_of_the_own_order(db: Database, make_settings: SettingsMaker) -> None:
    async with daemon(make_settings(), db):
        await db.orders.insert_one({**sample.order(1), "userId": (user := ObjectId())})
        await record(db, 1)
        await until_status(db, {"orderId": "ord1", "channel": "inapp", "to": "user"}, "sent")
        message = await db.notifications.find_one({"role": "user"})
    assert message is not None
    assert (message["userId"], message["orderId"], message["readAt"]) == (user, "ord1", None)
    assert "TEA-1" in message["title"] + message["body"]


# --- stopping ---


@pytest.mark.asyncio
async def test_a_stop_lets_a_send_under_way_come_to_its_end(db: Database, make_settings: SettingsMaker) -> None:
    async with mailbox() as box:
        box.at_data.append(HANG)
        async with daemon(make_settings(email=email(box, timeout=10)), db) as running:
            await paid(db, 1)
            await until_arrived(box)
            await running.stop()
            asyncio.get_running_loop().call_later(0.5, box.release)
        sent = await until_status(db, MAIL)
    assert (sent["status"], sent["attempts"]) == ("sent", 1)
    assert len(box.arrived) == 1


@pytest.mark.asyncio
async def test_a_send_that_does_not_end_before_the_deadline_is_unknown_and_the_next_watcher_sends_it(
    db: Database, make_settings: SettingsMaker
) -> None:
    slow = {"watcher": {"drain": 0.3}}
    async with mailbox() as box:
        box.at_data.append(HANG)
        async with daemon(make_settings(email=email(box, timeout=30), **slow), db) as running:
            await paid(db, 1)
            await until_arrived(box)
            await running.stop()
        cut = await until_status(db, MAIL, "unknown")
        assert (cut["reason"], "lease" in cut) == ("stopped", False)
        async with daemon(make_settings(email=email(box)), db):
            sent = await until_status(db, MAIL, "sent")
    assert sent["unknownAt"] == cut["unknownAt"]
    assert len({mail.message_id for mail in box.arrived}) == 1
    assert len(box.arrived) == 2


@pytest.mark.asyncio
async def test_an_error_that_ends_the_process_lets_sends_end_as_well(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1, status="completed"))
    await db.notification_log.insert_one(row())
    async with mailbox() as box:
        box.at_data.append(HANG)

        async def fails_while_sending() -> None:
            async with watcher(make_settings(email=email(box, timeout=10)), asyncio.Event()):
                await until_arrived(box)
                asyncio.get_running_loop().call_later(0.3, box.release)
                raise RuntimeError("the stream is lost")

        with pytest.raises(RuntimeError, match="the stream is lost"):
            await fails_while_sending()
        sent = await db.notification_log.find_one({"key": KEY})
    assert sent is not None
    assert sent["status"] == "sent"


# --- routes ---


@pytest.mark.asyncio
async def test_a_configured_line_replaces_that_notices_line_and_no_other(
    db: Database, make_settings: SettingsMaker
) -> None:
    routes = {"payment_completed": {"admin": ["email"]}}
    async with mailbox() as box, daemon(make_settings(email=email(box), notifications={"routes": routes}), db):
        await db.orders.insert_one(sample.order(1))
        await record(db, 1, entry(1, "payment_failed", ref="pay_A", to="failed"), entry(2))
        await until_told(db, "ord1", "payment_failed:email:customer", "payment_completed:email:admin")
        await until_status(db, {"orderId": "ord1", "to": "admin"}, "sent")
    assert box.to("admin@example.com")


@pytest.mark.asyncio
async def test_a_notice_may_be_told_to_nobody(db: Database, make_settings: SettingsMaker) -> None:
    routes: dict[str, Any] = {"payment_failed": {}}
    async with daemon(make_settings(notifications={"routes": routes}), db):
        await db.orders.insert_one(sample.order(1))
        await record(db, 1, entry(1, "payment_failed", to="failed"), entry(2))
        await until_told(db, "ord1", *PAID)


@pytest.mark.asyncio
async def test_whatsapp_in_the_default_table_is_simply_off(db: Database, make_settings: SettingsMaker) -> None:
    async with daemon(make_settings(), db) as running:
        (off,) = [one for one in running.events("channel.off") if one["channel"] == "whatsapp"]
        assert "PAYLATCH_WHATSAPP__PHONE_NUMBER_ID" in off["reason"]
        await paid(db, 1)
        await until_told(db, "ord1", *PAID)
    assert not [one for one in await told(db, "ord1") if "whatsapp" in one]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"notifications": {"routes": {"payment_failed": {"customer": ["pigeon"]}}}}, r"channel 'pigeon'; .*email.*"),
        ({"notifications": {"routes": {"payment_failed": {"customer": ["whatsapp"]}}}}, r"PAYLATCH_WHATSAPP__"),
        ({"notifications": {"routes": {"payment_failed": {"customer": ["sms"]}}}}, r"PAYLATCH_SMS__AUTH_KEY"),
        ({"notifications": {"routes": {"payment_failed": {"admin": ["webhook"]}}}}, r"PAYLATCH_OUTGOING_WEBHOOK__URL"),
        ({"notifications": {"routes": {"payment_failed": {"admin": ["apprise"]}}}}, r"PAYLATCH_APPRISE__URLS"),
        ({"whatsapp": {"phone_number_id": "1"}}, r"PAYLATCH_WHATSAPP__ACCESS_TOKEN is not set"),
        ({"notifications": {"rates": {"emial": 5}}}, r"NOTIFICATIONS__RATES names the channel 'emial'; .*email.*"),
        ({"notifications": {"unknown_policy": {"x": "hold"}}}, r"NOTIFICATIONS__UNKNOWN_POLICY names the channel 'x'"),
        ({"email": {"host": None}}, r"routed to email, but PAYLATCH_EMAIL__HOST is not set"),
        ({"email": {"from": "no sender"}}, r"PAYLATCH_EMAIL__FROM is not one mail address"),
    ],
)
async def test_a_watcher_that_could_not_tell_what_it_must_does_not_start(
    db: Database, make_settings: SettingsMaker, sections: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence) as refused:
        async with watcher(make_settings(**sections), asyncio.Event()):
            pass
    assert "\n" not in str(refused.value)
    assert await db.watcher_state.count_documents({}) == 0


@pytest.mark.asyncio
async def test_while_the_database_refuses_to_be_written_the_dispatcher_waits_for_its_next_round(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> bool:
        raise OperationFailure("out of disk space", 14031)

    await db.orders.insert_one(sample.order(1))
    clock = ServerClock(db.client)
    await clock.run_once()
    settings = make_settings()
    emitted: list[str] = []
    telemetry = Telemetry(lambda name, _: emitted.append(name))
    store = NotificationRows(db, clock)
    monkeypatch.setattr(store, "claim", refused)
    mail = EmailChannel(settings)
    sender = Dispatcher(db, store, clock, mail, Renderer(settings), settings.notifications, telemetry)
    await db.notification_log.insert_one(row(1, factAt=clock.now(), nextAttemptAt=clock.now()))
    assert await sender.run_once() == {"started": 1}
    await asyncio.wait(sender._sending.values())
    await asyncio.sleep(0)  # the task's callbacks
    assert emitted == ["notification.not_recorded"]
    assert not sender.wake.is_set(), "it would spin"
