"""Payment links, several captures on one order, and keys that are learned: over the real endpoint."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from bson import Timestamp

from models.database import Database
from scripts.unmatched import unmatched
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import Endpoint, endpoint
from watcher.notices import notices

LINK = sample.link_id(1)
BEHIND = "order_BehindTheLink1"
"""The provider's own order of the link, which the shop never sees."""
A, B = sample.payment_id(1, "A"), sample.payment_id(1, "B")
Json = dict[str, Any]


def by_link(**payment: Any) -> Json:
    """An order that is only paid by its link."""
    return sample.order(1, razorpayOrderId=None, **{"paymentLinkId": LINK, **payment})


def money(letter: str = "A", amount: int = sample.AMOUNT, **changes: Any) -> Json:
    """A payment under the link's own order."""
    later = {"created_at": sample.CREATED + "ABCD".index(letter) * 60}
    return sample.payment(1, letter=letter, amount=amount, order_id=BEHIND, **{**later, **changes})


def captured(letter: str = "A", amount: int = sample.AMOUNT, **changes: Any) -> Json:
    return sample.event("payment.captured", payment=money(letter, amount, **changes))


def paid(*payments: Json, of: Json | None = None, total: int | None = None) -> Json:
    """The link's own event after these payments."""
    return sample.link_paid(1, *payments or (money(),), of=of, order_id=BEHIND, paid=total)


def in_parts(**changes: Any) -> Json:
    return sample.link(1, accept_partial=True, **changes)


def order_paid(*, order_id: str, payment: Json, receipt: str = "TEA-1", amount: int | None = None) -> Json:
    body = sample.order_paid(1)
    whole = payment["amount"] if amount is None else amount
    changes = {"id": order_id, "receipt": receipt, "amount": whole, "amount_paid": whole}
    body["payload"]["order"]["entity"] |= changes
    body["payload"]["payment"]["entity"] = payment
    return body


async def stands(shop: Endpoint) -> tuple[Any, ...]:
    """Status, what was paid, and the review."""
    payment = (await shop.order(1))["payment"]
    reviews = [(entry["reason"], entry["ref"]) for entry in payment.get("review", ())]
    return payment["status"], payment.get("amountPaid"), reviews


async def facts(shop: Endpoint) -> list[tuple[str, str]]:
    return [(entry["fact"], entry["ref"]) for entry in (await shop.order(1))["history"]]


async def ledger(shop: Endpoint) -> list[str]:
    return sorted([row["_id"] async for row in shop.db.ledger.find({}, {"_id": 1})])


# --- found by -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("order", "link"),
    [
        (by_link(orderNumber="unknown"), sample.link(1, reference_id="")),
        (by_link(paymentLinkId=None), sample.link(1)),
        (by_link(paymentLinkId=None), sample.link(1, reference_id="", notes={"order_id": "ord1"})),
        (by_link(paymentLinkId=None), sample.link(1, reference_id="else", notes={"merchant_order_id": "TEA-1"})),
    ],
    ids=["the stored link", "reference_id", "notes with the id", "notes with the number"],
)
async def test_a_paid_link_completes_the_order_it_is_found_by(
    db: Database, make_settings: SettingsMaker, order: Json, link: Json
) -> None:
    await db.orders.insert_one(order)
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(paid(of=link), "LINK") == "completed/applied"
        assert await stands(shop) == ("completed", sample.AMOUNT, [])
        payment = (await shop.order(1))["payment"]
        assert {"provider": "razorpay", "kind": "order", "id": BEHIND} in payment["refs"]
        (known,) = payment["links"]
        assert (known["linkId"], known["status"], known["orderId"]) == (LINK, "paid", BEHIND)
        assert await facts(shop) == [("link_paid", LINK), ("payment_completed", A)]
        assert await shop.processed(captured(), "LATER") == "completed/already_applied"
        assert await ledger(shop) == [f"capture:{A}"]


@pytest.mark.asyncio
@pytest.mark.parametrize("status", ["expired", "cancelled"])
async def test_a_link_that_ended_unpaid_is_noted_and_moves_nothing(
    db: Database, make_settings: SettingsMaker, status: Literal["expired", "cancelled"]
) -> None:
    await db.orders.insert_one(by_link())
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(sample.link_ended(1, status), "END") == "completed/applied"
        assert await stands(shop) == ("pending", None, [])
        assert await facts(shop) == [(f"link_{status}", LINK)]


