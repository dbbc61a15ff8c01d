"""Amounts as people read them: ₹4,99,000.00."""

from __future__ import annotations

from decimal import Decimal

from babel import Locale
from babel.numbers import parse_pattern

from models.money import exponent, parse_amount, parse_currency


def money(amount: object, currency: object, locale: str = "en_IN") -> str:
    """`amount`, in the smallest unit of `currency`, as `locale` writes it; empty for what is no amount or currency."""
    number, code = parse_amount(amount), parse_currency(currency)
    if number is None or code is None:
        return ""
    decimals = exponent(code)
    language = Locale.parse(locale)
    # Not `format_currency`: it takes the decimals from CLDR, which differ from the provider's (CLP, HUF, IDR ...).
    pattern = parse_pattern(language.currency_formats["standard"].pattern)
    pattern.frac_prec = (decimals, decimals)
    text: str = pattern.apply(Decimal(number).scaleb(-decimals), language, currency=code, currency_digits=False)
    return text
