"""Telephone numbers as orders have them, in the one form that providers take (E.164: `+919876543210`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import phonenumbers

from watcher.channels import NoAddress

HOME = "IN"
"""Where a number without a country code is."""
_MOBILE = {phonenumbers.PhoneNumberType.MOBILE, phonenumbers.PhoneNumberType.FIXED_LINE_OR_MOBILE}
_WRITTEN = re.compile(r"\+?[0-9][0-9 ().\-\u00a0]{5,30}")


def customer_phone(order: Mapping[str, Any], recipient: str) -> str:
    """The number in the order's shipping address; raises `NoAddress`, for admins too: a shop has no such number."""
    if recipient == "admin":
        raise NoAddress("customers_only")
    shipping = order.get("shippingAddress")
    return e164(shipping.get("phone") if isinstance(shipping, Mapping) else None)


def e164(value: object) -> str:
    """One valid mobile number with its country code; raises `NoAddress`: no_phone, bad_phone or not_mobile.

    A whole number is taken for its digits, since some shops store them so; letters and extensions are not guessed at.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**15:
        value = str(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise NoAddress("no_phone")
    if not isinstance(value, str) or not _WRITTEN.fullmatch(value.strip(" ")):
        raise NoAddress("bad_phone")
    try:
        number = phonenumbers.parse(value, HOME)
    except phonenumbers.NumberParseException:
        raise NoAddress("bad_phone") from None
    if not phonenumbers.is_valid_number(number):
        raise NoAddress("bad_phone")
    if phonenumbers.number_type(number) not in _MOBILE:
        raise NoAddress("not_mobile")
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
