"""What refunds do to orders: added up by their ids, whatever comes first, and told to the customer once."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from models.database import Database
from scripts.simulator.sender import Sender
from scripts.simulator.shop import MongoShop
from scripts.simulator.traffic import TrafficOptions, plan, run
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import PAID, daemon, until_read, until_status, until_told
from tests.support.endpoint import Endpoint, endpoint
from tests.support.mailbox import QUIET, email, mailbox
from tests.support.wait import eventually

PAYMENT = sample.payment_id(1)
OTHER_PAYMENT = sample.payment_id(1, "B")
REFUND = sample.refund_id(1)
SECOND = sample.refund_id(1, 2)


async def tell(shop: Endpoint, *bodies: Any) -> None:
    """Post them one after the other, each when the one before has taken effect."""
    for place, body in enumerate(bodies, start=1):
        assert (await shop.processed(body, f"E{place}")).startswith("completed/")


async def state(shop: Endpoint, number: int = 1) -> tuple[str, int | None]:
    """The order's status, and what it says was refunded."""
    payment = (await shop.order(number))["payment"]
    return payment["status"], payment.get("amountRefunded")


async def facts(shop: Endpoint, number: int = 1) -> list[tuple[str, str]]:
    return [(entry["fact"], entry["ref"]) for entry in (await shop.order(number)).get("history", [])]


async def ledger(db: Database) -> dict[str, int]:
    """Amounts by `<entry type>:<ref>`."""
    return {row["_id"]: row["amount"] async for row in db.ledger.find({})}


async def fulfilments(db: Database) -> list[Any]:
    return [row["_id"] async for row in db.fulfilments.find({})]


# --- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_whole_refund_is_booked_once_and_moves_the_order(shop: Endpoint) -> None:
    await tell(shop, sample.captured(1), sample.refunded(1, "created"), sample.refunded(1))
    assert await state(shop) == ("refunded", sample.AMOUNT)
    order = await shop.order(1)
    moves = [(entry["fact"], entry["from"], entry["to"]) for entry in order["history"]]
    assert moves == [
        ("payment_completed", "pending", "completed"),
        ("refund_created", "completed", "completed"),
        ("refund_processed", "completed", "refunded"),
    ]
    assert order["history"][-1]["cause"] == {"eventId": "E3", "eventType": "refund.processed", "origin": "webhook"}
    (refund,) = order["payment"]["refunds"]
    assert (refund["refundId"], refund["paymentId"], refund["status"]) == (REFUND, PAYMENT, "processed")
    entry = await shop.db.ledger.find_one({"_id": f"refund:{REFUND}"})
    assert entry is not None
    assert (entry["entryType"], entry["refId"], entry["amount"]) == ("refund", REFUND, sample.AMOUNT)
    assert (entry["currency"], entry["orderId"], entry["userRef"]) == ("INR", "ord1", "user1")
    assert order["payment"]["amountPaid"] == sample.AMOUNT
    assert await fulfilments(shop.db) == ["ord1"]


@pytest.mark.asyncio
async def test_partial_refunds_add_up_and_the_second_never_overwrites_the_total(shop: Endpoint) -> None:
    await tell(shop, sample.captured(1), sample.refunded(1, amount=20_000))
    assert await state(shop) == ("partially_refunded", 20_000)
    second = sample.refunded(1, nth=2, amount=9_900, beside={"amount_refunded": 29_900})
    assert await shop.processed(second, "R2") == "completed/applied"
    assert await state(shop) == ("partially_refunded", 29_900)
    third = sample.refunded(1, nth=3, amount=20_000, beside={"amount_refunded": 49_900, "status": "refunded"})
    assert await shop.processed(third, "R3") == "completed/applied"
    assert await state(shop) == ("refunded", sample.AMOUNT)
    assert await ledger(shop.db) == {
        f"capture:{PAYMENT}": sample.AMOUNT,
        f"refund:{REFUND}": 20_000,
        f"refund:{SECOND}": 9_900,
        f"refund:{sample.refund_id(1, 3)}": 20_000,
    }


@pytest.mark.asyncio
async def test_the_running_total_beside_a_refund_is_never_taken_for_a_refund(shop: Endpoint) -> None:
    """What the payment says it gave back includes refunds that we may never hear of, or hear of later."""
    beside = {"amount_refunded": 45_000, "refund_status": "partial"}
    await tell(shop, sample.captured(1), sample.refunded(1, amount=20_000, beside=beside))
    assert await state(shop) == ("partially_refunded", 20_000)


