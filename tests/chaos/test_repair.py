"""Orders that the shop's code damaged or corrected: their events are evaluated again, and everything is told once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Timestamp

from models.clock import ServerClock
from models.database import Database
from models.replay import make_due_again
from models.telemetry import Telemetry
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import PAID, Daemon, alerts, daemon, until_read
from tests.support.endpoint import Endpoint, endpoint
from tests.support.mailbox import QUIET, email, mailbox
from tests.support.oracle import agree
from tests.support.wait import eventually
from watcher.place import cluster_time
from watcher.repair import Repair

pytestmark = QUIET

QUICK = {"leader_lease": 0.8}


@asynccontextmanager
async def paid_order(db: Database, settings: Any, amount: int = sample.AMOUNT) -> AsyncIterator[tuple[Endpoint, Any]]:
    """Order 1 paid through the webhook, with a watcher reading; and the order as the shop's code loaded it before."""
    await db.orders.insert_one(sample.order(1, amount=amount))
    loaded = await db.orders.find_one({"_id": "ord1"})
    async with endpoint(settings) as shop:
        await shop.processed(sample.captured(1), "E1")
        yield shop, loaded


async def until_whole(db: Database) -> None:
    async def check() -> bool:
        order = await db.orders.find_one({"_id": "ord1"}) or {}
        return order["payment"]["status"] == "completed" and bool(order["payment"].get("attempts"))

    await eventually(check, "the order has its payment again")


async def saved_whole(db: Database, loaded: Any) -> None:
    await db.orders.replace_one({"_id": "ord1"}, loaded)


async def saved_payment(db: Database, loaded: Any) -> None:
    await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment": loaded["payment"]}})


async def removed_payment(db: Database, loaded: Any) -> None:
    await db.orders.update_one({"_id": "ord1"}, {"$unset": {"payment": ""}})
    await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment": loaded["payment"]}})


@pytest.mark.asyncio
@pytest.mark.parametrize("damage", [saved_whole, saved_payment, removed_payment])
async def test_a_stale_save_over_a_paid_order_is_told_and_repaired(
    db: Database, make_settings: SettingsMaker, damage: Any
) -> None:
    async with mailbox() as box:
        settings = make_settings(email=email(box), watcher=QUICK)
        async with daemon(settings, db), paid_order(db, settings) as (_, loaded):
            await until_read(db)
            await damage(db, loaded)
            await until_whole(db)
            await until_read(db)
            await agree(db, {"ord1": PAID})
            assert {alert["ref"] for alert in await alerts(db, "order_facts_lost")} == {"ord1"}
            assert await db.ledger.count_documents({}) == await db.fulfilments.count_documents({}) == 1
            assert len(box.to("asha1@example.com")) == 1
            row = await db.events.find_one({"eventId": "E1"}) or {}
            assert row["requeues"] >= 1


@pytest.mark.asyncio
@pytest.mark.parametrize("gap", [False, True], ids=["from time to time", "after a gap"])
async def test_a_sweep_finds_what_a_stale_save_lost_while_nobody_read(
    db: Database, make_settings: SettingsMaker, *, gap: bool
) -> None:
    settings = make_settings(watcher={**QUICK, "sweep_interval": 0.2})
    async with daemon(settings, db):
        await until_read(db)
    async with paid_order(db, settings) as (_, loaded):
        await saved_whole(db, loaded)
        if gap:
            await db.watcher_state.delete_one({"_id": "sweep"})
        newest = await cluster_time(db)
        beyond = {"token": None, "clusterTime": Timestamp(newest.time, newest.inc + 1)}
        place: dict[str, Any] = {"cluster.setName": "another"} if gap else beyond  # nobody reads the change itself
        await db.watcher_state.update_one({"_id": "checkpoint"}, {"$set": place})
        async with daemon(settings, db) as running:
            await until_whole(db)
            assert bool(running.events("stream.gap")) is gap
            await agree(db, {"ord1": PAID})
            assert [alert["ref"] for alert in await alerts(db, "order_facts_lost")] == ["ord1"]


