"""Amounts are integers in the currency's smallest unit (paise for INR)."""

from __future__ import annotations

import re
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation, Overflow, localcontext
from typing import Literal

from bson import Decimal128

# ISO 4217 minor units, as Razorpay lists them; every other currency has two.
_NO_DECIMALS = frozenset(
    {"BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF"},
)
_THREE_DECIMALS = frozenset({"BHD", "IQD", "JOD", "KWD", "OMR", "TND"})
_DIGITS = re.compile(r"[0-9]{1,15}")  # ASCII only; 15 digits stay exact in every JSON reader
_CURRENCY = re.compile(r"[A-Z]{3}")
_MOST = 10**15
_EXACT = Context(traps=[Inexact, InvalidOperation, Overflow])  # what would have to be rounded is no amount


def exponent(currency: str) -> int:
    """Decimal places between the currency's major and smallest unit."""
    if currency in _NO_DECIMALS:
        return 0
    return 3 if currency in _THREE_DECIMALS else 2


def parse_amount(value: object) -> int | None:
    """An amount in the smallest unit, or None when it is not one.

    Integers, integral floats and strings of ASCII digits count; `True`, `"499.00"`, negatives and lists never do, and
    nothing is ever truncated.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return int(value) if _DIGITS.fullmatch(value) else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and 0 <= value < _MOST else None
    if isinstance(value, int):
        return int(value) if 0 <= value < _MOST else None
    return None


def parse_currency(value: object) -> str | None:
    """A three-letter ISO 4217 code in upper case, or None."""
    if not isinstance(value, str):
        return None
    code = value.strip().upper()
    return code if _CURRENCY.fullmatch(code) else None


def from_shop(value: object, unit: Literal["smallest", "major"], currency: str) -> int | None:
    """The shop's own number as an amount in the smallest unit; None when it has a fraction of one or is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal | Decimal128):
        return None
    try:
        with localcontext(_EXACT):
            number = Decimal(str(value))
            scaled = number.scaleb(exponent(currency)) if unit == "major" else number
            return int(scaled) if scaled == scaled.to_integral_value() and 0 <= scaled < _MOST else None
    except DecimalException:
        return None