@pytest.mark.asyncio
async def test_a_pending_refund_moves_no_money(shop: Endpoint) -> None:
    await tell(shop, sample.captured(1), sample.refunded(1, "created"))
    assert await state(shop) == ("completed", 0)
    assert await ledger(shop.db) == {f"capture:{PAYMENT}": sample.AMOUNT}
    assert (await facts(shop))[-1] == ("refund_created", REFUND)


@pytest.mark.asyncio
async def test_what_counts_is_the_refunds_status_and_not_the_events_name(shop: Endpoint) -> None:
    await tell(shop, sample.captured(1), sample.refunded(1, "created", status="processed"))
    assert await state(shop) == ("refunded", sample.AMOUNT)
    assert await shop.processed(sample.refunded(1), "E3") == "completed/already_applied"
    assert await shop.processed(sample.refunded(1, "speed_changed"), "E4") == "completed/already_applied"
    assert await ledger(shop.db) == {f"capture:{PAYMENT}": sample.AMOUNT, f"refund:{REFUND}": sample.AMOUNT}
    assert await facts(shop) == [("payment_completed", PAYMENT), ("refund_processed", REFUND)]


@pytest.mark.asyncio
async def test_more_refunded_than_captured_goes_to_review_loudly(shop: Endpoint) -> None:
    await tell(shop, sample.captured(1), sample.refunded(1, amount=30_000), sample.refunded(1, nth=2, amount=30_000))
    assert await state(shop) == ("refunded", 60_000)
    (entry,) = (await shop.order(1))["payment"]["review"]
    assert (entry["reason"], entry["ref"], entry["state"]) == ("refunded_more_than_captured", PAYMENT, "open")
    alert = await shop.db.alerts.find_one({"_id": f"payment_review:refunded_more_than_captured:{PAYMENT}"})
    assert alert is not None
    assert alert["count"] == 1
    assert [fields["kind"] for name, fields in shop.emitted if name == "alert.raised"] == ["payment_review"]


# --- refunds that fail ------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_refund_that_fails_leaves_the_order_completed(shop: Endpoint) -> None:
    await tell(shop, sample.captured(1), sample.refunded(1, "created"), sample.refunded(1, "failed"))
    assert await state(shop) == ("completed", 0)
    assert await ledger(shop.db) == {f"capture:{PAYMENT}": sample.AMOUNT}
    assert (await facts(shop))[-1] == ("refund_failed", REFUND)


@pytest.mark.asyncio
async def test_a_refund_that_fails_after_it_was_processed_gives_back_the_status(shop: Endpoint) -> None:
    partial = sample.refunded(1, nth=2, amount=10_000)
    await tell(shop, sample.captured(1), partial, sample.refunded(1, amount=39_900), sample.order_paid(1))
    assert await state(shop) == ("refunded", sample.AMOUNT)
    assert await shop.processed(sample.refunded(1, "failed", amount=39_900), "R1") == "completed/applied"
    assert await state(shop) == ("partially_refunded", 10_000)
    assert await shop.processed(sample.refunded(1, amount=39_900, speed_processed=None), "R2") == (
        "completed/already_applied"
    )  # told again that it was processed: it has failed since
    assert await shop.processed(sample.refunded(1, "failed", nth=2, amount=10_000), "R3") == "completed/applied"
    assert await state(shop) == ("completed", 0)
    assert await ledger(shop.db) == {
        f"capture:{PAYMENT}": sample.AMOUNT,
        f"refund:{REFUND}": 39_900,
        f"refund_reversal:{REFUND}": 39_900,
        f"refund:{SECOND}": 10_000,
        f"refund_reversal:{SECOND}": 10_000,
    }
    assert await fulfilments(shop.db) == ["ord1"]


# --- before, without and beside the capture ---------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_refund_before_its_capture_is_a_capture_too_since_it_shows_the_payment(shop: Endpoint) -> None:
    await tell(shop, sample.refunded(1, amount=20_000))
    assert await state(shop) == ("partially_refunded", 20_000)
    assert await ledger(shop.db) == {f"capture:{PAYMENT}": sample.AMOUNT, f"refund:{REFUND}": 20_000}
    assert await fulfilments(shop.db) == ["ord1"]
    assert await shop.processed(sample.captured(1), "E9") == "completed/already_applied"
    assert await state(shop) == ("partially_refunded", 20_000)


@pytest.mark.asyncio
async def test_a_refund_of_the_old_shape_waits_for_the_capture_and_then_applies_by_itself(shop: Endpoint) -> None:
    assert (await shop.post(sample.refunded(1, beside=None, amount=20_000), "E1"))[0] == 200
    assert (await shop.settled("E1", "parked"))["outcome"]["code"] == "waiting_for_order"
    assert await shop.processed(sample.captured(1), "E2") == "completed/applied"
    row = await shop.settled("E1")
    assert (row["status"], row["outcome"]["code"], row["attempts"]) == ("completed", "applied", 1)
    assert await state(shop) == ("partially_refunded", 20_000)
    assert await ledger(shop.db) == {f"capture:{PAYMENT}": sample.AMOUNT, f"refund:{REFUND}": 20_000}


