"""What keeps messages from going out too fast, too often or in vain; each limit with a real mail server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from models.clock import ServerClock
from models.database import Database
from models.telemetry import Telemetry
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import alerts, daemon, until_status
from tests.support.mailbox import HANG, QUIET, Mailbox, email, mailbox
from tests.support.rows import abandoned, now, paid, row, until_arrived
from tests.support.wait import eventually
from watcher.cap import admit, impose, in_force, lift
from watcher.channels import Message, NotSent, Sent
from watcher.channels.email import EmailChannel
from watcher.dispatch import Dispatcher
from watcher.observe import WatcherMetrics
from watcher.render import Renderer
from watcher.rows import NotificationRows

pytestmark = QUIET

MAIL = {"orderId": "ord1", "channel": "email"}
KEY = "order:ord1:payment_completed:email:customer"
HOLD = {"unknown_policy": {"email": "hold"}}


@dataclass
class Sender:
    """One channel's dispatcher without the rest of a watcher: it only works when a round is asked for."""

    dispatcher: Dispatcher
    db: Database
    emitted: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def round(self) -> int:
        """How many rows one round handled, to their end."""
        started = (await self.dispatcher.run_once()).get("started", 0)
        if under_way := self.dispatcher._sending.values():
            await asyncio.wait(under_way)
        await asyncio.sleep(0)  # the tasks' callbacks
        return started

    async def rounds(self, most: int = 50) -> None:
        """Rounds until nothing is due."""
        for _ in range(most):
            if not await self.round():
                return
        raise AssertionError(f"something is still due after {most} rounds")

    async def statuses(self) -> dict[str, int]:
        rows = await self.db.notification_log.find({}).to_list()
        return {status: sum(one["status"] == status for one in rows) for status in {one["status"] for one in rows}}


@contextlib.asynccontextmanager
async def sending(
    db: Database, make_settings: SettingsMaker, box: Mailbox, **notifications: Any
) -> AsyncIterator[Sender]:
    settings = make_settings(email=email(box, timeout=1.0, concurrency=8), notifications=notifications)
    clock = ServerClock(db.client)
    await clock.run_once()
    emitted: list[tuple[str, dict[str, Any]]] = []
    telemetry = Telemetry(lambda name, fields: emitted.append((name, fields)))
    async with EmailChannel(settings) as channel:
        rows = NotificationRows(db, clock)
        dispatcher = Dispatcher(db, rows, clock, channel, Renderer(settings), settings.notifications, telemetry)
        yield Sender(dispatcher, db, emitted)


async def owed(db: Database, count: int, **changes: Any) -> None:
    """So many paid orders, a due mail for each."""
    await db.orders.insert_many([sample.order(number, status="completed") for number in range(1, count + 1)])
    due = now() - timedelta(seconds=5)
    rows = [
        row(number, nextAttemptAt=due + timedelta(milliseconds=number), **changes) for number in range(1, count + 1)
    ]
    await db.notification_log.insert_many(rows)


# --- pace ---


@pytest.mark.asyncio
async def test_of_seventy_mails_to_one_customer_five_go_out_and_the_others_wait_their_turn(
    db: Database, make_settings: SettingsMaker
) -> None:
    await owed(db, 71)
    address = {"shippingAddress.email": "one@example.com"}
    await db.orders.update_many({"_id": {"$ne": "ord71"}}, {"$set": address})
    async with mailbox() as box, sending(db, make_settings, box) as sender:
        await sender.rounds()
        assert len(box.to("one@example.com")) == 5
        assert len(box.to("asha71@example.com")) == 1, "the last in line is another customer and waits for nobody"
        waiting = await db.notification_log.find({"status": "pending"}).sort("nextAttemptAt", 1).to_list()
    assert len(waiting) == 65
    assert {one["attempts"] for one in waiting} == {0}
    due = [one["nextAttemptAt"] for one in waiting]
    gaps = [(later - sooner).total_seconds() for sooner, later in itertools.pairwise(due)]
    assert min(gaps) > 1.0, "two seconds each, but for the time that the test itself takes"
    assert sum(gaps) == pytest.approx(128, abs=5)


@pytest.mark.asyncio
async def test_what_had_to_wait_is_sent_when_its_turn_comes(db: Database, make_settings: SettingsMaker) -> None:
    pace = {"recipient_interval": 0.1, "recipient_burst": 1, "rates": {"email": 50}}
    async with mailbox() as box, daemon(make_settings(email=email(box), notifications=pace), db):
        await paid(db, *range(1, 9), email="one@example.com")
        await until_arrived(box, 8)
    assert len({mail.message_id for mail in box.to("one@example.com")}) == 8


