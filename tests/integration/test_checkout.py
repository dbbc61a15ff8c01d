"""The buyer's browser against the real endpoint: what it is told, what is stored, and that the webhook decides."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from bson import ObjectId
from pydantic import SecretStr

from models.database import Database
from scripts.simulator.browser import Browser, Shown
from scripts.simulator.callbacks import Fields, checkout_fields, link_query, subscription_fields
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import Endpoint, endpoint
from tests.support.proxy import proxy
from tests.support.wait import eventually
from webhook import callback_orders
from webhook.observe import REFUSED

KEY = "test-key-secret"
ORDER, PAYMENT = sample.provider_order_id(1), sample.payment_id(1)
LINK = "plink_Test0000000001"
RETURN_URL = "https://shop.example/orders/{order_id}?paid=1"
PAIRS = 40


@pytest.fixture
def key_settings(make_settings: SettingsMaker) -> SettingsMaker:
    def make(**checkout: Any) -> Any:
        values = {"return_url": RETURN_URL, "rate": 10_000, **checkout}
        return make_settings(razorpay={"key_secret": KEY}, checkout=values)

    return make


@pytest_asyncio.fixture
async def shop(db: Database, key_settings: SettingsMaker) -> AsyncIterator[Endpoint]:
    """An endpoint with the key's secret, and one pending order, `ord1`."""
    await db.orders.insert_one(sample.order(1))
    async with endpoint(key_settings()) as running:
        yield running


def browser(shop: Endpoint) -> Browser:
    return Browser(f"http://127.0.0.1:{shop.port}", shop.http)


def said(shown: Shown) -> dict[str, Any]:
    answer = json.loads(shown.body)
    assert isinstance(answer, dict)
    return answer


async def nothing_is_stored(shop: Endpoint) -> bool:
    return await shop.db.events.count_documents({}) == 0


def logged(shop: Endpoint) -> list[dict[str, Any]]:
    return [fields for name, fields in shop.emitted if name == "checkout.answered"]


@pytest.mark.asyncio
@pytest.mark.parametrize("form", [False, True], ids=["json", "form"])
async def test_a_callback_is_recorded_and_only_confirming(shop: Endpoint, form: bool) -> None:  # noqa: FBT001
    shown = await browser(shop).verify(checkout_fields(KEY, ORDER, PAYMENT), form=form)
    event_id = f"callback:{ORDER}:{PAYMENT}"
    assert shown.status == 200
    assert said(shown) == {"status": "confirming", "orderId": "ord1", "eventId": event_id}
    row = await shop.settled(event_id)
    assert (row["origin"], row["eventType"], row["outcome"]["code"]) == ("callback", "checkout.callback", "applied")
    payment = (await shop.order(1))["payment"]
    assert payment["status"] == "pending"
    assert [attempt["statuses"] for attempt in payment["attempts"]] == [["callback"]]
    assert payment["razorpaySignature"] == checkout_fields(KEY, ORDER, PAYMENT)["razorpay_signature"]
    assert await shop.db.ledger.count_documents({}) == 0
    assert await shop.db.fulfilments.count_documents({}) == 0


@pytest.mark.asyncio
async def test_a_callback_that_comes_again_is_a_duplicate_with_the_same_answer(shop: Endpoint) -> None:
    fields = checkout_fields(KEY, ORDER, PAYMENT)
    shouted = {**fields, "razorpay_signature": fields["razorpay_signature"].upper()}
    answers = [await browser(shop).verify(fields), await browser(shop).verify(fields, form=True)]
    answers.append(await browser(shop).verify(shouted))
    assert [(shown.status, shown.body) for shown in answers] == [(200, answers[0].body)] * 3
    assert [line["outcome"] for line in logged(shop)] == ["accepted", "redelivery", "redelivery"]
    assert await shop.db.events.count_documents({}) == 1
    assert (await shop.settled(said(answers[0])["eventId"]))["duplicates"]["count"] == 2


