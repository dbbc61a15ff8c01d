"""Ids that fit two orders, events that wait and who wakes them, and what a callback learns from the provider's API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from models.database import Database
from models.replay import make_due_again
from scripts.simulator.api import KEY_SECRET
from scripts.simulator.browser import Browser
from scripts.simulator.callbacks import checkout_fields, link_query
from tests.conftest import SettingsMaker
from tests.integration.test_links import (
    BEHIND,
    LINK,
    A,
    B,
    by_link,
    captured,
    in_parts,
    ledger,
    money,
    order_paid,
    paid,
    stands,
)
from tests.support import sample
from tests.support.endpoint import Endpoint, endpoint
from tests.support.provider import Provider, provider
from tests.support.wait import eventually

KNOWN = {"provider": "razorpay", "kind": "order", "id": BEHIND}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that waits is due again by itself."""
    monkeypatch.setattr("webhook.event_rows.PARK_PAUSES", (900.0, 900.0, 900.0))


async def waiting(shop: Endpoint, event_id: str, code: str) -> dict[str, Any]:
    async def check() -> dict[str, Any] | None:
        return await shop.db.events.find_one({"eventId": event_id, "status": "parked", "outcome.code": code})

    row = await eventually(check, f"{event_id} is {code}")
    assert row is not None
    return row


# --- one id, two orders -----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("swapped", [False, True])
async def test_a_link_of_two_orders_pays_one_of_them_and_is_looked_at(
    db: Database, make_settings: SettingsMaker, *, swapped: bool
) -> None:
    orders = [by_link(), {**by_link(), "_id": "ord2", "orderNumber": "TEA-2"}]
    await db.orders.insert_many(orders[::-1] if swapped else orders)
    async with endpoint(make_settings()) as shop:
        await shop.processed(paid(of=sample.link(1, reference_id="")), "LINK")
        assert await stands(shop) == ("completed", sample.AMOUNT, [("order_keys_disagree", A)])
        assert (await shop.order(2))["payment"]["status"] == "pending"


