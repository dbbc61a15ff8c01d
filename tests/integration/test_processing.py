"""What events do to orders: once, in any order of arrival, whoever works on them and whatever stands in the way."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pymongo
import pytest
from bson import Binary, Decimal128, ObjectId
from bson.json_util import dumps
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import AutoReconnect, OperationFailure

from models.database import DURABLE, Database
from models.errors import PreconditionMissed
from models.facts import Cause, Event
from models.leases import Claim
from models.reducer import reduce
from models.settings import OrderSettings
from models.states import EventStatus
from models.telemetry import Telemetry
from models.terms import Expectation
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import Endpoint, endpoint
from tests.support.wait import eventually
from webhook import processing
from webhook.event_rows import EventRows, Job
from webhook.orders import Found, find_order
from webhook.providers.razorpay import Razorpay
from webhook.recovery import Recovery
from webhook.settlement import Settlement

PAYMENT = sample.payment_id(1)
OTHER_PAYMENT = sample.payment_id(1, "B")
OUR_PAYMENT_FIELDS = {
    "status",
    "razorpayPaymentId",
    "amountPaid",
    "method",
    "methodDetails",
    "paidAt",
    "attempts",
    "review",
    "changedAt",
}


def facts(order: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(entry["fact"], entry["from"], entry["to"]) for entry in order.get("history", [])]


async def ledger(db: Database) -> list[str]:
    return sorted([row["_id"] async for row in db.ledger.find({})])


async def reviews(shop: Endpoint, number: int) -> list[tuple[str, str, str]]:
    entries = (await shop.order(number))["payment"].get("review", [])
    return [(entry["reason"], entry["ref"], entry["state"]) for entry in entries]


async def alerted(db: Database, kind: str, ref: str) -> dict[str, Any]:
    alert = await db.alerts.find_one({"_id": f"{kind}:{ref}"})
    assert alert is not None, f"no alert {kind}:{ref}"
    return alert


async def assert_completed_once(shop: Endpoint, number: int) -> None:
    order = await shop.order(number)
    assert order["payment"]["status"] == "completed"
    moves = [entry for entry in order["history"] if entry["to"] == "completed" and entry["from"] != "completed"]
    assert len(moves) == 1
    assert [entry["seq"] for entry in order["history"]] == list(range(1, len(order["history"]) + 1))
    credited = await shop.db.ledger.find({"orderId": order["_id"]}).to_list()
    assert [row["amount"] for row in credited] == [order["payment"]["amountPaid"]]
    assert await shop.db.fulfilments.count_documents({"_id": order["_id"]}) == 1


# --- one payment, several events --------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_captured_then_order_paid_of_one_payment_take_effect_once(shop: Endpoint) -> None:
    assert await shop.processed(sample.captured(1), "E1") == "completed/applied"
    before = await shop.order(1)
    assert await shop.processed(sample.order_paid(1), "E2") == "completed/already_applied"
    assert await shop.order(1) == before
    assert facts(before) == [("payment_completed", "pending", "completed")]
    assert before["history"][0]["cause"] == {"eventId": "E1", "eventType": "payment.captured", "origin": "webhook"}
    assert before["payment"]["razorpayPaymentId"] == PAYMENT
    assert before["payment"]["amountPaid"] == sample.AMOUNT
    assert before["payment"]["paidAt"] == datetime.fromtimestamp(sample.CREATED, UTC)
    assert before["version"] == 1
    assert await ledger(shop.db) == [f"capture:{PAYMENT}"]
    await assert_completed_once(shop, 1)
    credit = await shop.db.ledger.find_one({"_id": f"capture:{PAYMENT}"})
    assert credit is not None
    assert (credit["amount"], credit["currency"], credit["userRef"]) == (sample.AMOUNT, "INR", "user1")


@pytest.mark.asyncio
async def test_the_events_of_one_payment_at_the_same_time_take_effect_once(shop: Endpoint) -> None:
    bodies = [sample.authorized(1), sample.captured(1), sample.order_paid(1)]
    await asyncio.gather(*(shop.post(body, f"E{number}") for number, body in enumerate(bodies)))
    for number in range(len(bodies)):
        assert (await shop.settled(f"E{number}"))["status"] == "completed"
    await assert_completed_once(shop, 1)


@pytest.mark.asyncio
async def test_a_late_authorized_never_undoes_captured(shop: Endpoint) -> None:
    await shop.processed(sample.captured(1), "E1")
    assert (await shop.processed(sample.authorized(1), "E2")).startswith("completed/")
    order = await shop.order(1)
    assert order["payment"]["status"] == "completed"
    assert order["payment"]["razorpayPaymentId"] == PAYMENT
    await assert_completed_once(shop, 1)


@pytest.mark.asyncio
async def test_authorized_moves_nothing(shop: Endpoint) -> None:
    assert await shop.processed(sample.authorized(1), "E1") == "completed/applied"
    order = await shop.order(1)
    assert facts(order) == [("payment_authorized", "pending", "pending")]
    assert order["payment"]["status"] == "pending"
    assert await ledger(shop.db) == []


@pytest.mark.asyncio
async def test_failed_then_captured_completes(shop: Endpoint) -> None:
    """Late authorisation: a failure is not the end for up to three days."""
    await shop.processed(sample.failed(1), "E1")
    assert (await shop.order(1))["payment"]["status"] == "failed"
    await shop.processed(sample.captured(1), "E2")
    assert facts(await shop.order(1)) == [
        ("payment_failed", "pending", "failed"),
        ("payment_completed", "failed", "completed"),
    ]
    await assert_completed_once(shop, 1)


@pytest.mark.asyncio
async def test_a_failure_that_is_told_late_leaves_a_completed_order_completed(shop: Endpoint) -> None:
    await shop.processed(sample.captured(1), "E1")
    assert await shop.processed(sample.failed(1, letter="B"), "E2") == "completed/applied"
    assert (await shop.order(1))["payment"]["status"] == "completed"
    await assert_completed_once(shop, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("flag", [True, 1, "1"])
async def test_a_failed_payment_that_says_captured_never_completes(shop: Endpoint, flag: Any) -> None:
    await shop.processed(sample.failed(1, captured=flag), "E1")
    await shop.processed(sample.authorized(1, captured=flag), "E2")
    assert (await shop.order(1))["payment"]["status"] == "failed"
    assert await ledger(shop.db) == []
    assert await shop.db.fulfilments.count_documents({}) == 0


@pytest.mark.asyncio
async def test_a_second_captured_payment_is_credited_and_goes_to_review(shop: Endpoint) -> None:
    await shop.processed(sample.captured(1, letter="B", created_at=sample.CREATED + 60), "E1")
    await shop.processed(sample.captured(1), "E2")
    order = await shop.order(1)
    assert order["payment"]["razorpayPaymentId"] == PAYMENT  # the older one, though it was told later
    assert await reviews(shop, 1) == [("duplicate_capture", OTHER_PAYMENT, "open")]
    await alerted(shop.db, "payment_review", f"duplicate_capture:{OTHER_PAYMENT}")
    assert await ledger(shop.db) == [f"capture:{PAYMENT}", f"capture:{OTHER_PAYMENT}"]
    assert await shop.db.fulfilments.count_documents({}) == 1


# --- money that does not fit ------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"amount": sample.AMOUNT - 1}, "amount_mismatch"),
        ({"amount": sample.AMOUNT * 100}, "amount_mismatch"),
        ({"amount": 0}, "amount_mismatch"),
        ({"currency": "USD"}, "currency_mismatch"),
        ({"currency": "USD", "base_amount": sample.AMOUNT, "base_currency": "INR"}, "currency_mismatch"),
        ({"amount": 1, "base_amount": sample.AMOUNT}, "amount_mismatch"),
        ({"currency": None}, "currency_mismatch"),
        ({"amount": "499.00"}, "amount_unreadable"),
        ({"amount": True}, "amount_unreadable"),
        ({"amount": -sample.AMOUNT}, "amount_unreadable"),
        ({"amount": [sample.AMOUNT]}, "amount_unreadable"),
    ],
)
async def test_a_capture_that_does_not_fit_never_completes_and_is_put_in_review_loudly(
    shop: Endpoint,
    changes: dict[str, Any],
    reason: str,
) -> None:
    assert await shop.processed(sample.captured(1, **changes), "E1") == "completed/applied"
    order = await shop.order(1)
    assert order["payment"]["status"] == "pending"
    assert "razorpayPaymentId" not in order["payment"]
    (entry,) = order["payment"]["review"]
    assert (entry["reason"], entry["ref"], entry["state"]) == (reason, PAYMENT, "open")
    assert (entry["expectedAmount"], entry["expectedCurrency"]) == (sample.AMOUNT, "INR")
    assert facts(order) == [("payment_review", "pending", "pending")]
    assert order["history"][0]["reason"] == reason
    assert (await alerted(shop.db, "payment_review", f"{reason}:{PAYMENT}"))["count"] == 1
    assert [fields["kind"] for name, fields in shop.emitted if name == "alert.raised"] == ["payment_review"]
    assert await shop.db.fulfilments.count_documents({}) == 0
    assert await ledger(shop.db) == ([] if reason == "amount_unreadable" else [f"capture:{PAYMENT}"])
    await shop.processed(sample.order_paid(1, **changes), "E2")
    assert len(await reviews(shop, 1)) == 1  # once, however many events tell it


@pytest.mark.asyncio
@pytest.mark.parametrize("amount", [sample.AMOUNT, float(sample.AMOUNT), str(sample.AMOUNT)])
async def test_an_amount_may_be_written_as_a_whole_number_of_any_type(shop: Endpoint, amount: Any) -> None:
    await shop.processed(sample.captured(1, amount=amount), "E1")
    await assert_completed_once(shop, 1)


@pytest.mark.asyncio
async def test_one_payment_on_two_orders_goes_to_review_and_is_credited_once(shop: Endpoint) -> None:
    await shop.db.orders.insert_one(sample.order(2))
    await shop.processed(sample.captured(1), "E1")
    assert await shop.processed(sample.captured(2, id=PAYMENT), "E2") == "completed/applied"
    second = await shop.order(2)
    assert second["payment"]["status"] == "pending"
    assert "razorpayPaymentId" not in second["payment"]
    assert await reviews(shop, 2) == [("payment_on_two_orders", PAYMENT, "open")]
    await alerted(shop.db, "payment_review", f"payment_on_two_orders:{PAYMENT}")
    assert await ledger(shop.db) == [f"capture:{PAYMENT}"]
    assert [row["_id"] async for row in shop.db.fulfilments.find({})] == ["ord1"]
    await assert_completed_once(shop, 1)


# --- which order ------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_an_order_with_somebody_elses_payment_is_still_completed_by_its_own(shop: Endpoint) -> None:
    await shop.db.orders.update_one({"_id": "ord1"}, {"$set": {"payment.razorpayPaymentId": PAYMENT}})
    await shop.db.orders.insert_one(sample.order(2))
    foreign = sample.payment(2, "captured", id=PAYMENT)
    await shop.post(sample.event("payment.captured", payment=foreign), "E1")
    await shop.settled("E1")
    await shop.post(sample.captured(2, letter="Z"), "E2")
    row = await shop.settled("E2")
    payment = (await shop.order(2))["payment"]
    assert (row["outcome"]["code"], payment["status"]) == ("applied", "completed")
    assert payment["razorpayPaymentId"] == sample.payment_id(2, "Z")
    assert await reviews(shop, 2) == [("payment_on_two_orders", PAYMENT, "open")]


@pytest.mark.asyncio
async def test_an_unknown_order_parks_and_is_found_by_the_timer_when_it_comes(shop: Endpoint) -> None:
    assert (await shop.post(sample.captured(2), "E1"))[0] == 200
    parked = await shop.settled("E1", "parked")
    assert (parked["attempts"], parked["outcome"]["code"]) == (1, "waiting_for_order")
    assert parked["parkedUntil"] - parked["receivedAt"] > timedelta(hours=71)
    assert "lease" not in parked
    await shop.db.orders.insert_one(sample.order(2))
    row = await shop.settled("E1")
    assert (row["status"], row["outcome"]["code"], row["attempts"]) == ("completed", "applied", 1)
    await assert_completed_once(shop, 2)


@pytest.mark.asyncio
async def test_waking_without_an_order_parks_again_later_and_keeps_the_first_deadline(shop: Endpoint) -> None:
    await shop.post(sample.captured(2), "E1")
    first = await shop.settled("E1", "parked")
    await shop.db.events.update_one({"eventId": "E1"}, {"$set": {"nextAttemptAt": first["receivedAt"]}})

    async def parked_again() -> dict[str, Any] | None:
        return await shop.db.events.find_one({"eventId": "E1", "status": "parked", "parks": 2})

    again = await eventually(parked_again, "it is parked again")
    assert again is not None
    assert again["parkedUntil"] == first["parkedUntil"]
    assert again["attempts"] == 1
    assert timedelta(seconds=8) < again["nextAttemptAt"] - again["updatedAt"] < timedelta(seconds=12)


@pytest.mark.asyncio
async def test_a_parked_event_whose_order_never_comes_is_dead_after_its_deadline(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    async with endpoint(make_settings(processing={"parked_for": 0.5})) as shop:
        await shop.post(sample.captured(1), "E1")
        row = await shop.settled("E1")
        assert (row["status"], row["outcome"]["code"], row["attempts"]) == ("dead", "unmatched", 1)
        assert (await alerted(db, "event_unmatched", "E1"))["count"] == 1
        assert [fields["kind"] for name, fields in shop.emitted if name == "alert.raised"] == ["event_unmatched"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "name",
    ["payment.dispute.created", "payout.processed", "subscription.charged", "payment.unheard_of", "x" * 500, "$where"],
)
async def test_an_event_type_that_moves_no_order_is_ignored_but_kept(shop: Endpoint, name: str) -> None:
    assert await shop.processed(sample.event(name, payment=sample.payment(1)), "E1") == "ignored/unknown_type"
    assert (await shop.order(1)) == sample.order(1)
    assert (await shop.event("E1"))["payload"]["event"] == name


@pytest.mark.asyncio
async def test_an_event_of_a_foreign_account_is_ignored(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_many([sample.order(1), sample.order(2)])
    ours = {**sample.captured(2), "account_id": "acc_Ours"}
    without = {key: value for key, value in sample.captured(1).items() if key != "account_id"}
    settings = make_settings(razorpay={"account_ids": ("acc_Ours",)})
    async with endpoint(settings) as shop:
        assert await shop.processed(sample.captured(1), "E1") == "ignored/foreign_account"
        assert await shop.processed(without, "E2") == "ignored/foreign_account"
        assert await shop.processed(ours, "E3") == "completed/applied"
        assert (await shop.order(1)) == sample.order(1)


@pytest.mark.asyncio
async def test_a_payment_without_an_order_is_ignored(shop: Endpoint) -> None:
    assert await shop.processed(sample.captured(1, order_id=None), "E1") == "ignored/no_order_id"
    assert (await shop.order(1)) == sample.order(1)


@pytest.mark.asyncio
async def test_the_receipt_finds_the_order_of_a_checkout_that_was_opened_twice(shop: Endpoint) -> None:
    body = sample.order_paid(1, order_id="order_SecondCheckout")
    body["payload"]["order"]["entity"]["id"] = "order_SecondCheckout"
    assert await shop.processed(body, "E1") == "completed/applied"
    await assert_completed_once(shop, 1)
    assert (await shop.order(1))["payment"]["razorpayOrderId"] == sample.provider_order_id(1)


@pytest.mark.asyncio
async def test_a_receipt_that_names_another_order_than_the_id_does_goes_to_review(shop: Endpoint) -> None:
    await shop.db.orders.insert_one(sample.order(2))
    body = sample.order_paid(1)
    body["payload"]["order"]["entity"]["receipt"] = "TEA-2"
    await shop.processed(body, "E1")
    assert await reviews(shop, 1) == [("order_keys_disagree", PAYMENT, "open")]
    await alerted(shop.db, "payment_review", f"order_keys_disagree:{PAYMENT}")
    assert (await shop.order(2)) == sample.order(2)


@pytest.mark.asyncio
async def test_notes_of_a_payment_never_select_an_order(shop: Endpoint) -> None:
    """They can come from the buyer's browser."""
    notes = {
        "order_id": "ord1",
        "orderId": "TEA-1",
        "merchant_order_id": "ord1",
        "receipt": "TEA-1",
        "razorpay_order_id": sample.provider_order_id(1),
    }
    await shop.post(sample.captured(2, notes=notes), "E1")
    await shop.settled("E1", "parked")
    assert (await shop.order(1)) == sample.order(1)