@pytest.mark.asyncio
@pytest.mark.parametrize("beside", [None, {"order_id": None}], ids=["the old shape", "a payment without its order"])
async def test_a_refund_is_found_by_its_payment_when_it_names_no_order(
    shop: Endpoint, beside: Mapping[str, Any] | None
) -> None:
    await tell(shop, sample.captured(1), sample.refunded(1, beside=beside))
    assert await state(shop) == ("refunded", sample.AMOUNT)


@pytest.mark.asyncio
async def test_a_refund_of_a_payment_that_was_never_captured_moves_nothing(shop: Endpoint) -> None:
    """The provider gives back by itself what nobody captured in time."""
    assert await shop.processed(sample.refunded(1, beside={"captured": False}), "E1") == "completed/applied"
    assert await state(shop) == ("pending", 0)
    assert await ledger(shop.db) == {}
    assert await fulfilments(shop.db) == []
    assert await facts(shop) == [("refund_processed", REFUND)]
    await shop.processed(sample.captured(1, letter="B"), "E2")  # the customer tried again
    assert await state(shop) == ("completed", 0)
    assert await ledger(shop.db) == {f"capture:{OTHER_PAYMENT}": sample.AMOUNT}


@pytest.mark.asyncio
async def test_the_refund_of_a_second_payment_leaves_the_order_paid(shop: Endpoint) -> None:
    later = {"letter": "B", "created_at": sample.CREATED + 60}
    await tell(shop, sample.captured(1), sample.captured(1, **later))
    refund = sample.refunded(1, letter="B", beside={"created_at": sample.CREATED + 60})
    assert await shop.processed(refund, "R1") == "completed/applied"
    assert await state(shop) == ("completed", 0)
    assert await ledger(shop.db) == {
        f"capture:{PAYMENT}": sample.AMOUNT,
        f"capture:{OTHER_PAYMENT}": sample.AMOUNT,
        f"refund:{REFUND}": sample.AMOUNT,
    }