@pytest.mark.asyncio
async def test_messages_inside_the_application_are_not_paced(db: Database, make_settings: SettingsMaker) -> None:
    async with daemon(make_settings(notifications={"recipient_interval": 3600, "recipient_burst": 1}), db):
        await paid(db, *range(1, 8))

        async def all_there() -> bool:
            return await db.notifications.count_documents({"role": "admin"}) == 7

        await eventually(all_there, "the admins have all of them")


# --- the breaker ---


@pytest.mark.asyncio
async def test_a_provider_that_is_down_is_left_alone_and_costs_the_waiting_rows_no_attempts(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watcher.gate.Breaker.state", property(_state))
    monkeypatch.setattr("watcher.rows.FIRST_RETRY", 0.0)
    await owed(db, 40)
    async with mailbox(started=False) as box, sending(db, make_settings, box) as sender:
        await sender.rounds()
        tried = await db.notification_log.find({"attempts": {"$gt": 0}}).to_list()
        assert 5 <= len(tried) <= 8, "those that were under way together"
        assert {one["status"] for one in tried} == {"retry"}
        assert await db.notification_log.count_documents({"status": "pending", "attempts": 0}) == 40 - len(tried)
        assert [fields["channel"] for name, fields in sender.emitted if name == "channel.breaker_opened"] == ["email"]
        (alert,) = await alerts(db, "notifications_delayed")
        assert alert["ref"] == "email:breaker_open"

        _Pause.over = True
        assert await sender.round() == 1, "the probe"
        _Pause.over = False
        assert await sender.round() == 0, "a bad probe opens it again"
        await box.start()
        _Pause.over = True
        assert await sender.round() == 1
        assert len(box.arrived) == 1
        assert [name for name, _ in sender.emitted if name.startswith("channel.")] == [
            "channel.breaker_opened",
            "channel.breaker_closed",
        ]
        await sender.rounds()
        assert await sender.statuses() == {"sent": 40}
    assert len(box.arrived) == 40
    assert max(one["attempts"] for one in await db.notification_log.find({}).to_list()) <= 3


@pytest.mark.asyncio
async def test_a_provider_that_asks_for_hours_is_told_of_at_the_first_try(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tomorrow(self: EmailChannel, key: str, message: Message) -> Sent:
        raise NotSent("http_429", 86_400.0)

    monkeypatch.setattr(EmailChannel, "send", tomorrow)
    await owed(db, 1)
    async with mailbox() as box, sending(db, make_settings, box) as sender:
        await sender.rounds()
        stored = await until_status(db, MAIL, "retry")
    assert stored["nextAttemptAt"] - stored["updatedAt"] < timedelta(hours=2), "long before it expires"
    assert [alert["ref"] for alert in await alerts(db, "notifications_delayed")] == ["email:http_429"]


class _Pause:
    over = False


def _state(breaker: Any) -> str:
    """The breaker's pause ends when the test says so."""
    if breaker._until is None:
        return "closed"
    return "half_open" if _Pause.over else "open"


@pytest.mark.asyncio
async def test_addresses_that_are_refused_never_open_the_breaker(db: Database, make_settings: SettingsMaker) -> None:
    await owed(db, 30)
    async with mailbox() as box, sending(db, make_settings, box) as sender:
        box.at_rcpt.extend(["451 greylisted"] * 12 + ["550 no such user"] * 12)
        await sender.rounds()
        assert await sender.statuses() == {"dead": 12, "retry": 12, "sent": 6}
        assert not [name for name, _ in sender.emitted if name.startswith("channel.")]


def test_the_metric_follows_the_breaker() -> None:
    registry = CollectorRegistry()
    metrics = WatcherMetrics(registry)
    for event, value in (("channel.breaker_opened", 1), ("channel.breaker_closed", 0)):
        metrics(event, {"channel": "email"})
        assert registry.get_sample_value("paylatch_channel_breaker", {"channel": "email"}) == value


@pytest.mark.asyncio
async def test_the_metric_is_there_before_anything_fails(db: Database, make_settings: SettingsMaker) -> None:
    async with daemon(make_settings(), db) as running:
        registry = running.parts.registry
        assert registry.get_sample_value("paylatch_channel_breaker", {"channel": "email"}) == 0


# --- what may have been sent ---


@pytest.mark.asyncio
async def test_a_mail_with_an_unknown_end_is_held_where_the_policy_says_so(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with mailbox() as box, daemon(make_settings(email=email(box, timeout=0.5), notifications=HOLD), db):
        box.at_data.append(HANG)
        await paid(db, 1)
        held = await until_status(db, MAIL, "held", "sent", "unknown")
        (alert,) = await alerts(db, "notification_held")
    assert (held["status"], held["reason"], held["nextAttemptAt"]) == ("held", "content_timeout", None)
    assert held["unknownAt"]
    assert "lease" not in held
    assert alert["ref"] == KEY
    assert len(box.arrived) == 1


@pytest.mark.asyncio
async def test_a_row_whose_sender_died_is_held_where_the_policy_says_so(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1, status="completed"))
    await db.notification_log.insert_one(abandoned())
    async with mailbox() as box, daemon(make_settings(email=email(box), notifications=HOLD), db):
        held = await until_status(db, {"key": KEY}, "held", "sent")
    assert (held["status"], held["reason"]) == ("held", "sender_died")
    assert held["unknownAt"]
    assert box.arrived == []


# --- after a gap ---


@pytest.mark.asyncio
async def test_after_a_gap_so_many_go_out_and_the_rest_waits_for_an_operator(
    db: Database, make_settings: SettingsMaker
) -> None:
    await impose(db, now(), "history lost")
    await owed(db, 30, gap=True)
    await db.orders.insert_one(sample.order(99, status="completed"))
    await db.notification_log.insert_one(row(99))
    async with mailbox() as box, sending(db, make_settings, box, gap_cap=10) as sender:
        await sender.rounds()
        assert await sender.statuses() == {"sent": 11, "held": 20}
        assert len(box.to("asha99@example.com")) == 1, "what is no part of the gap is not capped"
        held = await db.notification_log.find({"status": "held"}).to_list()
        assert {(one["reason"], one["attempts"], one["nextAttemptAt"]) for one in held} == {("gap_cap", 0, None)}
        (alert,) = await alerts(db, "notification_held")
        assert (alert["ref"], alert["detail"]) == ("gap_cap", "20 messages found after a gap")
    cap = await in_force(db)
    assert cap is not None
    assert cap["used"] == 10


@pytest.mark.asyncio
async def test_two_instances_share_one_cap_and_a_second_try_takes_no_second_place(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watcher.rows.FIRST_RETRY", 0.2)
    await impose(db, now(), "history lost")
    await owed(db, 40, gap=True)
    async with mailbox() as box:
        box.at_rcpt.extend(["451 later"] * 6)
        settings = make_settings(email=email(box), notifications={"gap_cap": 15})
        async with daemon(settings, db), daemon(settings, db, leads=False):

            async def done() -> bool:
                return await db.notification_log.count_documents({"status": {"$in": ["sent", "held"]}}) == 40

            await eventually(done, "every row is sent or held")
    assert await db.notification_log.count_documents({"status": "sent"}) == 15
    assert len(box.mails) == 15


@pytest.mark.asyncio
async def test_a_row_that_has_its_place_and_waits_for_its_turn_is_not_held_with_the_others(
    db: Database, make_settings: SettingsMaker
) -> None:
    await impose(db, now(), "history lost")
    await owed(db, 3, gap=True)
    async with mailbox() as box, sending(db, make_settings, box, gap_cap=1, recipient_interval=600) as sender:
        first, *_ = await db.notification_log.find({}).sort("key", 1).to_list()
        assert await admit(db, first["_id"], 1)
        later = {"nextAttemptAt": now() + timedelta(minutes=5)}
        await db.notification_log.update_one({"_id": first["_id"]}, {"$set": later})
        await sender.rounds()
        assert await sender.statuses() == {"pending": 1, "held": 2}


@pytest.mark.asyncio
async def test_rows_that_are_held_in_the_moment_in_which_the_cap_is_lifted_go_out(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = NotificationRows.hold_gap

    async def lifted_meanwhile(self: NotificationRows, admitted: Collection[object]) -> int:
        assert await lift(db, now())
        return await real(self, admitted)

    monkeypatch.setattr(NotificationRows, "hold_gap", lifted_meanwhile)
    await impose(db, now(), "history lost")
    await owed(db, 3, gap=True)
    async with mailbox() as box, sending(db, make_settings, box, gap_cap=1) as sender:
        monkeypatch.setattr(sender.dispatcher._channel, "concurrency", 2)  # the second finds the cap used up
        await sender.rounds()
        assert await sender.statuses() == {"sent": 3}


@pytest.mark.asyncio
async def test_what_waits_for_the_channels_rate_when_it_is_stopped_is_not_begun(
    db: Database, make_settings: SettingsMaker
) -> None:
    await owed(db, 4)
    async with mailbox() as box, sending(db, make_settings, box, rates={"email": 10}) as sender:
        assert await sender.dispatcher.run_once() == {"started": 4}
        await sender.dispatcher.drain(10.0)
        assert await sender.statuses() == {"pending": 4}
        assert await db.notification_log.count_documents({"attempts": 0}) == 4
    assert box.arrived == []


@pytest.mark.asyncio
async def test_rows_of_a_gap_go_out_where_no_cap_is_in_force(db: Database, make_settings: SettingsMaker) -> None:
    await owed(db, 5, gap=True)
    async with mailbox() as box, sending(db, make_settings, box, gap_cap=1) as sender:
        await sender.rounds()
        assert await sender.statuses() == {"sent": 5}