@pytest.mark.asyncio
async def test_an_order_that_was_read_before_its_payment_was_written_has_lost_nothing(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with paid_order(db, make_settings()) as (_, loaded):
        clock = ServerClock(db.client)
        await clock.run_once()
        assert await Repair(db, clock, Telemetry()).restore([loaded]) == 0
        assert await alerts(db, "order_facts_lost") == []


@pytest.mark.asyncio
async def test_a_periodic_sweep_tells_what_was_never_told(db: Database, make_settings: SettingsMaker) -> None:
    settings = make_settings(watcher={**QUICK, "sweep_interval": 0.2})
    async with daemon(settings, db), paid_order(db, settings):
        await agree(db, {"ord1": PAID})
        await db.notification_log.delete_many({"channel": "inapp"})
        await db.notifications.delete_many({})
        await agree(db, {"ord1": PAID})
        assert await db.notification_log.count_documents({"gap": True}) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "correction",
    [
        {"payment.amount": sample.AMOUNT},
        {"payment.currency": "INR"},
        {"payment": {**sample.order(1)["payment"], "review": [{"reason": "amount_mismatch", "state": "open"}]}},
    ],
    ids=["amount", "currency", "whole payment"],
)
async def test_a_correction_of_what_the_order_expects_makes_its_events_due_again(
    db: Database, make_settings: SettingsMaker, correction: dict[str, Any]
) -> None:
    settings = make_settings(watcher=QUICK)
    async with daemon(settings, db) as running, paid_order(db, settings, amount=100) as (_, _loaded):
        await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment.currency": "USD"}})
        await until_again(running, 1)
        await db.orders.update_one({"_id": "ord1"}, {"$set": correction})
        await until_again(running, 2)


async def until_again(running: Daemon, times: int) -> None:
    """The order's one event was made due again and evaluated."""
    assert (await running.until_emitted("order.corrected", times))["order"] == "ord1"

    async def done() -> bool:
        again = {"eventId": "E1", "status": "completed", "requeues": {"$gte": times}}
        return await running.db.events.find_one(again) is not None

    await eventually(done, "the event was evaluated again")


@pytest.mark.asyncio
async def test_a_correction_while_the_event_is_being_evaluated_is_not_missed(
    db: Database, make_settings: SettingsMaker
) -> None:
    """The worker may have read the order before it was corrected."""
    async with daemon(make_settings(watcher=QUICK), db) as running:
        review = [{"reason": "amount_mismatch", "ref": "pay_1", "state": "open"}]
        await db.orders.insert_one(sample.order(1, amount=100, review=review))
        refs = {"orderId": sample.provider_order_id(1)}
        await db.events.insert_one({"eventId": "E1", "bodyHash": "h", "refs": refs, "status": "processing"})
        await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment.amount": 200}})
        await running.until_emitted("order.under_way")
        await db.events.update_one({"eventId": "E1"}, {"$set": {"status": "completed"}})
        assert await running.until_emitted("order.corrected") == {"order": "ord1", "events": 1}


REFUND = ("refund_processed:email:customer", "refund_processed:inapp:admin")


@pytest.mark.asyncio
@pytest.mark.parametrize("amount", [sample.AMOUNT, 100], ids=["refunded", "partially refunded"])
async def test_a_payment_that_the_shop_saves_as_it_has_it_from_us_tells_no_refund_of_the_shops_own(
    db: Database, make_settings: SettingsMaker, amount: int
) -> None:
    settings = make_settings(watcher=QUICK)
    async with daemon(settings, db), paid_order(db, settings) as (shop, _):
        await shop.processed(sample.refunded(1, amount=amount), "E2")
        loaded = await shop.order(1)
        for note in ("packed", "sent"):
            await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment": {**loaded["payment"], "note": note}}})
        await db.orders.replace_one({"_id": "ord1"}, {"payment": loaded["payment"]})
        await until_read(db)
        await agree(db, {"ord1": [*PAID, *REFUND]})


@pytest.mark.asyncio
async def test_a_change_of_the_amount_without_an_open_review_evaluates_nothing_again(
    db: Database, make_settings: SettingsMaker
) -> None:
    settings = make_settings(watcher=QUICK)
    async with daemon(settings, db) as running, paid_order(db, settings):
        await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment.amount": 5}})
        await until_read(db)
        assert running.events("order.corrected") == []
        assert await db.events.count_documents({"requeues": {"$gt": 0}}) == 0