# --- the shop's own data ----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_shops_own_fields_are_never_touched(db: Database, make_settings: SettingsMaker) -> None:
    mine: dict[str, Any] = {
        **sample.order(1, gateway={"raw": [1, {"a": None}]}, note="ours", transactionId="T-1"),
        "__v": 3,
        "total": Decimal128("499.00"),
        "placedAt": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "ref": ObjectId(),
        "blob": b"\x00\x01",
        "tags": ["a", "b", {"c": [1.5, None, True]}],
        "status": "open",
        "empty": {},
    }
    await db.orders.insert_one(copy.deepcopy(mine))
    async with endpoint(make_settings()) as shop:
        await shop.processed(sample.failed(1, letter="B"), "E1")
        await shop.processed(sample.captured(1), "E2")
        await shop.processed(sample.captured(1, letter="C", amount=5), "E3")
        after = await shop.order(1)
    kept = {key: value for key, value in after.items() if key not in {"payment", "history", "version"}}
    assert kept == {key: value for key, value in mine.items() if key != "payment"}
    assert list(kept) == [key for key in mine if key != "payment"]
    rest = {key: value for key, value in after["payment"].items() if key not in OUR_PAYMENT_FIELDS}
    assert rest == {key: value for key, value in mine["payment"].items() if key != "status"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "word"),
    [("cancelled", "cancelled"), (None, "null"), (7, "7"), ("COD", "COD"), (True, "true"), ("a b", "other")],
)
async def test_a_payment_for_an_order_in_a_status_of_the_shops_own_is_recorded_and_put_in_review(
    db: Database,
    make_settings: SettingsMaker,
    status: Any,
    word: str,
) -> None:
    await db.orders.insert_one(sample.order(1, status=status))
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(sample.captured(1), "E1") == "completed/applied"
        order = await shop.order(1)
        assert order["payment"]["status"] == status
        assert type(order["payment"]["status"]) is type(status)
        assert await reviews(shop, 1) == [(f"paid_after_{word}", PAYMENT, "open")]
        await alerted(db, "payment_review", f"paid_after_{word}:{PAYMENT}")
        assert await ledger(db) == [f"capture:{PAYMENT}"]
        assert await db.fulfilments.count_documents({}) == 0
        assert await shop.processed(sample.order_paid(1), "E2") == "completed/already_applied"
        assert (await alerted(db, "payment_review", f"paid_after_{word}:{PAYMENT}"))["count"] == 1


