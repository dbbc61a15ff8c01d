"""What completes an order: the expected amount and currency, whether it may come in parts, and who bears the fee."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.entries import Entry
from models.known import Known

WHOLE = "whole"
PART = "part"
WAITS = "waits"
"""Whether a capture fits is not known before the provider has told its terms."""
OUT = "out"
"""An operator rejected the capture."""
FITS = frozenset({WHOLE, PART})


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the shop wants for the order, in the smallest unit; None where the order does not say."""

    amount: int | None
    currency: str | None
    fee_on_customer: bool = False
    """Whether the customer pays the provider's fee on top, so that a payment is larger than its order."""


def may_be_paid_in_parts(payment: Mapping[str, Any], known: Known) -> bool | None:
    """Whether several captures may add up; None while an order with a payment link has not heard the link's terms.

    The shop's own `payment.acceptPartial` decides. Without it the provider's word counts for an order that can only be
    paid by a link: it has `paymentLinkId`, or no `razorpayOrderId` under which a payment could come first.
    """
    stated = payment.get("acceptPartial")
    if isinstance(stated, bool):
        return stated
    linked = _named(payment.get("paymentLinkId"))
    if not linked and _named(payment.get("razorpayOrderId")):
        return False
    said = {link["acceptPartial"] for link in known.links.values()}
    if True in said or any(_part_of_its_order(attempt) for attempt in known.captures):
        return True
    return None if linked and False not in said else False


def _named(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _part_of_its_order(attempt: Entry) -> bool:
    """The provider says that its order is paid in full, and this payment is less."""
    whole, amount = attempt.get("orderAmount"), attempt["amount"]
    return whole is not None and amount is not None and amount < whole


def fit(attempt: Entry, expected: Expectation, partial: bool | None) -> str:  # noqa: FBT001 - three-valued
    """`WHOLE`, `PART`, `WAITS`, or the reason why somebody must look at this capture."""
    amount = attempt["amount"]
    if amount is None:
        return "amount_unreadable"
    if expected.amount is None:
        return "expected_amount_missing"
    if attempt["currency"] is None or attempt["currency"] != expected.currency:
        return "currency_mismatch"
    if amount == expected.amount:
        return WHOLE
    if amount < expected.amount:
        return WAITS if partial is None else PART if partial else "amount_mismatch"
    return _with_fee(attempt, expected) if expected.fee_on_customer else "amount_mismatch"


def _with_fee(attempt: Entry, expected: Expectation) -> str:
    """More than expected: the provider's own order, paid in full, decides what of it was the price."""
    settled = attempt.get("orderAmount")
    if settled is None:
        return WAITS
    return WHOLE if settled == expected.amount else "amount_mismatch"