ODD: list[dict[str, Any]] = [
    {"status": "pending", "attempts": [{"captured": True, "paymentId": ["pay_1"]}]},
    {"status": "pending", "review": [{"state": "open", "reason": {"text": "call"}}]},
    {"status": ["pending"], "attempts": {"captured": True}, "refs": [{"kind": ["order"], "id": {}}]},
]


@pytest.mark.asyncio
@pytest.mark.parametrize("payment", ODD, ids=["attempts", "review", "everything"])
async def test_a_payment_that_the_shop_filled_with_nonsense_stops_neither_the_stream_nor_a_sweep(
    db: Database, make_settings: SettingsMaker, payment: dict[str, Any]
) -> None:
    settings = make_settings(watcher=QUICK)
    await db.orders.insert_one(sample.order(1))
    async with daemon(settings, db) as running:
        await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment": payment}})
        await until_read(db)
        assert running.events("stream.failed") == []
        assert await db.dead_letters.count_documents({}) == 0
    await db.watcher_state.update_one({"_id": "checkpoint"}, {"$set": {"cluster.setName": "another"}})
    async with daemon(settings, db) as running:
        await running.until_emitted("sweep.done")
        assert running.events("duty.failed") == []


@pytest.mark.asyncio
async def test_a_change_that_cannot_be_repaired_is_kept_aside_and_the_others_are(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Repair.after

    async def odd(self: Repair, changes: Sequence[Mapping[str, Any]]) -> None:
        if any(change["documentKey"]["_id"] == "ord2" for change in changes):
            raise ZeroDivisionError
        await real(self, changes)

    async with daemon(make_settings(watcher=QUICK), db) as running:
        monkeypatch.setattr(Repair, "after", odd)
        async with db.client.start_session() as session, await session.start_transaction():
            await db.orders.insert_many(
                [sample.order(number, status="completed") for number in (1, 2, 3)], session=session
            )
        await agree(db, {f"ord{number}": PAID for number in (1, 2, 3)})
        await until_read(db)
        (letter,) = await db.dead_letters.find().to_list()
        assert (letter["documentKey"], letter["error"]) == ({"_id": "ord2"}, "ZeroDivisionError")
        assert running.events("stream.failed") == []


@pytest.mark.asyncio
async def test_only_completed_events_of_the_order_become_due_again(db: Database) -> None:
    refs = [{"provider": "razorpay", "kind": "order", "id": "order_3"}, {"id": "of no kind"}, 7]
    order = sample.order(1, attempts=[{"paymentId": "pay_2"}, "text"], refs=refs, paymentLinkId="plink_4")
    await db.ledger.insert_one({"_id": "capture:pay_5", "entryType": "capture", "refId": "pay_5", "orderId": "ord1"})
    mine: list[dict[str, Any]] = [
        {"orderId": sample.provider_order_id(1)},
        {"paymentId": "pay_2"},
        {"orderId": "order_3"},
        {"paymentLinkId": "plink_4"},
        {"paymentId": "pay_5"},
    ]
    lease = {"token": "t", "until": datetime.now(UTC)}
    for number, named in enumerate([*mine, {"orderId": sample.provider_order_id(2)}]):
        base = {"eventId": f"E{number}", "bodyHash": f"h{number}", "requeues": 0, "attempts": 3, "lease": lease}
        await db.events.insert_one({**base, "refs": named, "status": "completed"})
    await db.events.update_one({"eventId": "E1"}, {"$set": {"status": "dead"}})
    now = datetime(2026, 5, 1, tzinfo=UTC)
    assert await make_due_again(db, order, now) == 4
    found = await db.events.find({"status": "received"}).sort("eventId", 1).to_list()
    assert [row["eventId"] for row in found] == ["E0", "E2", "E3", "E4"]
    for row in found:
        assert (row["attempts"], row["requeues"], row["nextAttemptAt"]) == (0, 1, now)
        assert "lease" not in row
    assert await make_due_again(db, order, now) == 0
    assert await make_due_again(db, {"_id": "nobody"}, now) == 0