@pytest.mark.asyncio
async def test_an_order_that_the_shop_inserted_as_completed_stays_so(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    await db.orders.insert_one(sample.order(1, status="completed"))
    async with endpoint(make_settings()) as shop:
        await shop.processed(sample.failed(1, letter="B"), "E1")
        assert (await shop.order(1))["payment"]["status"] == "completed"
        await shop.processed(sample.captured(1), "E2")
        order = await shop.order(1)
        assert order["payment"]["status"] == "completed"
        assert order["payment"]["razorpayPaymentId"] == PAYMENT
        assert await ledger(db) == [f"capture:{PAYMENT}"]
        assert await db.fulfilments.count_documents({}) == 1


@pytest.mark.asyncio
async def test_a_legacy_order_without_version_status_or_attempts_completes(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    legacy = sample.order(1)
    del legacy["payment"]["status"]
    await db.orders.insert_one(legacy)
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(sample.captured(1), "E1") == "completed/applied"
        assert (await shop.order(1))["version"] == 1
        await assert_completed_once(shop, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("version", [None, 41, 2.0, "7"])
async def test_the_version_goes_on_from_whatever_is_stored(
    db: Database,
    make_settings: SettingsMaker,
    version: Any,
) -> None:
    """A missing one counts as 0; a shell writes whole numbers as floats."""
    await db.orders.insert_one({**sample.order(1), "version": version})
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(sample.captured(1), "E1") == "completed/applied"
        assert (await shop.order(1))["version"] == (int(version) + 1 if isinstance(version, int | float) else 1)
        await assert_completed_once(shop, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("payment", [None, "paid", []], ids=["null", "text", "list"])
async def test_an_order_whose_payment_is_no_document_makes_the_event_dead_with_an_alert(
    db: Database,
    make_settings: SettingsMaker,
    payment: Any,
) -> None:
    broken = {**sample.order(1), "payment": payment}
    await db.orders.insert_one(copy.deepcopy(broken))
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(sample.order_paid(1), "E1") == "dead/order_unreadable"  # found by its receipt
        await alerted(db, "event_dead", "E1")
        assert await shop.order(1) == broken
        mended = {"payment": sample.order(1)["payment"]}
        await db.orders.update_one({"_id": "ord1"}, {"$set": mended})
        await db.events.update_one(
            {"eventId": "E1"}, {"$set": {"status": "received", "nextAttemptAt": datetime.now(UTC)}}
        )

        async def completed() -> bool:
            return bool((await shop.order(1))["payment"]["status"] == "completed")

        assert await eventually(completed, "the mended order is completed")


@pytest.mark.asyncio
async def test_an_order_without_payment_at_all_is_found_by_its_receipt_and_put_in_review(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    bare = {key: value for key, value in sample.order(1).items() if key != "payment"}
    await db.orders.insert_one(bare)
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(sample.order_paid(1), "E1") == "completed/applied"
        assert await reviews(shop, 1) == [("expected_amount_missing", PAYMENT, "open")]


@pytest.mark.asyncio
@pytest.mark.parametrize("total", [499, 499.0, "499.00", Decimal128("499.00")], ids=repr)
async def test_the_expected_amount_is_read_from_the_shops_own_field_in_rupees(
    db: Database,
    make_settings: SettingsMaker,
    total: Any,
) -> None:
    legacy = {**sample.order(1), "totals": {"grandTotal": total, "currency": "inr"}}
    del legacy["payment"]["amount"], legacy["payment"]["currency"]
    await db.orders.insert_one(legacy)
    orders = {"amount_path": "totals.grandTotal", "amount_unit": "major", "currency_path": "totals.currency"}
    async with endpoint(make_settings(orders=orders)) as shop:
        await shop.processed(sample.captured(1), "E1")
        await assert_completed_once(shop, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("total", ["about 499", 499.001, None, True, "NaN", "1e400"], ids=repr)
async def test_an_expected_amount_that_cannot_be_read_is_a_review_and_no_error(
    db: Database,
    make_settings: SettingsMaker,
    total: Any,
) -> None:
    legacy = {**sample.order(1), "total": total}
    del legacy["payment"]["amount"]
    await db.orders.insert_one(legacy)
    async with endpoint(make_settings(orders={"amount_path": "total", "amount_unit": "major"})) as shop:
        assert await shop.processed(sample.captured(1), "E1") == "completed/applied"
        assert await reviews(shop, 1) == [("expected_amount_missing", PAYMENT, "open")]
        assert (await shop.order(1))["payment"]["status"] == "pending"


@pytest.mark.asyncio
async def test_nineteen_rupees_ninety_nine_are_1999_paise(db: Database, make_settings: SettingsMaker) -> None:
    legacy = {**sample.order(1), "total": 19.99}
    del legacy["payment"]["amount"]
    await db.orders.insert_one(legacy)
    async with endpoint(make_settings(orders={"amount_path": "total", "amount_unit": "major"})) as shop:
        await shop.processed(sample.captured(1, amount=1999), "E1")
        await assert_completed_once(shop, 1)


# --- several processes, dead workers ----------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_two_processes_share_the_work_and_resolve_their_conflicts(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    numbers = range(1, 11)
    await db.orders.insert_many([sample.order(number) for number in numbers])
    bodies = [
        body
        for number in numbers
        for body in (
            sample.authorized(number),
            sample.captured(number),
            sample.order_paid(number),
            sample.failed(number, letter="B"),
        )
    ]
    rng = random.Random(5)
    rng.shuffle(bodies)
    async with endpoint(make_settings()) as one, endpoint(make_settings()) as other:
        posts = [rng.choice((one, other)).post(body, f"E{number}") for number, body in enumerate(bodies)]
        answers = await asyncio.gather(*posts)
        assert [said["status"] for _, said in answers] == ["accepted"] * 40
        for number in range(len(bodies)):
            row = await one.settled(f"E{number}")
            assert row["status"] == "completed"
            assert row["outcome"]["code"] in {"applied", "already_applied"}
        for number in numbers:
            await assert_completed_once(one, number)
            order = await one.order(number)
            assert sorted(entry["fact"] for entry in order["history"] if entry["fact"] != "payment_authorized") == [
                "payment_completed",
                "payment_failed",
            ]
            attempts = {attempt["paymentId"]: attempt["statuses"] for attempt in order["payment"]["attempts"]}
            assert attempts == {
                sample.payment_id(number): ["authorized", "captured"],
                sample.payment_id(number, "B"): ["failed"],
            }
        worked = [
            {fields["event_id"] for name, fields in shop.emitted if name == "event.processed"} for shop in (one, other)
        ]
    assert all(worked)
    assert await db.ledger.count_documents({}) == len(numbers)
    assert await db.fulfilments.count_documents({}) == len(numbers)


async def abandoned(
    db: Database, make_settings: SettingsMaker, *, lsid: Binary | None = None, attempts: int = 1
) -> None:
    """Event E1 as a killed worker leaves it; its order `ord1` is there."""
    async with endpoint(make_settings()) as shop:
        await shop.post(sample.captured(1), "E1")
        row = await shop.settled("E1", "parked")
    ended = row["receivedAt"] - timedelta(seconds=60)
    lease = {"token": "the-token-of-a-dead-worker", "until": ended, "lsid": lsid or Binary(uuid.uuid4().bytes, 4)}
    changes = {"status": "processing", "lease": lease, "nextAttemptAt": ended, "attempts": attempts}
    await db.events.update_one({"_id": row["_id"]}, {"$set": changes})
    await db.orders.insert_one(sample.order(1))


@pytest.mark.asyncio
async def test_the_event_of_a_killed_worker_is_taken_over_when_its_lease_has_ended(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    await abandoned(db, make_settings)
    async with endpoint(make_settings()) as shop:
        row = await shop.settled("E1")
        assert (row["status"], row["outcome"]["code"], row["attempts"]) == ("completed", "applied", 2)
        await assert_completed_once(shop, 1)


@pytest.mark.asyncio
async def test_an_event_whose_lease_still_lives_is_left_alone(db: Database, make_settings: SettingsMaker) -> None:
    await abandoned(db, make_settings)
    later = datetime.now(UTC) + timedelta(minutes=10)
    await db.events.update_one({"eventId": "E1"}, {"$set": {"lease.until": later, "nextAttemptAt": later}})
    async with endpoint(make_settings()) as shop:
        await shop.post(sample.captured(1), "E1")  # not even a redelivery takes it away
        await Recovery(shop.parts.engine.rows, shop.parts.engine.lanes).run_once()
        await shop.db.orders.insert_one(sample.order(2))
        await shop.processed(sample.captured(2), "E2")
        row = await shop.event("E1")
        assert (row["status"], row["lease"]["token"]) == ("processing", "the-token-of-a-dead-worker")


@pytest.mark.asyncio
async def test_a_killed_workers_transaction_is_ended_so_that_its_order_is_free_at_once(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    """Without `killSessions` the order would stay locked for a minute."""
    async with db.client.start_session() as dead:
        await abandoned(db, make_settings, lsid=Binary(dead.session_id["id"], 4))
        await dead.start_transaction()
        await db.orders.update_one({"_id": "ord1"}, {"$set": {"halfDone": True}}, session=dead)
        async with endpoint(make_settings()) as shop:
            row = await shop.settled("E1")
            assert (row["status"], row["outcome"]["code"]) == ("completed", "applied")
            assert "halfDone" not in await shop.order(1)
            await assert_completed_once(shop, 1)
        with pytest.raises(OperationFailure):
            await dead.commit_transaction()


@pytest.mark.asyncio
async def test_an_event_that_ten_workers_died_over_is_buried_with_an_alert(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    await abandoned(db, make_settings, attempts=10)
    async with endpoint(make_settings()) as shop:
        row = await shop.settled("E1")
        assert (row["status"], row["outcome"]["code"]) == ("dead", "worker_died")
        assert (await shop.order(1)) == sample.order(1)
        assert "worker_died" in (await alerted(db, "event_dead", "E1"))["detail"]


# --- errors -----------------------------------------------------------------------------------------------------------

QUOTED = "asha1@example.com and a whole document"


def raising(shop: Endpoint, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Callable[[], None]:
    """Let the parser raise for every worker, though not for the endpoint; call the result to mend it."""
    provider = shop.parts.engine.providers["razorpay"]
    parse, endpoint_has_parsed = provider.parse, set[bytes]()

    def broken(raw: bytes) -> Event:
        if raw not in endpoint_has_parsed:
            endpoint_has_parsed.add(raw)
            return parse(raw)
        raise error

    monkeypatch.setattr(provider, "parse", broken)
    return monkeypatch.undo


async def make_due(shop: Endpoint, event_id: str) -> None:
    now = shop.parts.engine.clock.now()
    await shop.db.events.update_one({"eventId": event_id, "status": "failed"}, {"$set": {"nextAttemptAt": now}})


@pytest.mark.asyncio
async def test_an_unexpected_error_is_retried_with_backoff_and_ends_dead_with_an_alert(
    db: Database,
    make_settings: SettingsMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings(processing={"max_attempts": 3})) as shop:
        raising(shop, monkeypatch, RuntimeError(QUOTED))
        assert (await shop.post(sample.captured(1), "E1"))[0] == 200
        for attempt, pause in ((1, 5), (2, 10)):

            async def failed(attempt: int = attempt) -> dict[str, Any] | None:
                return await db.events.find_one({"eventId": "E1", "status": "failed", "attempts": attempt})

            row = await eventually(failed, f"attempt {attempt} failed")
            assert row is not None
            assert (row["error"], row["errorDetail"]) == ("RuntimeError", "unexpected RuntimeError")
            waits = (row["nextAttemptAt"] - row["updatedAt"]).total_seconds()
            assert pause * 0.8 - 0.1 <= waits <= pause * 1.2 + 0.1
            await make_due(shop, "E1")
        row = await shop.settled("E1")
        assert (row["status"], row["outcome"]["code"], row["attempts"]) == ("dead", "gave_up", 3)
        assert (await alerted(db, "event_dead", "E1"))["count"] == 1
        assert QUOTED not in dumps([row, *await db.alerts.find({}).to_list()])
        assert QUOTED not in json.dumps(shop.emitted, default=str)
        assert (await shop.order(1)) == sample.order(1)


@pytest.mark.asyncio
async def test_an_event_that_failed_takes_effect_once_when_the_fault_is_mended(
    shop: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mend = raising(shop, monkeypatch, ValueError(QUOTED))
    await shop.post(sample.captured(1), "E1")
    await shop.settled("E1", "failed")
    mend()
    assert (await shop.post(sample.captured(1), "E1"))[1]["status"] == "duplicate"  # which makes it due
    row = await shop.settled("E1")
    assert (row["status"], row["outcome"]["code"], row["attempts"]) == ("completed", "applied", 2)
    await assert_completed_once(shop, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "name", "attempts"),
    [
        (AutoReconnect(f"connection to {QUOTED} closed"), "AutoReconnect", 0),
        (OperationFailure(f"E00 {QUOTED}", 121, {"errmsg": QUOTED, "keyValue": {"a": QUOTED}}), "OperationFailure", 1),
    ],
    ids=["an outage, which is no attempt", "a refusal, which is one"],
)
async def test_an_error_of_the_database_is_retried_and_its_text_is_never_stored(
    shop: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    name: str,
    attempts: int,
) -> None:
    mend = raising(shop, monkeypatch, error)
    await shop.post(sample.captured(1), "E1")
    row = await shop.settled("E1", "failed")
    assert row["error"].partition(":")[0] == name
    assert row["attempts"] == attempts
    assert QUOTED not in dumps({key: value for key, value in row.items() if key not in {"rawBody", "payload"}})
    assert QUOTED not in json.dumps(shop.emitted, default=str)
    mend()
    await make_due(shop, "E1")
    assert (await shop.settled("E1"))["outcome"]["code"] == "applied"
    await assert_completed_once(shop, 1)


@pytest.mark.asyncio
async def test_a_deadline_in_the_middle_of_a_transaction_frees_the_order_at_once(
    db: Database,
    make_settings: SettingsMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deadline that ended the work must not keep its transaction open: the server would hold it for a minute."""
    record, held_up = Settlement._record_money, asyncio.Event()

    async def slowly(self: Settlement, *arguments: Any) -> None:
        if not held_up.is_set():
            held_up.set()
            await asyncio.sleep(0.6)
        await record(self, *arguments)

    monkeypatch.setattr(Settlement, "_record_money", slowly)
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings(processing={"deadline": 0.5, "lease": 30.0})) as shop:
        await shop.post(sample.captured(1), "E1")
        row = await shop.settled("E1", "failed")
        assert (row["outcome"], row["attempts"]) == (None, 0)
        with pymongo.timeout(1):
            await db.orders.update_one({"_id": "ord1"}, {"$set": {"note": "the shop writes meanwhile"}})
        assert await ledger(db) == []
        await make_due(shop, "E1")
        assert (await shop.settled("E1"))["outcome"]["code"] == "applied"
        await assert_completed_once(shop, 1)


@pytest.mark.asyncio
async def test_what_the_provider_wrote_about_an_error_stays_in_the_raw_body(shop: Endpoint) -> None:
    words = "Your card <b>4111</b> was declined by asha@example.com"
    await shop.processed(sample.failed(1, error_description=words, error_reason="x" * 500), "E1")
    row = await shop.event("E1")
    assert words in bytes(row["rawBody"]).decode()
    assert words not in dumps([await shop.order(1), {**row, "rawBody": None, "payload": None}])


# --- guards ---


@pytest.mark.asyncio
async def test_a_job_that_is_not_due_any_more_is_left_alone(shop: Endpoint) -> None:
    """As a second process does that read the row just before this one failed on it."""
    await shop.processed(sample.captured(1), "E1")
    later = shop.parts.engine.clock.now() + timedelta(minutes=5)
    again = {"status": "failed", "attempts": 1, "nextAttemptAt": later}
    await shop.db.events.update_one({"eventId": "E1"}, {"$set": again})
    row = await shop.event("E1")
    assert shop.parts.engine.lanes.offer("a lane", Job(row["_id"]))
    assert await shop.parts.engine.lanes.drain(5.0)
    assert (await shop.event("E1")) == row


@pytest.mark.asyncio
async def test_an_order_that_comes_while_its_event_is_being_parked_is_not_missed(
    shop: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.event_rows.PARK_PAUSES", (900.0,))
    found_by = find_order

    async def comes_in_between(db: Database, provider: str, event: Event, orders: OrderSettings) -> Found | None:
        found = await found_by(db, provider, event, orders)
        if found is None:
            await db.orders.insert_one(sample.order(2))
        return found

    monkeypatch.setattr(processing, "find_order", comes_in_between)
    assert await shop.processed(sample.captured(2), "E2") == "completed/applied"
    assert (await shop.event("E2"))["attempts"] == 1


@pytest.mark.asyncio
async def test_two_orders_of_one_number_are_not_told_apart_by_guessing(shop: Endpoint) -> None:
    twins = [sample.order(n, razorpayOrderId=f"order_Another{n}") | {"orderNumber": "TEA-9"} for n in (8, 9)]
    await shop.db.orders.insert_many(twins)
    await shop.post(sample.order_paid(9), "E9")
    await shop.settled("E9", "parked")
    assert await ledger(shop.db) == []


@pytest.mark.asyncio
async def test_a_transition_by_an_old_reading_of_the_order_is_refused(shop: Endpoint) -> None:
    """The status alone would fit: a second authorisation moves nothing, but the attempts it would write are old."""
    stale = await shop.order(1)
    await shop.processed(sample.authorized(1), "E1")
    event = Razorpay(shop.parts.settings).parse(sample.encode(sample.authorized(1, letter="B")))
    change = reduce(stale["payment"], event.facts, Expectation(sample.AMOUNT, "INR"), shop.parts.engine.clock.now())
    assert change is not None
    clock = shop.parts.engine.clock
    rows = EventRows(shop.db, clock, shop.parts.settings.processing, Telemetry())
    claim = Claim.of(clock, 30.0)
    await shop.db.events.insert_one({"_id": "E2", "eventId": "E2", "bodyHash": "E2", "lease": claim.document()})
    cause = Cause("E2", "payment.authorized", "webhook")
    end = partial(rows.finish, "E2", claim, EventStatus.COMPLETED, "applied", None)
    async with shop.db.client.start_session() as session:
        with pytest.raises(PreconditionMissed):
            await Settlement(shop.db, clock).apply(end, session, stale, change, cause)
    assert [attempt["paymentId"] for attempt in (await shop.order(1))["payment"]["attempts"]] == [PAYMENT]
    assert (await shop.event("E2")).get("status") is None, "nothing of the transaction stayed"


@pytest.mark.asyncio
async def test_transactions_are_committed_to_a_majority_and_its_journal(
    shop: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    start = AsyncClientSession.start_transaction

    async def spy(session: AsyncClientSession, **options: Any) -> Any:
        asked.append(options.get("write_concern"))
        return await start(session, **options)

    monkeypatch.setattr(AsyncClientSession, "start_transaction", spy)
    assert await shop.processed(sample.captured(1), "E1") == "completed/applied"
    assert asked == [DURABLE]


@pytest.mark.asyncio
async def test_a_receipt_of_more_digits_than_a_database_integer_has_is_only_an_unknown_number(shop: Endpoint) -> None:
    body = sample.order_paid(7)
    body["payload"]["order"]["entity"]["receipt"] = "9" * 40
    await shop.post(body, "E1")
    assert (await shop.settled("E1", "parked", "dead", "failed"))["status"] == "parked"