@pytest.mark.asyncio
async def test_an_order_that_the_shop_itself_completed_is_found_by_the_payment_it_names(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(
        sample.order(1, status="completed", razorpayPaymentId=PAYMENT, razorpayOrderId="order_OfAnotherTime")
    )
    async with endpoint(make_settings()) as shop:
        await tell(shop, sample.refunded(1, amount=20_000, beside={"order_id": None}))
        assert await state(shop) == ("partially_refunded", 20_000)
        assert await ledger(db) == {f"capture:{PAYMENT}": sample.AMOUNT, f"refund:{REFUND}": 20_000}


@pytest.mark.asyncio
async def test_a_refund_leaves_a_status_of_the_shops_own_alone(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(sample.order(1, status="cancelled"))
    async with endpoint(make_settings()) as shop:
        await tell(shop, sample.captured(1), sample.refunded(1))
        assert await state(shop) == ("cancelled", sample.AMOUNT)
        assert await ledger(db) == {f"capture:{PAYMENT}": sample.AMOUNT, f"refund:{REFUND}": sample.AMOUNT}


# --- any order, any number of times -----------------------------------------------------------------------------------


def again(body: dict[str, Any]) -> dict[str, Any]:
    """The same facts in other bytes, which admission cannot know as a duplicate."""
    return {**body, "created_at": body["created_at"] + 1}


@pytest.mark.asyncio
@pytest.mark.parametrize("amount", [20_000, sample.AMOUNT])
async def test_one_refunds_events_end_the_same_in_every_order_and_any_number_of_times(
    db: Database, make_settings: SettingsMaker, amount: int
) -> None:
    ends = set()
    arrivals = list(itertools.permutations(("captured", "created", "processed")))
    async with endpoint(make_settings()) as shop:
        for number, arrival in enumerate(arrivals, start=1):
            bodies = {
                "captured": sample.captured(number),
                "created": sample.refunded(number, "created", amount=amount),
                "processed": sample.refunded(number, amount=amount),
            }
            await db.orders.insert_one(sample.order(number))
            for name in arrival:
                await shop.processed(bodies[name], f"{number}-{name}")
            for name in arrival[::-1]:
                assert (await shop.post(bodies[name], f"{number}-{name}"))[1]["status"] == "duplicate"
                outcome = await shop.processed(again(bodies[name]), f"{number}-{name}-again")
                assert outcome.startswith("completed/")
            assert await fulfilments(db) == [f"ord{told}" for told in range(1, number + 1)]
            ends.add(await end(shop, number))
    (only,) = ends
    became = json.loads(only)
    assert became["payment"]["amountRefunded"] == amount
    assert became["facts"] == [
        ["payment_completed", "pay", sample.AMOUNT],
        ["refund_created", "rfnd", amount],
        ["refund_processed", "rfnd", amount],
    ]
    assert became["ledger"] == [["capture:pay", sample.AMOUNT, "INR"], ["refund:rfnd", amount, "INR"]]
    assert await db.ledger.count_documents({}) == 2 * len(arrivals)


async def end(shop: Endpoint, number: int) -> str:
    """What became of order `number`, without what names it and without times of ours."""
    order = await shop.order(number)
    payment = {name: value for name, value in order["payment"].items() if name != "changedAt"}
    assert [entry["seq"] for entry in order["history"]] == list(range(1, len(order["history"]) + 1))
    booked = shop.db.ledger.find({"orderId": order["_id"]})
    became = {
        "payment": payment,
        "facts": sorted((entry["fact"], entry["ref"], entry["amount"]) for entry in order["history"]),
        "ledger": sorted([(row["_id"], row["amount"], row["currency"]) async for row in booked]),
    }
    text = json.dumps(became, default=str, sort_keys=True)
    names = (sample.payment_id(number), sample.refund_id(number), sample.provider_order_id(number))
    for name, word in zip(names, ("pay", "rfnd", "order"), strict=True):
        text = text.replace(name, word)
    return text


@pytest.mark.asyncio
async def test_simulated_traffic_with_refunds_out_of_order_ends_in_its_own_truth(
    db: Database, make_settings: SettingsMaker
) -> None:
    options = TrafficOptions(
        secrets={"new": sample.SECRET, "old": sample.OLD_SECRET},
        current="new",
        old="old",
        orders=20,
        reorder=1.0,
        partial_refund_share=0.2,
        full_refund_share=0.2,
        failed_refund_share=0.2,
    )
    traffic, orders = plan(options), MongoShop(db, random.Random(1))
    await orders.insert(traffic.orders)
    moved = [order for order, truth in traffic.truth.items() if truth.status != "pending"]
    assert await orders.differing(traffic.truth) == sorted(moved)
    async with endpoint(make_settings()) as shop, Sender(shop.url) as sender:
        report = await run(traffic, sender)
        assert (report.unexpected, report.accepted) == ([], traffic.counts["first"])

        async def as_planned() -> bool:
            unfinished = await db.events.count_documents({"status": {"$ne": "completed"}})
            return not unfinished and not await orders.differing(traffic.truth)

        await eventually(as_planned, "every order ended as planned")
    assert set(await ledger(db)) == {entry for truth in traffic.truth.values() for entry in truth.ledger}
    wrong = next(order for order, truth in traffic.truth.items() if truth.status == "partially_refunded")
    await db.orders.update_one({"_id": wrong}, {"$inc": {"payment.amountRefunded": 1}})
    assert await orders.differing(traffic.truth) == [wrong]


# --- the customer -----------------------------------------------------------------------------------------------------


@QUIET
@pytest.mark.asyncio
async def test_the_customer_is_told_of_a_refund_once_by_mail(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(sample.order(1))
    async with mailbox() as box, daemon(make_settings(email=email(box)), db), endpoint(make_settings()) as shop:
        bodies = [sample.captured(1), sample.refunded(1, "created", amount=20_000), sample.refunded(1, amount=20_000)]
        await tell(shop, *bodies)
        assert (await shop.post(bodies[-1], "another-id"))[1]["status"] == "duplicate"
        await shop.processed(again(bodies[-1]), "told-again")
        await until_told(db, "ord1", *PAID, "refund_processed:email:customer", "refund_processed:inapp:admin")
        key = f"order:ord1:refund_processed:{REFUND}:email:customer"
        sent = await until_status(db, {"key": key}, "sent")
        await until_status(db, {"key": "order:ord1:payment_completed:email:customer"}, "sent")
        await until_read(db)
        await until_told(db, "ord1", *PAID, "refund_processed:email:customer", "refund_processed:inapp:admin")
    (mail,) = [mail for mail in box.to("asha1@example.com") if mail.message_id == sent["providerMessageId"]]
    assert mail.subject == "Your refund for order TEA-1 is on its way"
    assert "₹200.00" in mail.text
    assert len(box.to("asha1@example.com")) == 2  # the payment and the refund
