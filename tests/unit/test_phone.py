"""Telephone numbers as orders have them."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Int64

from watcher.channels import NoAddress
from watcher.channels.phone import customer_phone, e164


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("9876543210", "+919876543210"),
        ("09876543210", "+919876543210"),
        ("919876543210", "+919876543210"),
        ("+919876543210", "+919876543210"),
        ("00919876543210", "+919876543210"),
        ("+91 98765 43210", "+919876543210"),
        ("+91-98765-43210", "+919876543210"),
        (" 98765\N{NO-BREAK SPACE}43210 ", "+919876543210"),
        (9876543210, "+919876543210"),
        (Int64(919876543210), "+919876543210"),
        ("+1 (650) 253-0000", "+16502530000"),
        ("+44 7400 123456", "+447400123456"),
    ],
)
def test_a_number_becomes_what_providers_take(written: object, number: str) -> None:
    assert e164(written) == number
    assert customer_phone({"shippingAddress": {"phone": written}}, "customer") == number


@pytest.mark.parametrize(
    "written",
    [
        "123",
        "+910000000000",
        "+919876543210123",
        "98765432101234567890",
        "9876543210, 9876543211",
        "9876543210/11",
        "9876543210 ext 5",
        "9876543210x5",
        "1800-FLOWERS",
        "tel:+919876543210",
        "+91\n9876543210",
        "9876543210\r\n",
        "9876543210\x00",
        "९८७६५४३२१०",
        "++919876543210",
        "call me",
        0,
        -9876543210,
        10**30,
        True,
        9876543210.0,
        ["9876543210"],
        {"$gt": ""},
        b"9876543210",
    ],
)
def test_what_is_not_one_valid_number_is_none(written: object) -> None:
    with pytest.raises(NoAddress) as caught:
        e164(written)
    assert caught.value.reason == str(caught.value) == "bad_phone"


@pytest.mark.parametrize("written", ["1234567890", "080-2222 3333", "+44 20 7031 3000", "1800 180 1407"])
def test_a_number_that_is_no_mobiles_gets_no_message(written: str) -> None:
    with pytest.raises(NoAddress, match="not_mobile"):
        e164(written)


@pytest.mark.parametrize(
    "order", [{}, {"shippingAddress": None}, {"shippingAddress": []}, {"shippingAddress": {}}, {"shippingAddress": 7}]
)
def test_an_order_without_a_number_reaches_nobody(order: dict[str, Any]) -> None:
    with pytest.raises(NoAddress, match="no_phone"):
        customer_phone(order, "customer")
    with pytest.raises(NoAddress, match="no_phone"):
        e164("  ")


def test_the_shops_people_are_never_reached_at_the_customers_number() -> None:
    with pytest.raises(NoAddress, match="customers_only"):
        customer_phone({"shippingAddress": {"phone": "9876543210"}}, "admin")
