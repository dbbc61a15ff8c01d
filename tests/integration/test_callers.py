"""Callers by their address over real connections: the limit of the browser's routes, and the webhooks' source list."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import structlog

from models.database import Database
from models.settings import Settings
from scripts.simulator.browser import Browser, Shown
from scripts.simulator.callbacks import checkout_fields, link_query
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import Endpoint, endpoint
from webhook.observe import WebhookLog

KEY = "test-key-secret"
HERE, RAZORPAY, STRANGER = "127.0.0.1", "52.66.75.174", "192.0.2.9"
FIELDS = checkout_fields(KEY, sample.provider_order_id(1), sample.payment_id(1))


def key_settings(make: SettingsMaker, rate: int, **http: Any) -> Settings:
    return make(razorpay={"key_secret": KEY}, checkout={"rate": rate}, http=http)


async def verify(shop: Endpoint, forwarded: str | None = None) -> Shown:
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    return await Browser(f"http://127.0.0.1:{shop.port}", shop.http).verify(FIELDS, headers=headers)


@pytest.mark.asyncio
async def test_one_address_has_its_rate_over_both_routes_and_is_told_when_to_come_again(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(key_settings(make_settings, 2)) as shop:
        browser = Browser(f"http://127.0.0.1:{shop.port}", shop.http)
        assert (await verify(shop)).status == 200
        assert (await browser.come_back(link_query(KEY, "plink_1", "pay_1"))).status == 400
        limited = [await verify(shop), await browser.come_back(link_query(KEY, "plink_1", "pay_1"))]
        assert [shown.status for shown in limited] == [429, 429]
        assert all(1 <= int(shown.headers["Retry-After"]) <= 30 for shown in limited)
        status, _ = await shop.post(sample.captured(1), "E1")  # the provider has no such limit
        assert status == 200
        outcomes = [fields["outcome"] for name, fields in shop.emitted if name == "checkout.answered"]
        assert outcomes == ["accepted", "not_verified", "limited", "limited"]


@pytest.mark.asyncio
async def test_behind_a_trusted_proxy_every_buyer_has_a_rate_of_its_own(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(key_settings(make_settings, 1, trusted_proxies=["127.0.0.0/8"])) as shop:
        asked = (STRANGER, STRANGER, f"6.6.6.6, {STRANGER}", "192.0.2.10", "2001:db8::1", "2001:db8::2", "nonsense")
        assert [(await verify(shop, address)).status for address in asked] == [200, 429, 429, 200, 200, 429, 200]
        assert (await verify(shop)).status == 429  # who was hidden by nonsense was the proxy itself


@pytest.mark.asyncio
async def test_what_a_proxy_that_is_not_trusted_says_changes_nothing_and_the_log_shows_it(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(key_settings(make_settings, 1)) as shop:
        assert [(await verify(shop, address)).status for address in (STRANGER, "192.0.2.10")] == [200, 429]
        lines = [fields for name, fields in shop.emitted if name == "checkout.answered"]
        assert [line["forwarded"] for line in lines] == ["ignored", "ignored"]


async def post(shop: Endpoint, event_id: str, forwarded: str, **options: Any) -> tuple[int, dict[str, Any]]:
    return await shop.post(sample.captured(1), event_id, headers={"X-Forwarded-For": forwarded}, **options)


def unlisted(shop: Endpoint) -> list[Mapping[str, Any]]:
    return [fields for name, fields in shop.emitted if name == "webhook.unlisted_source"]


def sources(make: SettingsMaker, mode: str, **http: Any) -> Settings:
    return make(http={"source_allow_list": mode, "trusted_proxies": ["127.0.0.1"], **http})


@pytest.mark.asyncio
async def test_enforced_a_webhook_from_elsewhere_is_403_before_its_body_is_read(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(sources(make_settings, "enforce", extra_paths=("/api/hook",))) as shop:
        for number, address in enumerate((STRANGER, HERE, f"{RAZORPAY}, {STRANGER}", "nonsense", "2001:db8::1")):
            status, said = await post(shop, f"E{number}", address)
            assert (status, said["error"]) == (403, "unlisted_source"), address
        reader, writer = await asyncio.open_connection("127.0.0.1", shop.port)
        writer.write(b"POST /api/hook HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 1000000\r\n\r\n")  # and no body
        async with asyncio.timeout(10):
            assert (await reader.readline()).split()[1] == b"403"
        writer.close()
        await writer.wait_closed()
        assert await db.events.count_documents({}) == 0
        for number, address in enumerate((RAZORPAY, f"6.6.6.6, {RAZORPAY}", "::ffff:18.96.225.1")):
            assert (await post(shop, f"E{number}", address))[0] == 200
        labels = {"provider": "razorpay", "outcome": "unlisted_source"}
        assert shop.parts.registry.get_sample_value("paylatch_webhook_requests_total", labels) == 6
        assert unlisted(shop) == []


@pytest.mark.asyncio
async def test_reported_it_is_taken_and_counted_and_only_a_true_ones_address_is_shown(
    db: Database, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(sources(make_settings, "report")) as shop:
        assert (await post(shop, "E1", STRANGER))[0] == 200
        assert (await post(shop, "E2", STRANGER, secret="wrong"))[0] == 400
        assert (await post(shop, "E3", RAZORPAY))[0] == 200
        assert unlisted(shop) == [{"authentic": True, "source": STRANGER}, {"authentic": False}]
        for authentic in ("yes", "no"):
            labels = {"authentic": authentic}
            assert shop.parts.registry.get_sample_value("paylatch_webhook_unlisted_sources_total", labels) == 1


@pytest.mark.asyncio
async def test_off_is_the_default_and_says_nothing(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings()) as shop:
        assert (await post(shop, "E1", STRANGER))[0] == 200
        assert unlisted(shop) == []


def test_unlisted_sources_are_logged_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([100.0, 100.2, 100.3, 100.6, 101.5])
    monkeypatch.setattr("webhook.observe.time.monotonic", lambda: next(seconds))
    log = WebhookLog()
    with structlog.testing.capture_logs() as lines:
        log("webhook.unlisted_source", {"authentic": False})
        log("webhook.unlisted_source", {"authentic": False})
        log("checkout.answered", {"outcome": "not_verified"})  # its own line, whatever else is refused
        log("webhook.unlisted_source", {"authentic": False})
        log("webhook.unlisted_source", {"authentic": True})
    assert [(line["event"], line["unlogged"]) for line in lines] == [
        ("webhook.unlisted_source", 0),
        ("checkout.answered", 0),
        ("webhook.unlisted_source", 2),
    ]
