"""A callback carries no amount: what the API says, asked from the queue, completes the order; or the webhook does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from models.database import Database
from scripts.simulator.api import KEY_SECRET, Fault
from scripts.simulator.browser import Browser
from scripts.simulator.callbacks import checkout_fields
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import Endpoint, endpoint
from tests.support.provider import Provider, provider

EVENT = f"callback:{sample.provider_order_id(1)}:{sample.payment_id(1)}"


@dataclass
class Shop:
    """An endpoint with a key for the fake API, and one pending order."""

    endpoint: Endpoint
    fake: Provider

    async def come_back(self) -> dict[str, object]:
        browser = Browser(f"http://127.0.0.1:{self.endpoint.port}", self.endpoint.http)
        fields = checkout_fields(KEY_SECRET, sample.provider_order_id(1), sample.payment_id(1))
        shown = await browser.verify(fields)
        assert shown.status == 200
        return await self.endpoint.settled(EVENT)

    @property
    def asked(self) -> list[str]:
        return self.fake.api.requests


@pytest_asyncio.fixture
async def shop(db: Database, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    monkeypatch.setattr("webhook.event_rows.PARK_PAUSES", (0.3, 0.3, 0.3))
    await db.orders.insert_one(sample.order(1))
    async with provider() as fake:
        fake.order(1, status="paid", amount_paid=sample.AMOUNT, amount_due=0)
        async with endpoint(make_settings(razorpay={**fake.section, "api_retries": 0})) as running:
            yield Shop(running, fake)


@pytest.mark.asyncio
async def test_the_api_completes_the_order_when_no_webhook_comes(shop: Shop) -> None:
    shop.fake.payment(1)
    row = await shop.come_back()
    order = await shop.endpoint.order(1)
    assert (row["status"], order["payment"]["status"]) == ("completed", "completed")
    assert order["payment"]["attempts"][0]["statuses"] == ["callback", "captured"]
    assert order["payment"]["razorpaySignature"]
    assert [entry["_id"] async for entry in shop.endpoint.db.ledger.find({})] == [f"capture:{sample.payment_id(1)}"]
    assert [entry["cause"]["origin"] for entry in order["history"]] == ["callback", "callback"]


@pytest.mark.asyncio
async def test_the_attempt_is_recorded_before_anybody_is_asked(shop: Shop) -> None:
    shop.fake.api.always = Fault(503)
    row = await shop.come_back()
    order = await shop.endpoint.order(1)
    assert order["payment"]["attempts"][0]["statuses"] == ["callback"]
    assert (order["payment"]["status"], row["status"]) == ("pending", "completed")
    assert len(shop.asked) == 3, "asked a few times, then the webhook or reconciliation will tell"
    assert await shop.endpoint.processed(sample.captured(1), "E1") == "completed/applied"


@pytest.mark.asyncio
async def test_the_api_is_not_asked_when_the_webhook_was_faster(shop: Shop) -> None:
    assert await shop.endpoint.processed(sample.captured(1), "E1") == "completed/applied"
    row = await shop.come_back()
    assert (row["outcome"], shop.asked) == ({"code": "applied", "detail": None}, [])
    assert (await shop.endpoint.order(1))["payment"]["razorpaySignature"]


@pytest.mark.asyncio
async def test_a_payment_that_the_api_does_not_know_stays_an_unverified_attempt(shop: Shop) -> None:
    row = await shop.come_back()
    order = await shop.endpoint.order(1)
    assert (row["status"], order["payment"]["status"]) == ("completed", "pending")
    assert len(shop.asked) == 1