@pytest.mark.asyncio
async def test_after_the_webhook_it_is_paid_and_the_signature_is_kept(shop: Endpoint) -> None:
    assert await shop.processed(sample.captured(1), "E1") == "completed/applied"
    fields = checkout_fields(KEY, ORDER, PAYMENT)
    shown = await browser(shop).verify(fields)
    assert said(shown)["status"] == "paid"
    await shop.settled(said(shown)["eventId"])
    payment = (await shop.order(1))["payment"]
    assert (payment["status"], payment["razorpaySignature"]) == ("completed", fields["razorpay_signature"])


@pytest.mark.asyncio
async def test_the_shops_own_id_is_shown_as_text(shop: Endpoint) -> None:
    own = ObjectId()
    await shop.db.orders.insert_one({**sample.order(2), "_id": own})
    shown = await browser(shop).verify(checkout_fields(KEY, sample.provider_order_id(2), sample.payment_id(2)))
    assert said(shown)["orderId"] == str(own)


@pytest.mark.asyncio
async def test_another_provider_order_of_the_cart_is_found_by_what_was_learned(shop: Endpoint) -> None:
    ref = {"provider": "razorpay", "kind": "order", "id": "order_Second"}
    others = [
        {"provider": "razorpay", "kind": "payment_link", "id": "order_Third"},
        {"provider": "stripe", "kind": "order", "id": "order_Fourth"},
    ]
    await shop.db.orders.update_one({"_id": "ord1"}, {"$set": {"payment.refs": [*others, ref]}})
    shown = await browser(shop).verify(checkout_fields(KEY, "order_Second", PAYMENT))
    assert said(shown)["orderId"] == "ord1"
    await shop.settled(said(shown)["eventId"])
    assert len((await shop.order(1))["payment"]["attempts"]) == 1
    for other in others:
        assert (await browser(shop).verify(checkout_fields(KEY, other["id"], PAYMENT))).status == 400


