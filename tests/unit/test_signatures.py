"""What a browser's signature covers, read from anything that a browser may send."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.simulator.callbacks import Fields, checkout_fields, link_query, subscription_fields
from webhook.signatures import UNKNOWN_ID, Callback, read_checkout, read_link, single

KEY = "key-secret"
ORDER, PAYMENT, SUBSCRIPTION, LINK = "order_Test01", "pay_Test01", "sub_Test01", "plink_Test01"


def read(fields: Fields) -> Callback | None:
    found = single(fields.items())
    assert found is not None
    return read_link(found) if "razorpay_payment_link_id" in fields else read_checkout(found)


def is_true(fields: Fields, stored_id: str, key: str = KEY) -> bool:
    callback = read(fields)
    assert callback is not None
    return callback.is_signed(key.encode(), stored_id)


def test_the_published_orders_of_ids_are_the_signed_ones() -> None:
    assert is_true(checkout_fields(KEY, ORDER, PAYMENT), ORDER)
    assert is_true(subscription_fields(KEY, SUBSCRIPTION, PAYMENT), SUBSCRIPTION)
    assert is_true(link_query(KEY, LINK, PAYMENT, reference="TEA-1"), LINK)
    assert is_true(link_query(KEY, LINK, PAYMENT), LINK)
    assert is_true(link_query(KEY, LINK, PAYMENT, reference="चाय-1"), LINK)
    assert is_true(link_query(KEY, LINK, "", status="cancelled"), LINK)


def test_a_known_signature_is_recognised() -> None:
    """Made with `printf 'order_Test01|pay_Test01' | openssl dgst -sha256 -hmac key-secret`."""
    signature = "e454a6908aedc1e08c1c651b887dbfa4c327226661d146cb7aff26dc5ef37783"
    assert checkout_fields(KEY, ORDER, PAYMENT)["razorpay_signature"] == signature


@pytest.mark.parametrize("stored", [UNKNOWN_ID, "order_Test02", "Order_Test01", ""])
def test_the_stored_id_decides_and_not_the_one_that_was_sent(stored: str) -> None:
    assert not is_true(checkout_fields(KEY, ORDER, PAYMENT), stored)


def test_another_key_or_case_is_no_signature_but_hex_in_capitals_is() -> None:
    fields = checkout_fields(KEY, ORDER, PAYMENT)
    assert not is_true(fields, ORDER, key="KEY-SECRET")
    shouted = {**fields, "razorpay_signature": fields["razorpay_signature"].upper()}
    assert read(shouted) == read(fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reference", "TEA-2"),
        ("status", "expired"),
        ("payment", "pay_Test02"),
    ],
)
def test_every_part_of_a_link_is_covered(name: str, value: str) -> None:
    query = link_query(KEY, LINK, PAYMENT, reference="TEA-1")
    long = {"reference": "payment_link_reference_id", "status": "payment_link_status", "payment": "payment_id"}[name]
    assert not is_true({**query, f"razorpay_{long}": value}, LINK)


def test_an_orders_signature_is_no_subscriptions() -> None:
    """Both cover two ids with a bar between; only their prefixes tell which is which."""
    fields = checkout_fields(KEY, ORDER, PAYMENT)
    turned = {
        "razorpay_payment_id": ORDER,
        "razorpay_subscription_id": PAYMENT,
        "razorpay_signature": fields["razorpay_signature"],
    }
    assert read(turned) is None
    turned = {**subscription_fields(KEY, SUBSCRIPTION, PAYMENT)}
    turned["razorpay_order_id"] = turned["razorpay_payment_id"]
    turned["razorpay_payment_id"] = turned.pop("razorpay_subscription_id")
    assert read(turned) is None


GOOD = {"order_id": ORDER, "payment_id": PAYMENT, "signature": "0" * 64}
CANNOT_BE: dict[str, dict[str, str]] = {
    "nothing": {},
    "no order": {"payment_id": PAYMENT, "signature": "0" * 64},
    "no payment": {"order_id": ORDER, "signature": "0" * 64},
    "no signature": {"order_id": ORDER, "payment_id": PAYMENT},
    "order and subscription": {**GOOD, "subscription_id": SUBSCRIPTION},
    "empty order": {**GOOD, "order_id": ""},
    "bar in the order": {**GOOD, "order_id": "order_1|pay_2"},
    "newline after the order": {**GOOD, "order_id": f"{ORDER}\n"},
    "an operator of the database": {**GOOD, "order_id": "{$gt: ''}"},
    "non-ASCII order": {**GOOD, "order_id": "order_é"},
    "lone surrogate": {**GOOD, "order_id": "order_\ud800"},
    "long order": {**GOOD, "order_id": "o" * 65},
    "a payment of another kind": {**GOOD, "payment_id": ORDER},
    "short signature": {**GOOD, "signature": "0" * 63},
    "long signature": {**GOOD, "signature": "0" * 66},
    "signature not hex": {**GOOD, "signature": "g" * 64},
    "full-width signature": {**GOOD, "signature": "０" * 64},
}


@pytest.mark.parametrize("fields", CANNOT_BE.values(), ids=CANNOT_BE.keys())
def test_what_cannot_be_a_callback_is_none(fields: dict[str, str]) -> None:
    assert read_checkout(fields) is None
    assert read_checkout(GOOD) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"payment_link_id": ""},
        {"payment_link_id": "plink|1"},
        {"payment_link_status": "PAID"},
        {"payment_link_status": "paid|"},
        {"payment_link_reference_id": "r" * 101},
        {"payment_link_reference_id": "a\nb"},
        {"payment_link_reference_id": "\ud800"},
        {"payment_id": ""},
        {"payment_id": "order_1"},
        {"signature": ""},
    ],
)
def test_what_cannot_be_a_links_callback_is_none(change: dict[str, str]) -> None:
    found = single(link_query(KEY, LINK, PAYMENT, reference="TEA-1").items())
    assert found is not None
    assert read_link(found) is not None
    assert read_link({**found, **change}) is None


@pytest.mark.parametrize("value", [7, None, True, [ORDER], {"$ne": ""}, 1.5])
def test_a_field_that_is_no_text_makes_all_of_it_unusable(value: Any) -> None:
    assert single([("razorpay_order_id", value)]) is None


def test_fields_that_are_not_the_providers_are_passed_over_and_a_double_one_is_not() -> None:
    assert single([("utm", 7), ("razorpay_order_id", ORDER), ("utm", 8)]) == {"order_id": ORDER}
    assert single([("razorpay_order_id", ORDER), ("razorpay_order_id", ORDER)]) is None
