"""Parked events wake when their order appears, well before their timer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from models.database import Database
from models.parking import Names
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import daemon
from tests.support.endpoint import Endpoint, endpoint
from watcher.wake import named_ids


async def park(shop: Endpoint, body: Any, event_id: str) -> None:
    """Parked, and due again by itself in a quarter of an hour only."""
    await shop.post(body, event_id)
    await shop.settled(event_id, "parked")
    later = shop.parts.engine.clock.now() + timedelta(minutes=15)
    await shop.db.events.update_one({"eventId": event_id}, {"$set": {"nextAttemptAt": later, "parks": 3}})


@pytest.mark.asyncio
@pytest.mark.parametrize("write", ["insert", "dotted", "subdocument", "replace"])
async def test_an_order_that_appears_or_gets_its_id_wakes_its_events(
    db: Database, make_settings: SettingsMaker, write: str
) -> None:
    order, other = sample.order(1), sample.captured(2)
    settings = make_settings()
    async with endpoint(settings) as shop, daemon(settings, db):
        await park(shop, sample.captured(1), "E1")
        await park(shop, other, "E2")
        if write == "insert":
            await db.orders.insert_one(order)
        else:
            provider_order = order["payment"].pop("razorpayOrderId")
            await db.orders.insert_one(order)
            whole = {**order["payment"], "razorpayOrderId": provider_order}
            if write == "dotted":
                await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment.razorpayOrderId": provider_order}})
            elif write == "subdocument":
                await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment": whole}})
            else:
                await db.orders.replace_one({"_id": "ord1"}, {**order, "payment": whole})
        row = await shop.settled("E1", "completed")
        assert (row["attempts"], (await shop.order(1))["payment"]["status"]) == (1, "completed")
        assert (await shop.event("E2"))["status"] == "parked", "events of other orders sleep on"


@pytest.mark.asyncio
async def test_an_order_that_is_known_by_its_number_only_wakes_its_link_event(
    db: Database, make_settings: SettingsMaker
) -> None:
    order = sample.order(1)
    del order["payment"]["razorpayOrderId"]
    settings = make_settings()
    async with endpoint(settings) as shop, daemon(settings, db):
        await park(shop, sample.link_paid(1), "E1")
        await db.orders.insert_one(order)
        await shop.settled("E1", "completed")
        assert (await shop.order(1))["payment"]["status"] == "completed"


@pytest.mark.asyncio
async def test_what_a_link_event_teaches_wakes_the_capture_that_came_first_without_a_watcher(
    db: Database, make_settings: SettingsMaker
) -> None:
    order = sample.order(1, paymentLinkId=sample.link_id(1))
    del order["payment"]["razorpayOrderId"]
    await db.orders.insert_one(order)
    async with endpoint(make_settings()) as shop:
        await park(shop, sample.captured(1), "E1")
        assert await shop.processed(sample.link_paid(1), "E2") == "completed/applied"
        assert (await shop.settled("E1", "completed"))["outcome"]["code"] == "already_applied"


def updated(**fields: Any) -> dict[str, Any]:
    paths = {path.replace("__", "."): value for path, value in fields.items()}
    return {"operationType": "update", "updateDescription": {"updatedFields": paths}}


def born(document: Any) -> dict[str, Any]:
    return {"operationType": "insert", "fullDocument": document}


LINK_REF = {"provider": "razorpay", "kind": "payment_link", "id": "plink_2"}
ORDER_REF = {"provider": "razorpay", "kind": "order", "id": "order_2"}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (updated(payment__razorpayPaymentId="pay_1", payment__razorpayOrderId=7, notes={}), Names(payments={"pay_1"})),
        (updated(payment__refs=[LINK_REF, ORDER_REF, 7]), Names(orders={"order_2"}, links={"plink_2"})),
        (updated(payment__refs__1=ORDER_REF), Names(orders={"order_2"})),
        (updated(orderNumber=12), Names(receipts={"12"})),
        (updated(razorpayOrderIdx="x"), Names()),
        (born({"payment": {"paymentLinkId": "plink_1", "razorpayOrderId": ""}}), Names(links={"plink_1"})),
        (born({"payment": {"razorpayOrderId": "order_1"}}), Names(orders={"order_1"})),
        (born({"orderNumber": "TEA-1", "payment": None}), Names(receipts={"TEA-1"})),
        (born(None), Names()),
    ],
)
def test_only_ids_that_a_change_shows_are_named(change: dict[str, Any], names: Names) -> None:
    found = named_ids([change])
    assert found == Names(*({*ids} for ids in (names.orders, names.links, names.payments, names.receipts)))