def changed(**changes: Any) -> bytes:
    """The true JSON with fields replaced; None leaves one out."""
    fields: dict[str, Any] = {**checkout_fields(KEY, ORDER, PAYMENT), **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def signed_with(secret: str) -> bytes:
    return json.dumps(checkout_fields(secret, ORDER, PAYMENT)).encode()


TRUE = checkout_fields(KEY, ORDER, PAYMENT)
SIGNATURE = TRUE["razorpay_signature"]
OF_ANOTHER = checkout_fields(KEY, sample.provider_order_id(2), sample.payment_id(2))
FORM = "application/x-www-form-urlencoded"
REFUSALS: dict[str, tuple[bytes, str]] = {
    "bad signature": (changed(razorpay_signature="0" * 64), "application/json"),
    "unknown order": (json.dumps(checkout_fields(KEY, "order_Unknown", PAYMENT)).encode(), "application/json"),
    "unknown order, bad signature": (changed(razorpay_order_id="order_Unknown"), "application/json"),
    "the dummy id": (json.dumps(checkout_fields(KEY, "order_00000000000000", PAYMENT)).encode(), "application/json"),
    "signature of another order": (changed(razorpay_signature=OF_ANOTHER["razorpay_signature"]), "application/json"),
    "order of another signature": (changed(razorpay_order_id=sample.provider_order_id(2)), "application/json"),
    "another payment": (changed(razorpay_payment_id=sample.payment_id(1, "B")), "application/json"),
    "swapped": (changed(razorpay_order_id=PAYMENT, razorpay_payment_id=ORDER), "application/json"),
    "the webhook's secret": (signed_with(sample.SECRET), "application/json"),
    "an empty secret": (signed_with(""), "application/json"),
    "no signature": (changed(razorpay_signature=None), "application/json"),
    "signature null": (b'{"razorpay_signature": null}', "application/json"),
    "no order": (changed(razorpay_order_id=None), "application/json"),
    "no payment": (changed(razorpay_payment_id=None), "application/json"),
    "order a query": (changed(razorpay_order_id={"$ne": ""}), "application/json"),
    "order a number": (changed(razorpay_order_id=7), "application/json"),
    "order non-ASCII": (changed(razorpay_order_id="order_é"), "application/json"),
    "signature non-ASCII": (changed(razorpay_signature="é" * 64), "application/json"),
    "signature a lone surrogate": (changed(razorpay_signature="\ud800" * 64), "application/json"),
    "subscription beside the order": (changed(razorpay_subscription_id="sub_1"), "application/json"),
    "the shop's own id": (changed(razorpay_order_id="ord1"), "application/json"),
    "empty": (b"", "application/json"),
    "no JSON": (b"hello", "text/plain"),
    "not UTF-8": (b'{"a": "\xff"}', "application/json"),
    "an array": (b"[]", "application/json"),
    "deep": (b"[" * 5000, "application/json"),
    "a form as JSON": (b"razorpay_order_id=1", "application/json"),
    "empty form": (b"", FORM),
    "a form twice": ("&".join([f"{name}={value}" for name, value in TRUE.items()] * 2).encode(), FORM),
    "a form with a double field": (
        f"razorpay_order_id={ORDER}&razorpay_order_id={ORDER}&razorpay_payment_id={PAYMENT}"
        f"&razorpay_signature={SIGNATURE}".encode(),
        FORM,
    ),
    "a form of a failure": (b"error%5Bcode%5D=BAD_REQUEST_ERROR", FORM),
    "a form that is not UTF-8": (b"razorpay_order_id=%ff&razorpay_signature=\xff", FORM),
    "a form of many fields": (b"&".join([b"a=1"] * 2000), FORM),
}


@pytest.mark.asyncio
async def test_every_refusal_is_the_same_byte_for_byte_and_stores_nothing(shop: Endpoint) -> None:
    await shop.db.orders.insert_one(sample.order(2))
    answers = {name: await browser(shop).post(*body) for name, body in REFUSALS.items()}
    seen = {
        name: (shown.status, shown.body, sorted(item for item in shown.headers.items() if item[0] != "Date"))
        for name, shown in answers.items()
    }
    assert seen["bad signature"][0] == 400
    assert json.loads(seen["bad signature"][1])["error"] == "not_verified"
    assert {name for name, answer in seen.items() if answer != seen["bad signature"]} == set()
    assert {line["outcome"] for line in logged(shop)} == {"not_verified"} <= REFUSED
    assert await nothing_is_stored(shop)
    assert "attempts" not in (await shop.order(1))["payment"]


@pytest.mark.asyncio
async def test_an_unknown_order_is_looked_for_and_its_signature_computed_like_a_known_ones(
    shop: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is counted rather than timed."""
    work: list[str] = []

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            work.append(real.__name__)
            return real(*arguments)

        return call

    monkeypatch.setattr(callback_orders, "_find", counted(callback_orders._find))
    for name in ("digest", "compare_digest"):
        monkeypatch.setattr(hmac, name, counted(getattr(hmac, name)))
    done = []
    for name in ("bad signature", "unknown order", "unknown order, bad signature"):
        await browser(shop).post(*REFUSALS[name])
        done.append(sorted(work))
        work.clear()
    assert done[0] == done[1] == done[2]
    assert set(done[0]) == {"_find", "digest", "compare_digest"}


@pytest.mark.asyncio
async def test_bodies_have_their_limits(shop: Endpoint) -> None:
    large = await browser(shop).post(b"x" * 17_000)
    assert (large.status, said(large)["error"]) == (413, "too_large")
    url = f"http://127.0.0.1:{shop.port}/checkout/verify"
    async with shop.http.post(url, data=b"{}", headers={"Content-Encoding": "gzip"}) as response:
        assert response.status == 415
    assert await nothing_is_stored(shop)


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "DELETE"])
async def test_other_methods_are_405(shop: Endpoint, method: str) -> None:
    async with shop.http.request(method, f"http://127.0.0.1:{shop.port}/checkout/verify") as response:
        assert response.status == 405
    if method != "GET":
        async with shop.http.request(method, f"http://127.0.0.1:{shop.port}/checkout/payment-link") as response:
            assert response.status == 405


@pytest.mark.asyncio
async def test_a_subscription_is_verified_stored_and_not_yet_acted_on(shop: Endpoint) -> None:
    fields = subscription_fields(KEY, "sub_Test01", PAYMENT)
    shown = await browser(shop).verify(fields)
    event_id = f"callback:sub_Test01:{PAYMENT}"
    assert said(shown) == {"status": "confirming", "orderId": None, "eventId": event_id}
    row = await shop.settled(event_id)
    assert (row["status"], row["outcome"]["code"]) == ("ignored", "no_order_id")
    assert row["refs"]["subscriptionId"] == "sub_Test01"
    wrong = {**fields, "razorpay_signature": checkout_fields(KEY, "sub_Test01", PAYMENT)["razorpay_signature"]}
    refusal = await browser(shop).post(*REFUSALS["bad signature"])
    assert (await browser(shop).verify(wrong)).body == refusal.body


@pytest.mark.asyncio
async def test_an_orders_signature_proves_no_subscription(shop: Endpoint) -> None:
    turned = {"razorpay_payment_id": ORDER, "razorpay_subscription_id": PAYMENT, "razorpay_signature": SIGNATURE}
    assert (await browser(shop).verify(turned)).status == 400
    assert await nothing_is_stored(shop)


@pytest.mark.asyncio
async def test_a_form_that_the_browser_itself_posts_leads_back_to_the_shop(shop: Endpoint) -> None:
    page = {"Accept": "text/html,application/xhtml+xml"}
    shown = await browser(shop).verify(TRUE, form=True, headers=page)
    assert (shown.status, shown.location) == (303, "https://shop.example/orders/ord1?paid=1")
    await shop.settled(f"callback:{ORDER}:{PAYMENT}")
    refused = await browser(shop).verify({**TRUE, "razorpay_signature": "0" * 64}, form=True, headers=page)
    assert (refused.status, refused.location) == (400, None)
    assert refused.headers["Content-Type"].startswith("text/html")
    subscription = subscription_fields(KEY, "sub_Test01", PAYMENT)
    thanked = await browser(shop).verify(subscription, form=True, headers=page)  # there is no order to fill in
    assert (thanked.status, thanked.location) == (200, None)


async def linked(shop: Endpoint, **payment: Any) -> None:
    await shop.db.orders.update_one({"_id": "ord1"}, {"$set": {f"payment.{name}": v for name, v in payment.items()}})


@pytest.mark.asyncio
async def test_a_link_leads_back_to_the_shop_and_its_payment_is_recorded(shop: Endpoint) -> None:
    await linked(shop, paymentLinkId=LINK)
    shown = await browser(shop).come_back(link_query(KEY, LINK, PAYMENT, reference="anything at all"))
    assert (shown.status, shown.location) == (303, "https://shop.example/orders/ord1?paid=1")
    assert (shown.headers["Referrer-Policy"], shown.headers["Cache-Control"]) == ("no-referrer", "no-store")
    row = await shop.settled(f"callback:{ORDER}:{PAYMENT}")
    assert (row["outcome"]["code"], row["refs"]["paymentLinkId"]) == ("applied", LINK)
    payment = (await shop.order(1))["payment"]
    assert (payment["status"], [a["statuses"] for a in payment["attempts"]]) == ("pending", [["callback"]])


@pytest.mark.asyncio
@pytest.mark.parametrize("number", ["TEA-1", 700123, 9_223_372_036_854_775_807])
async def test_a_link_that_only_its_reference_names_is_found_and_learned(shop: Endpoint, number: Any) -> None:
    await shop.db.orders.update_one(
        {"_id": "ord1"}, {"$set": {"orderNumber": number}, "$unset": {"payment.razorpayOrderId": 1}}
    )
    shown = await browser(shop).come_back(link_query(KEY, LINK, PAYMENT, reference=str(number)))
    assert shown.location == "https://shop.example/orders/ord1?paid=1"
    assert (await shop.settled(f"callback:{LINK}:{PAYMENT}"))["outcome"]["code"] == "applied"
    payment = (await shop.order(1))["payment"]
    assert [attempt["statuses"] for attempt in payment["attempts"]] == [["callback"]]
    assert payment["refs"] == [{"provider": "razorpay", "kind": "payment_link", "id": LINK}]
    again = await browser(shop).come_back(link_query(KEY, LINK, PAYMENT))  # by what was learned, without reference
    assert again.location == shown.location


@pytest.mark.asyncio
@pytest.mark.parametrize("status", ["partially_paid", "expired", "cancelled", "created"])
async def test_a_link_that_is_not_paid_records_nothing_and_leads_back_all_the_same(shop: Endpoint, status: str) -> None:
    await linked(shop, paymentLinkId=LINK)
    shown = await browser(shop).come_back(link_query(KEY, LINK, PAYMENT, status=status))
    assert (shown.status, shown.location) == (303, "https://shop.example/orders/ord1?paid=1")
    assert [line["outcome"] for line in logged(shop)] == ["not_paid"]
    assert await nothing_is_stored(shop)


LINK_REFUSALS: dict[str, Fields | list[tuple[str, str]]] = {
    "bad signature": {**link_query(KEY, LINK, PAYMENT), "razorpay_signature": "0" * 64},
    "unknown link": link_query(KEY, "plink_Unknown", PAYMENT),
    "unknown link and reference": link_query(KEY, "plink_Unknown", PAYMENT, reference="TEA-99"),
    "a reference that two orders share": link_query(KEY, "plink_Unknown", PAYMENT, reference="SHARED"),
    "a reference of 30 digits": link_query(KEY, "plink_Unknown", PAYMENT, reference="9" * 30),
    "made paid": {**link_query(KEY, LINK, PAYMENT, status="expired"), "razorpay_payment_link_status": "paid"},
    "a checkout's signature": {
        **link_query(KEY, LINK, PAYMENT),
        "razorpay_signature": checkout_fields(KEY, LINK, PAYMENT)["razorpay_signature"],
    },
    "the webhook's secret": link_query(sample.SECRET, LINK, PAYMENT),
    "double": [*link_query(KEY, LINK, PAYMENT).items(), ("razorpay_payment_link_id", LINK)],
    "nothing": {},
    "an address to go to": {"return_url": "https://evil.example/", "redirect": "https://evil.example/"},
}


@pytest.mark.asyncio
async def test_a_link_that_is_not_verified_leads_nowhere(shop: Endpoint) -> None:
    await linked(shop, paymentLinkId=LINK)
    shared = [{**sample.order(number), "orderNumber": "SHARED"} for number in (8, 9)]
    await shop.db.orders.insert_many(shared)
    answers = {name: await browser(shop).come_back(query) for name, query in LINK_REFUSALS.items()}
    assert {(shown.status, shown.location) for shown in answers.values()} == {(400, None)}
    assert {shown.body for shown in answers.values()} == {answers["bad signature"].body}
    assert answers["nothing"].headers["Content-Type"] == "text/html; charset=utf-8"
    assert await nothing_is_stored(shop)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "own",
    ["//evil.example", "../../evil", "a?b#c&d=e", "https://evil.example/", "a\r\nSet-Cookie: x=y", "चाय {order_id}"],
)
async def test_only_the_configured_address_is_ever_gone_to(shop: Endpoint, own: str) -> None:
    """Whatever the shop's ids look like and whatever else the query says."""
    order = sample.order(3, paymentLinkId="plink_Odd")
    await shop.db.orders.insert_one({**order, "_id": own})
    query = link_query(KEY, "plink_Odd", PAYMENT, status="expired")
    shown = await browser(shop).come_back({**query, "return_url": "https://evil.example/", "order_id": "evil"})
    assert shown.status == 303
    assert shown.location is not None
    before, after = RETURN_URL.split("{order_id}")
    assert shown.location.startswith(before)
    assert shown.location.endswith(after)
    filled = shown.location.removeprefix(before).removesuffix(after)
    assert set(filled) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~%")


@pytest.mark.asyncio
async def test_without_a_return_address_the_buyer_is_thanked(db: Database, key_settings: SettingsMaker) -> None:
    await db.orders.insert_one(sample.order(1, paymentLinkId=LINK))
    async with endpoint(key_settings(return_url=None)) as shop:
        shown = await browser(shop).come_back(link_query(KEY, LINK, PAYMENT))
        assert (shown.status, shown.location) == (200, None)
        assert b"Thank you" in shown.body
        await shop.settled(f"callback:{ORDER}:{PAYMENT}")


@pytest.mark.asyncio
async def test_without_the_keys_secret_there_are_no_routes_and_the_log_says_so(shop: Endpoint) -> None:
    settings = shop.parts.settings.model_copy(
        update={"razorpay": shop.parts.settings.razorpay.model_copy(update={"key_secret": None})}
    )
    async with endpoint(settings) as without:
        assert (await browser(without).verify(TRUE)).status == 404
        assert (await browser(without).come_back(link_query(KEY, LINK, PAYMENT))).status == 404
        assert [fields["reason"] for name, fields in without.emitted if name == "checkout.off"] == [
            "PAYLATCH_RAZORPAY__KEY_SECRET is not set"
        ]
    assert [name for name, _ in shop.emitted if name == "checkout.off"] == []


@pytest.mark.asyncio
async def test_one_line_a_request_without_signature_or_address(shop: Endpoint) -> None:
    await browser(shop).verify(TRUE)
    await browser(shop).post(*REFUSALS["bad signature"])
    first, second = logged(shop)
    assert first.keys() == {"route", "outcome", "status", "duration_ms", "event_id"}
    assert second.keys() == {"route", "outcome", "status", "duration_ms"}
    assert SIGNATURE not in str(shop.emitted)
    assert "127.0.0.1" not in str(logged(shop))
    for outcome in ("accepted", "not_verified"):
        labels = {"route": "verify", "outcome": outcome}
        assert shop.parts.registry.get_sample_value("paylatch_checkout_requests_total", labels) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["webhook.checkout.subject_of", "webhook.checkout.callback_delivery"])
async def test_what_fails_is_503_and_never_500(shop: Endpoint, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr(where, broken)
    await linked(shop, paymentLinkId=LINK)
    told, seen = await browser(shop).verify(TRUE), await browser(shop).come_back(link_query(KEY, LINK, PAYMENT))
    assert [(shown.status, shown.headers["Retry-After"]) for shown in (told, seen)] == [(503, "5")] * 2
    assert said(told)["error"] == "unavailable"
    assert seen.body.startswith(b"<!doctype html>")
    assert [line["outcome"] for line in logged(shop)] == ["error", "error"]
    assert await nothing_is_stored(shop)


@pytest.mark.asyncio
async def test_while_the_database_does_not_answer_it_is_503_and_afterwards_recorded_once(
    db: Database, mongodb_uri: str, key_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1))
    async with proxy(mongodb_uri) as (between, uri):
        settings = key_settings()
        settings = settings.model_copy(update={"mongodb": settings.mongodb.model_copy(update={"uri": SecretStr(uri)})})
        async with endpoint(settings) as shop:
            between.hang()
            shown = await browser(shop).verify(TRUE)
            assert (shown.status, shown.headers["Retry-After"], said(shown)["error"]) == (503, "5", "unavailable")
            between.resume()

            async def taken() -> bool:
                return (await browser(shop).verify(TRUE)).status == 200

            assert await eventually(taken, "the callback is taken")
            await shop.settled(f"callback:{ORDER}:{PAYMENT}")
    assert await db.events.count_documents({}) == 1


ALLOWED, OTHER = "https://shop.example", "https://evil.example"
ORIGINS: dict[str, tuple[str, bool]] = {
    "configured": (ALLOWED, True),
    "the other configured": ("http://localhost:3000", True),
    "not configured": (OTHER, False),
    "another scheme": ("http://shop.example", False),
    "another port": ("https://shop.example:8443", False),
    "a sub-domain": ("https://www.shop.example", False),
    "a longer name": ("https://shop.example.evil.example", False),
    "in capitals": ("https://SHOP.example", False),
    "null": ("null", False),
    "any": ("*", False),
}


@pytest_asyncio.fixture
async def cors_shop(db: Database, key_settings: SettingsMaker) -> AsyncIterator[Endpoint]:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(key_settings(allowed_origins=(ALLOWED, "http://localhost:3000"))) as running:
        yield running


@pytest.mark.asyncio
async def test_pages_of_configured_origins_may_ask_and_read_and_no_others(cors_shop: Endpoint) -> None:
    for name, (origin, allowed) in ORIGINS.items():
        asked = await browser(cors_shop).may_post(origin)
        answers = [
            await browser(cors_shop).verify(fields, headers={"Origin": origin})
            for fields in (TRUE, {**TRUE, "razorpay_signature": "0" * 64})
        ]
        assert [shown.status for shown in (asked, *answers)] == [204 if allowed else 403, 200, 400], name
        for shown in (asked, *answers):
            assert shown.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None), name
            assert shown.headers["Vary"] == "Origin"
            assert "Access-Control-Allow-Credentials" not in shown.headers
        assert asked.headers.get("Access-Control-Allow-Methods") == ("POST" if allowed else None)
        assert asked.headers.get("Access-Control-Allow-Headers") == ("Content-Type" if allowed else None)


