"""The local fake of the provider's API: the latest of what was sent, lists as the provider's, errors in its shape."""

from __future__ import annotations

import random
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from scripts.simulator.api import KEY_ID, KEY_SECRET, ProviderApi
from scripts.simulator.checkout import Story, live
from scripts.simulator.traffic import TrafficOptions, plan

ACCOUNT = "acc_00000000000000"


async def asked(api: ProviderApi, *paths: str, secret: str = KEY_SECRET) -> list[tuple[int, Any]]:
    answers = []
    headers = {"Authorization": aiohttp.encode_basic_auth(KEY_ID, secret)}
    async with TestServer(api.application()) as server, aiohttp.ClientSession(headers=headers) as http:
        for path in paths:
            async with http.get(server.make_url(path)) as response:
                answers.append((response.status, await response.json()))
    return answers


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("story", "payment", "order", "refund"),
    [
        ("paid", "captured", "paid", None),
        ("failed", "failed", "created", None),
        ("late", "captured", "paid", None),
        ("authorized_only", "authorized", "created", None),
        ("partial_refund", "captured", "paid", "processed"),
        ("full_refund", "refunded", "paid", "processed"),
        ("failed_refund", "captured", "paid", "failed"),
    ],
)
def test_the_latest_snapshot_counts_in_whatever_order_it_was_sent(
    story: Story, payment: str, order: str, refund: str | None, seed: int
) -> None:
    life, api = live(random.Random(seed), "PL-1", 1_000, ACCOUNT, story), ProviderApi()
    api.show("order", life.provider_order)
    for body in random.Random(seed).sample(life.bodies, len(life.bodies)):
        api.take(body)
    seen = {kind: {entity["status"] for entity in entities.values()} for kind, entities in api.entities.items()}
    assert (seen["payment"], seen["order"]) == ({payment}, {order})
    assert seen["refund"] == ({refund} if refund else set())


@pytest.mark.asyncio
async def test_lists_are_the_providers_newest_first_ten_at_a_time_and_a_hundred_at_most() -> None:
    api = ProviderApi()
    for second in range(1, 151):
        api.show("payment", {"id": f"pay_{second}", "status": "captured", "created_at": second})
    paths = ("", "?count=100&skip=100", "?count=100&from=10&to=20", "?count=101", "?skip=x")
    first, later, period, *wrong = await asked(api, *(f"/v1/payments{query}" for query in paths))
    assert [item["id"] for item in first[1]["items"]] == [f"pay_{number}" for number in range(150, 140, -1)]
    assert later[1]["count"] == 50
    assert [item["created_at"] for item in period[1]["items"]] == list(range(20, 9, -1))
    assert [status for status, _ in wrong] == [400, 400]
    api.lag = 149
    lagging, current = await asked(api, "/v1/payments", "/v1/payments/pay_150")
    assert [item["id"] for item in lagging[1]["items"]] == ["pay_1"]
    assert current[0] == 200


@pytest.mark.asyncio
async def test_orders_are_found_by_their_receipt_and_unknown_ids_are_400() -> None:
    api = ProviderApi()
    api.live([live(random.Random(n), f"PL-{n}", 1_000, ACCOUNT, "paid") for n in range(3)])
    found, nothing, *unknown = await asked(
        api, "/v1/orders?receipt=PL-2", "/v1/orders?receipt=X", "/v1/orders/x", "/v1/orders/x/payments"
    )
    assert [order["receipt"] for order in found[1]["items"]] == ["PL-2"]
    assert nothing[1]["items"] == []
    assert {(status, body["error"]["code"]) for status, body in unknown} == {(400, "BAD_REQUEST_ERROR")}


@pytest.mark.asyncio
async def test_another_key_is_refused() -> None:
    ((status, body),) = await asked(ProviderApi(), "/v1/payments", secret="wrong")
    assert (status, body["error"]["description"]) == (401, "Authentication failed")


def test_lost_orders_send_nothing_and_their_truth_stands() -> None:
    values: dict[str, Any] = {"secrets": {"now": "a-secret"}, "current": "now", "orders": 50}
    all_sent, some_lost = plan(TrafficOptions(**values)), plan(TrafficOptions(**values, lost_share=0.1))
    assert (len(all_sent.lost), len(some_lost.lost)) == (0, 5)
    assert some_lost.orders == all_sent.orders
    assert some_lost.truth == all_sent.truth
    lost = {order["payment"]["razorpayOrderId"] for order in some_lost.orders if order["_id"] in some_lost.lost}
    assert not {delivery.lane for delivery in some_lost.deliveries} & lost
    assert not [i for i in lost if any(i.encode() in d.raw for d in some_lost.deliveries if d.kind != "bad_signature")]
