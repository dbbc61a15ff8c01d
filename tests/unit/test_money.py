from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Literal

import pytest
from bson import Decimal128, Int64

from models.money import exponent, from_shop, parse_amount, parse_currency


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        (0, 0),
        (49_900, 49_900),
        (Int64(49_900), 49_900),
        (10**15 - 1, 10**15 - 1),
        (49_900.0, 49_900),
        (-0.0, 0),
        ("49900", 49_900),
        ("007", 7),
        ("0", 0),
        ("9" * 15, 10**15 - 1),
    ],
)
def test_integers_integral_floats_and_ascii_digits_are_amounts(value: object, amount: int) -> None:
    assert parse_amount(value) == amount
    assert type(parse_amount(value)) is int


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        None,
        -1,
        -1.0,
        10**15,
        1e15,
        499.5,
        float("nan"),
        float("inf"),
        "",
        "499.00",
        "-1",
        "+1",
        " 1",
        "1\n",
        "1_000",
        "1e3",
        "0x10",
        "٤٩٩",
        "４９９",
        "9" * 16,
        "9" * 5000,
        b"499",
        [499],
        {"amount": 499},
        Decimal(499),
        Decimal128("499"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_nothing_else_is_an_amount(value: object) -> None:
    assert parse_amount(value) is None


@pytest.mark.parametrize(
    ("value", "currency"),
    [
        ("INR", "INR"),
        ("inr", "INR"),
        (" usd\n", "USD"),
        ("", None),
        ("IN", None),
        ("INRR", None),
        ("I R", None),
        ("₹₹₹", None),
        ("12A", None),
        (None, None),
        (356, None),
        (["INR"], None),
    ],
)
def test_a_currency_is_three_letters(value: object, currency: str | None) -> None:
    assert parse_currency(value) == currency


@pytest.mark.parametrize(
    ("currency", "places"), [("INR", 2), ("USD", 2), ("JPY", 0), ("KRW", 0), ("KWD", 3), ("BHD", 3), ("XXX", 2)]
)
def test_the_smallest_unit_depends_on_the_currency(currency: str, places: int) -> None:
    assert exponent(currency) == places
    assert from_shop("7", "major", currency) == 7 * 10**places


@pytest.mark.parametrize(
    ("value", "unit", "currency", "amount"),
    [
        (19.99, "major", "INR", 1_999),
        (499, "major", "INR", 49_900),
        ("499.00", "major", "INR", 49_900),
        ("499.000", "major", "INR", 49_900),
        (Decimal("499.50"), "major", "INR", 49_950),
        (Decimal128("499.50"), "major", "INR", 49_950),
        (0, "major", "INR", 0),
        ("1.234", "major", "KWD", 1_234),
        (500, "major", "JPY", 500),
        (49_900, "smallest", "INR", 49_900),
        (49_900.0, "smallest", "INR", 49_900),
        (Int64(49_900), "smallest", "INR", 49_900),
        ("49900.00", "smallest", "INR", 49_900),
    ],
)
def test_the_shops_own_number_becomes_an_amount_exactly(
    value: object, unit: Literal["smallest", "major"], currency: str, amount: int
) -> None:
    assert from_shop(value, unit, currency) == amount


@pytest.mark.parametrize(
    ("value", "unit", "currency"),
    [
        ("19.999", "major", "INR"),
        (0.1 + 0.2, "major", "INR"),
        ("499.5", "major", "JPY"),
        (499.5, "smallest", "INR"),
        ("499.0000000000000000000000000000001", "major", "INR"),
        (-1, "major", "INR"),
        ("10000000000000", "major", "INR"),
        (True, "major", "INR"),
        (None, "major", "INR"),
        ("", "major", "INR"),
        ("₹499", "major", "INR"),
        ("4,99,000", "major", "INR"),
        ("NaN", "major", "INR"),
        ("sNaN", "smallest", "INR"),
        ("Infinity", "major", "INR"),
        ("-Infinity", "smallest", "INR"),
        (float("nan"), "major", "INR"),
        (float("inf"), "smallest", "INR"),
        (Decimal128("NaN"), "major", "INR"),
        ("9e999999", "major", "INR"),
        ("1e-999999", "major", "INR"),
        ("1e999999999999999999999", "smallest", "INR"),
        (1e308, "major", "INR"),
        ([499], "major", "INR"),
        ({"value": 499}, "smallest", "INR"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_a_number_with_a_fraction_of_the_smallest_unit_and_what_is_no_number_is_no_amount(
    value: object, unit: Literal["smallest", "major"], currency: str
) -> None:
    assert from_shop(value, unit, currency) is None


def test_reading_an_amount_leaves_the_callers_decimal_context_alone() -> None:
    before = decimal.getcontext().copy()
    from_shop("9e999999", "major", "INR")
    after = decimal.getcontext()
    assert (after.prec, after.traps, after.flags) == (before.prec, before.traps, before.flags)
