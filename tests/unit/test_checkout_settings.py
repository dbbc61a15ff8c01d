"""Settings of the browser's routes and of the callers' addresses: what is no such thing stops the start."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest
from pydantic import ValidationError

from models.settings import CheckoutSettings, HttpSettings, RazorpaySettings


@pytest.mark.parametrize(
    "template",
    [
        "https://shop.example/orders/{order_id}",
        "http://localhost:3000/thanks?order={order_id}#paid",
        "https://shop.example/{order_id}/{order_id}",
        "https://shop.example/thanks",
        "https://[2001:db8::1]/{order_id}",
    ],
)
def test_a_return_address_is_a_whole_one(template: str) -> None:
    assert CheckoutSettings(return_url=template).return_url == template


@pytest.mark.parametrize(
    "template",
    [
        "",
        "/orders/{order_id}",
        "//shop.example/{order_id}",
        "shop.example/{order_id}",
        "javascript:alert({order_id})",
        "ftp://shop.example/{order_id}",
        "https:///{order_id}",
        "https://{order_id}/",
        "https://{order_id}.shop.example/",
        "https://shop.example:{order_id}/",
        "https://shop.example:99999/{order_id}",
        "https://shop.example{order_id}",
        "https://shop.example/{payment_id}",
        "https://shop.example/{order_id}/{}",
        "https://shop.example/{{order_id}}",
        "https://shop.example/{order_id",
        "https://shop.example/order_id}",
        "https://shop.example/a b",
        "https://shop.example/\r\nSet-Cookie: a=b",
        "https://shop.example/é",
        "https://[shop.example/",
    ],
)
def test_any_other_return_address_is_refused(template: str) -> None:
    with pytest.raises(ValidationError, match="whole http"):
        CheckoutSettings(return_url=template)


def test_origins_are_exact() -> None:
    origins = ("https://shop.example", "http://localhost:3000", "https://[2001:db8::1]:8443")
    assert CheckoutSettings(allowed_origins=origins).allowed_origins == origins


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "", "shop.example", "https://shop.example/", "https://*.shop.example", "https://Shop.example"],
)
def test_what_no_browser_sends_as_an_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValidationError, match="scheme, host"):
        CheckoutSettings(allowed_origins=("https://shop.example", origin))


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_of_nothing_is_refused(rate: int) -> None:
    with pytest.raises(ValidationError):
        CheckoutSettings(rate=rate)


@pytest.mark.parametrize("secret", ["", " ", "\n"])
def test_an_empty_key_secret_is_refused(secret: str) -> None:
    with pytest.raises(ValidationError, match="anybody could sign"):
        RazorpaySettings.model_validate({"key_secret": secret})


def test_networks_are_read_with_and_without_their_length() -> None:
    settings = HttpSettings.model_validate({"trusted_proxies": ["10.0.0.0/8", "::1", "203.0.113.7"]})
    assert settings.trusted_proxies == tuple(map(ip_network, ("10.0.0.0/8", "::1/128", "203.0.113.7/32")))


@pytest.mark.parametrize(
    "values",
    [
        {"trusted_proxies": ["10.0.0.1/8"]},
        {"trusted_proxies": ["proxy.internal"]},
        {"allowed_sources": []},
        {"allowed_sources": ["52.66.75"]},
        {"source_allow_list": "on"},
    ],
)
def test_what_is_no_network_or_no_mode_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HttpSettings.model_validate(values)