@pytest.mark.asyncio
async def test_a_payments_notes_are_never_a_key_and_a_foreign_name_in_the_links_is_none(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(by_link(paymentLinkId=None))
    notes = {"order_id": "ord1", "orderId": "TEA-1", "merchant_order_id": "TEA-1"}
    async with endpoint(make_settings()) as shop:
        await shop.post(captured(notes=notes), "BROWSER")
        await shop.settled("BROWSER", "parked")
        link = sample.link(1, reference_id="", notes={"cart": "ord1"})
        await shop.post(paid(money(notes=notes), of=link), "LINK")
        await shop.settled("LINK", "parked")
        assert "history" not in await shop.order(1)
        assert await ledger(shop) == []


@pytest.mark.asyncio
async def test_a_capture_that_came_first_wakes_once_the_link_taught_its_order(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.event_rows.PARK_PAUSES", (900.0,))
    await db.orders.insert_one(by_link())
    async with endpoint(make_settings()) as shop:
        await shop.post(captured("B", 29_900), "CAPTURED")
        await shop.settled("CAPTURED", "parked")
        first = paid(money("A", 20_000), of=in_parts())
        assert await shop.processed(first, "LINK") == "completed/applied"
        assert (await shop.settled("CAPTURED"))["outcome"]["code"] == "applied"
        assert await stands(shop) == ("completed", sample.AMOUNT, [])


@pytest.mark.asyncio
async def test_another_provider_order_of_the_same_cart_is_found_by_its_receipt_and_remembered(shop: Endpoint) -> None:
    payment = sample.payment(1, letter="B", order_id="order_Second")
    assert await shop.processed(order_paid(order_id="order_Second", payment=payment), "PAID") == "completed/applied"
    assert await stands(shop) == ("completed", sample.AMOUNT, [])
    twice = sample.captured(1, letter="C", order_id="order_Second", created_at=sample.CREATED + 60)
    assert await shop.processed(twice, "TWICE") == "completed/applied"
    assert await stands(shop) == ("completed", sample.AMOUNT, [("duplicate_capture", sample.payment_id(1, "C"))])


@pytest.mark.asyncio
async def test_keys_that_name_different_orders_put_the_payment_in_review(shop: Endpoint) -> None:
    await shop.db.orders.insert_one(sample.order(2))
    confused = order_paid(order_id=sample.provider_order_id(1), payment=sample.payment(1), receipt="TEA-2")
    assert await shop.processed(confused, "PAID") == "completed/applied"
    assert await stands(shop) == ("completed", sample.AMOUNT, [("order_keys_disagree", A)])
    assert "refs" not in (await shop.order(1))["payment"], "nothing is learned from what disagrees"
    assert await shop.db.alerts.find_one({"_id": f"payment_review:order_keys_disagree:{A}"})


# --- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_parts_add_up_to_the_order(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(by_link())
    async with endpoint(make_settings()) as shop:
        first, second = money("A", 20_000), money("B", 29_900)
        assert await shop.processed(paid(first, of=in_parts()), "PART") == "completed/applied"
        assert await stands(shop) == ("pending", 20_000, [])
        assert await shop.db.fulfilments.count_documents({}) == 0
        assert await shop.processed(captured("A", 20_000), "CAPTURED") == "completed/already_applied"
        assert await shop.processed(paid(first, second, of=in_parts()), "WHOLE") == "completed/applied"
        assert await stands(shop) == ("completed", sample.AMOUNT, [])
        assert await shop.db.fulfilments.count_documents({"_id": "ord1", "paymentId": A}) == 1
        assert await ledger(shop) == [f"capture:{A}", f"capture:{B}"]
        assert await facts(shop) == [
            ("link_partially_paid", LINK),
            ("payment_part_captured", A),
            ("link_paid", LINK),
            ("payment_part_captured", B),
            ("payment_completed", A),
        ]


@pytest.mark.asyncio
async def test_the_paid_order_first_and_its_other_parts_later(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(by_link(paymentLinkId=None))
    async with endpoint(make_settings()) as shop:
        await shop.post(captured("A", 20_000), "FIRST")
        await shop.settled("FIRST", "parked")
        last = order_paid(order_id=BEHIND, payment=money("B", 29_900), amount=sample.AMOUNT)
        assert await shop.processed(last, "PAID") == "completed/applied"
        assert (await shop.settled("FIRST"))["outcome"]["code"] == "applied"
        assert await stands(shop) == ("completed", sample.AMOUNT, [])
        link = paid(money("B", 29_900), of=in_parts(), total=sample.AMOUNT)
        assert await shop.processed(link, "LINK") == "completed/applied"
        assert await stands(shop) == ("completed", sample.AMOUNT, [])


@pytest.mark.asyncio
async def test_parts_of_a_link_that_takes_the_whole_only_are_looked_at(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(by_link(acceptPartial=False))
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(paid(money("A", 20_000), of=in_parts()), "PART") == "completed/applied"
        assert await stands(shop) == ("pending", None, [("amount_mismatch", A)])


# --- the provider's terms ---------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_less_money_waits_for_the_links_terms(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.event_rows.PARK_PAUSES", (900.0,))
    await db.orders.insert_one(by_link(refs=[{"provider": "razorpay", "kind": "order", "id": BEHIND}]))
    async with endpoint(make_settings()) as shop:
        await shop.post(captured("A", 20_000), "CAPTURED")
        row = await shop.settled("CAPTURED", "parked")
        assert row["outcome"]["code"] == "waiting_for_terms"
        parsers = {"razorpay": shop.parts.engine.providers["razorpay"].parse}
        assert await unmatched(shop.db, parsers, 10) == [], "it has an order"
        assert await ledger(shop) == []
        first, second = money("A", 20_000), money("B", 29_900)
        assert await shop.processed(paid(first, second, of=in_parts()), "LINK") == "completed/applied"
        await shop.settled("CAPTURED")
        assert await stands(shop) == ("completed", sample.AMOUNT, [])


@pytest.mark.asyncio
async def test_terms_that_nobody_tells_are_an_alert_and_the_money_is_booked(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.event_rows.PARK_PAUSES", (0.0, 0.0, 0.0))
    await db.orders.insert_one(by_link(refs=[{"provider": "razorpay", "kind": "order", "id": BEHIND}]))
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(captured("A", 20_000), "CAPTURED") == "completed/applied"
        assert (await shop.event("CAPTURED"))["parks"] == 3
        assert await stands(shop) == ("pending", None, [])
        assert await ledger(shop) == [f"capture:{A}"]
        alert = await shop.db.alerts.find_one({"_id": f"payment_terms_unknown:{A}"})
        assert alert is not None
        assert alert["count"] == 1
        first, second = money("A", 20_000), money("B", 29_900)
        assert await shop.processed(paid(first, second, of=in_parts()), "LINK") == "completed/applied"
        assert await stands(shop) == ("completed", sample.AMOUNT, [])


@pytest.mark.asyncio
async def test_the_fee_on_top_fits_once_the_paid_order_says_so(
    db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.event_rows.PARK_PAUSES", (0.2, 0.2, 0.2))
    await db.orders.insert_one(sample.order(1))
    more = sample.payment(1, amount=51_078)
    async with endpoint(make_settings(orders={"customer_bears_fee": True})) as shop:
        await shop.post(sample.event("payment.captured", payment=more), "CAPTURED")
        whole = order_paid(order_id=sample.provider_order_id(1), payment=more, amount=sample.AMOUNT)
        assert await shop.processed(whole, "PAID") == "completed/applied"
        await shop.settled("CAPTURED")
        assert await stands(shop) == ("completed", 51_078, [])
        assert await ledger(shop) == [f"capture:{A}"]
        other = {**sample.payment(1, letter="B", amount=60_000), "created_at": sample.CREATED + 60}
        await shop.processed(order_paid(order_id=sample.provider_order_id(1), payment=other, amount=58_000), "MORE")
        assert await stands(shop) == ("completed", 51_078, [("amount_mismatch", B)])


# --- late money -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("status", ["expired", "cancelled"])
async def test_money_on_a_link_that_ended_completes_the_order_and_is_looked_at(
    db: Database, make_settings: SettingsMaker, status: Literal["expired", "cancelled"]
) -> None:
    await db.orders.insert_one(by_link())
    reason = f"paid_after_link_{status}"
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(sample.link_ended(1, status), "END") == "completed/applied"
        assert await shop.processed(paid(), "LATE") == "completed/applied"
        assert await stands(shop) == ("completed", sample.AMOUNT, [(reason, A)])
        assert await shop.db.alerts.find_one({"_id": f"payment_review:{reason}:{A}"})
        last = (await shop.order(1))["history"][-1]
        pushed = {"updateDescription": {"updatedFields": {"history.9": last}}, "documentKey": {"_id": "ord1"}}
        (notice,) = notices({"operationType": "update", "clusterTime": Timestamp(1, 1), **pushed})
        assert notice.key("inapp", "admin") == f"order:ord1:payment_review:{reason}:{A}:inapp:admin"


@pytest.mark.asyncio
async def test_a_link_that_another_replaced_makes_no_money_late(db: Database, make_settings: SettingsMaker) -> None:
    """The first link ran out, the shop made a second one and stored that."""
    second = "plink_TheSecond"
    await db.orders.insert_one(by_link())
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(sample.link_ended(1), "END") == "completed/applied"
        await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment.paymentLinkId": second}})
        assert await shop.processed(paid(of=sample.link(1, id=second)), "PAID") == "completed/applied"
        assert await stands(shop) == ("completed", sample.AMOUNT, [])


@pytest.mark.asyncio
async def test_a_checkout_after_the_link_ran_out_is_not_late(shop: Endpoint) -> None:
    assert await shop.processed(sample.link_ended(1), "END") == "completed/applied"
    assert await shop.processed(sample.captured(1), "PAID") == "completed/applied"
    assert await stands(shop) == ("completed", sample.AMOUNT, [])


@pytest.mark.asyncio
async def test_money_for_an_order_that_the_shop_cancelled_leaves_it_so(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(by_link(status="cancelled"))
    async with endpoint(make_settings()) as shop:
        assert await shop.processed(paid(), "LATE") == "completed/applied"
        assert await stands(shop) == ("cancelled", sample.AMOUNT, [("paid_after_cancelled", A)])
        assert await shop.db.fulfilments.count_documents({}) == 0