@pytest.mark.asyncio
async def test_without_configured_origins_no_page_elsewhere_may_read(shop: Endpoint) -> None:
    assert (await browser(shop).may_post(ALLOWED)).status == 403
    shown = await browser(shop).verify(TRUE, headers={"Origin": ALLOWED})
    assert (shown.status, shown.headers.get("Access-Control-Allow-Origin")) == (200, None)


@pytest.mark.asyncio
async def test_callback_and_webhook_in_the_same_instant_are_one_transition(shop: Endpoint) -> None:
    """Each pair meets in two processes' worth of workers, so that nothing but the database keeps them apart."""
    numbers = range(10, 10 + PAIRS)
    await shop.db.orders.insert_many([sample.order(number) for number in numbers])
    async with endpoint(shop.parts.settings) as other:

        async def pair(number: int) -> tuple[Shown, tuple[int, dict[str, Any]]]:
            first, second = (shop, other) if number % 2 else (other, shop)
            fields = checkout_fields(KEY, sample.provider_order_id(number), sample.payment_id(number))
            webhook = second.post(sample.captured(number), f"E{number}")
            shown, answer = await asyncio.gather(browser(first).verify(fields), webhook)
            return shown, answer

        answers = await asyncio.gather(*map(pair, numbers))

        async def all_settled() -> bool:
            return await shop.db.events.count_documents({"status": "completed"}) == 2 * PAIRS

        assert await eventually(all_settled, "every callback and every webhook is completed", 60)
    assert {(shown.status, status) for shown, (status, _) in answers} == {(200, 200)}
    assert {said(shown)["status"] for shown, _ in answers} <= {"confirming", "paid"}
    for number in numbers:
        await paid_once(shop, number)
    assert await shop.db.ledger.count_documents({}) == PAIRS
    assert await shop.db.fulfilments.count_documents({}) == PAIRS


async def paid_once(shop: Endpoint, number: int) -> None:
    """One transition, one credit, one go-ahead; and the buyer's signature is kept."""
    order = await shop.order(number)
    payment = order["payment"]
    fields = checkout_fields(KEY, sample.provider_order_id(number), sample.payment_id(number))
    assert (payment["status"], payment["razorpaySignature"]) == ("completed", fields["razorpay_signature"])
    assert [attempt["statuses"] for attempt in payment["attempts"]] == [["callback", "captured"]]
    moves = [(entry["from"], entry["to"]) for entry in order["history"] if entry["from"] != entry["to"]]
    assert moves == [("pending", "completed")]
    assert await shop.db.ledger.count_documents({"_id": f"capture:{sample.payment_id(number)}"}) == 1
    assert await shop.db.fulfilments.count_documents({"_id": f"ord{number}"}) == 1