@pytest.mark.asyncio
async def test_nothing_is_learned_from_keys_that_disagree(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_many([by_link(), sample.order(2)])
    async with endpoint(make_settings()) as shop:
        await shop.processed(paid(of=sample.link(1, reference_id="TEA-2")), "LINK")
        assert await stands(shop) == ("completed", sample.AMOUNT, [("order_keys_disagree", A)])
        assert "refs" not in (await shop.order(1))["payment"]


@pytest.mark.asyncio
async def test_an_id_that_two_orders_learned_is_looked_at(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_many([sample.order(number, razorpayOrderId=None, refs=[KNOWN]) for number in (1, 2)])
    async with endpoint(make_settings()) as shop:
        await shop.processed(captured(), "CAPTURED")
        assert await stands(shop) == ("completed", sample.AMOUNT, [("order_keys_disagree", A)])


@pytest.mark.asyncio
@pytest.mark.parametrize("named", [True, False], ids=["the order is paid by it", "its money is noted there"])
async def test_a_refund_by_its_payment_alone_goes_to_the_order_that_has_the_money(
    db: Database, make_settings: SettingsMaker, *, named: bool
) -> None:
    """`ord1` only heard of the payment, or holds it in review."""
    await db.orders.insert_many([sample.order(1), sample.order(2)])
    async with endpoint(make_settings()) as shop:
        status = "captured" if named else "failed"
        await shop.processed(sample.event("payment.captured", payment=sample.payment(2, "captured", id=A)), "OWN")
        await shop.processed(sample.event(f"payment.{status}", payment=sample.payment(1, status)), "OTHER")
        if not named:
            await db.orders.update_one({"_id": "ord2"}, {"$unset": {"payment.razorpayPaymentId": ""}})
        await shop.processed(sample.refunded(1, beside=None), "REFUND")
        assert (await shop.order(2))["payment"]["amountRefunded"] == sample.AMOUNT
        assert "refunds" not in (await shop.order(1))["payment"]


# --- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_a_paid_order_wakes_the_capture_that_waits_to_hear_of_the_fee(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1))
    more = sample.payment(1, amount=51_078)
    async with endpoint(make_settings(orders={"customer_bears_fee": True})) as shop:
        await shop.post(sample.event("payment.captured", payment=more), "CAPTURED")
        await waiting(shop, "CAPTURED", "waiting_for_terms")
        whole = order_paid(order_id=sample.provider_order_id(1), payment=more, amount=sample.AMOUNT)
        assert await shop.processed(whole, "PAID") == "completed/applied"
        assert (await shop.settled("CAPTURED"))["outcome"]["code"] == "already_applied"
        assert await stands(shop) == ("completed", 51_078, [])


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_a_paid_order_wakes_the_other_parts(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(by_link(refs=[KNOWN]))
    async with endpoint(make_settings()) as shop:
        await shop.post(captured("B", 29_900), "SECOND")
        await waiting(shop, "SECOND", "waiting_for_terms")
        last = order_paid(order_id=BEHIND, payment=money("A", 20_000), amount=sample.AMOUNT)
        assert await shop.processed(last, "PAID") == "completed/applied"
        assert (await shop.settled("SECOND"))["outcome"]["code"] == "applied"
        assert await stands(shop) == ("completed", sample.AMOUNT, [])


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_terms_from_the_link_alone_wake_captures_that_name_only_its_order(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(by_link(refs=[KNOWN]))
    async with endpoint(make_settings()) as shop:
        await shop.post(captured("A", 20_000), "PART")
        await waiting(shop, "PART", "waiting_for_terms")
        assert await shop.processed(sample.link_ended(1, "expired"), "END") == "completed/applied"
        await shop.settled("PART")
        reviews = [("amount_mismatch", A), ("paid_after_link_expired", A)]
        assert await stands(shop) == ("pending", None, reviews)


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_an_event_that_names_only_the_link_wakes_once_the_order_learned_it(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(by_link(paymentLinkId=None))
    async with endpoint(make_settings()) as shop:
        await shop.post(sample.link_ended(1, "expired", reference_id=""), "END")
        await waiting(shop, "END", "waiting_for_order")
        assert await shop.processed(paid(), "LINK") == "completed/applied"
        assert (await shop.settled("END"))["outcome"]["code"] == "applied"


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_a_long_wait_for_the_order_leaves_the_patience_for_its_terms(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with endpoint(make_settings()) as shop:
        await shop.post(captured("A", 20_000), "CAPTURED")
        row = await waiting(shop, "CAPTURED", "waiting_for_order")
        await db.events.update_one({"_id": row["_id"]}, {"$set": {"parks": 7}})
        await db.orders.insert_one(by_link(refs=[KNOWN]))
        await db.events.update_one({"_id": row["_id"]}, {"$set": {"nextAttemptAt": row["receivedAt"]}})
        again = await waiting(shop, "CAPTURED", "waiting_for_terms")
        assert (again["parks"], again["parkedUntil"]) == (1, row["parkedUntil"])
        assert await db.alerts.count_documents({}) == 0
        assert await shop.processed(paid(money("B", 29_900), of=in_parts(), total=49_900), "LINK")
        await shop.settled("CAPTURED")
        assert await stands(shop) == ("completed", sample.AMOUNT, [])


@pytest.mark.asyncio
async def test_events_that_name_only_a_learned_link_are_evaluated_again_too(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(by_link(paymentLinkId=None))
    async with endpoint(make_settings()) as shop:
        await shop.processed(sample.link_ended(1, "expired"), "END")
        order, now = await shop.order(1), shop.parts.engine.clock.now()
        assert [ref["id"] for ref in order["payment"]["refs"]] == [LINK]
        assert await make_due_again(db, order, now) == 1
        assert (await shop.settled("END"))["outcome"]["code"] == "already_applied"


# --- a callback, and what the API says of it --------------------------------------------------------------------------


async def confirmed(
    fake: Provider, db: Database, make_settings: SettingsMaker, event_id: str, by: dict[str, str]
) -> Any:
    """How the order stands after a browser came back and no webhook did."""
    async with endpoint(make_settings(razorpay=fake.section, checkout={"rate": 10_000})) as shop:
        browser = Browser(f"http://127.0.0.1:{shop.port}", shop.http)
        await (browser.come_back(by) if "razorpay_payment_link_id" in by else browser.verify(by))
        row = await waiting(shop, event_id, "waiting_for_provider")
        assert (await shop.order(1))["payment"]["attempts"][0]["statuses"] == ["callback"]
        await db.events.update_one({"_id": row["_id"]}, {"$set": {"nextAttemptAt": row["receivedAt"]}})
        await shop.settled(event_id)
        return await stands(shop), (await shop.order(1))["payment"].get("refs", [])


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_without_a_webhook_the_api_completes_what_a_callback_began(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1))
    own = sample.provider_order_id(1)
    async with provider() as fake:
        fake.order(1)
        fake.payment(1)
        fields = checkout_fields(KEY_SECRET, own, A)
        ended = await confirmed(fake, db, make_settings, f"callback:{own}:{A}", fields)
    assert ended == (("completed", sample.AMOUNT, []), [])


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_a_link_of_an_order_with_a_checkout_too_is_confirmed_and_its_order_learned(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1, paymentLinkId=LINK))
    own = sample.provider_order_id(1)
    async with provider() as fake:
        behind = sample.order_paid(1)["payload"]["order"]["entity"] | {"id": BEHIND, "receipt": None}
        fake.api.show("order", behind)
        fake.payment(1, order_id=BEHIND)
        query = link_query(KEY_SECRET, LINK, A)
        ended = await confirmed(fake, db, make_settings, f"callback:{own}:{A}", query)
    assert ended == (("completed", sample.AMOUNT, []), [KNOWN])


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_what_the_api_says_of_a_callbacks_payment_can_name_another_order(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_many([sample.order(1), sample.order(2)])
    own = sample.provider_order_id(1)
    async with provider() as fake:
        fake.order(1, receipt="TEA-2")
        fake.payment(1)
        fields = checkout_fields(KEY_SECRET, own, A)
        ended = await confirmed(fake, db, make_settings, f"callback:{own}:{A}", fields)
    assert ended == (("completed", sample.AMOUNT, [("order_keys_disagree", A)]), [])


@pytest.mark.asyncio
@pytest.mark.usefixtures("patient")
async def test_a_callback_of_another_orders_payment_is_an_attempt_and_no_more(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_many([sample.order(1), sample.order(2)])
    own = sample.provider_order_id(1)
    async with provider() as fake:
        fake.order(2)
        fake.payment(2)
        foreign = sample.payment_id(2)
        fields = checkout_fields(KEY_SECRET, own, foreign)
        ended = await confirmed(fake, db, make_settings, f"callback:{own}:{foreign}", fields)
    assert ended == (("pending", None, []), [])
    assert await db.ledger.count_documents({}) == 0


@pytest.mark.asyncio
async def test_webhook_and_callback_and_the_apis_word_at_once_are_one_transition(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.event_rows.PARK_PAUSES", (0.0, 0.0, 0.0))
    await db.orders.insert_one(sample.order(1))
    own = sample.provider_order_id(1)
    async with provider() as fake:
        fake.order(1)
        fake.payment(1)
        async with endpoint(make_settings(razorpay=fake.section, checkout={"rate": 10_000})) as shop:
            browser = Browser(f"http://127.0.0.1:{shop.port}", shop.http)
            await asyncio.gather(
                shop.post(sample.captured(1), "CAPTURED"),
                browser.verify(checkout_fields(KEY_SECRET, own, A)),
                shop.post(sample.order_paid(1), "PAID"),
                shop.post(sample.captured(1, letter="B", created_at=sample.CREATED + 60), "TWICE"),
            )
            for event_id in ("CAPTURED", "PAID", "TWICE", f"callback:{own}:{A}"):
                await shop.settled(event_id)
            assert await stands(shop) == ("completed", sample.AMOUNT, [("duplicate_capture", B)])
            assert await ledger(shop) == [f"capture:{A}", f"capture:{B}"]
            assert await db.fulfilments.count_documents({}) == 1
