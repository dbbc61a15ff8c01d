"""What a preview is about: a fact of a stored order, or a made-up order in which everything has happened."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from models.alerts import ADVICE
from models.settings import ALERT_ROUTES
from scripts.output import MASKED, masked
from watcher.notices import REFS

_PERSONAL = MASKED | {"shippingAddress", "billingAddress", "methodDetails"}
_AT = datetime(2026, 1, 15, 9, 30, tzinfo=UTC)
_PRICE = {"amount": 149900, "currency": "INR"}
_CARD = {"method": "card", "methodDetails": {"network": "Visa", "last4": "4242"}}
SAMPLE: Mapping[str, Any] = {
    "_id": "sample",
    "orderNumber": "SH-1001",
    "userId": "user-1",
    "items": [{"name": "Assam tea, 500 g", "quantity": 2}],
    "shippingAddress": {"name": "Asha Verma", "email": "asha@example.com", "phone": "+919000000000"},
    "payment": {
        "status": "partially_refunded",
        **_PRICE,
        **_CARD,
        "razorpayOrderId": "order_Sample00000001",
        "razorpayPaymentId": "pay_Sample0000000001",
        "amountPaid": 149900,
        "amountRefunded": 50000,
        "attempts": [
            {"paymentId": "pay_Sample0000000000", **_PRICE, "error": {"reason": "insufficient_funds"}},
            {"paymentId": "pay_Sample0000000001", **_PRICE, **_CARD},
        ],
        "refunds": [
            {
                "refundId": "rfnd_Sample000000001",
                "paymentId": "pay_Sample0000000001",
                "amount": 50000,
                "currency": "INR",
                "status": "processed",
            }
        ],
        "disputes": [
            {
                "disputeId": "disp_Sample000000001",
                "paymentId": "pay_Sample0000000001",
                **_PRICE,
                "respondBy": _AT + timedelta(days=7),
                "status": "under_review",
            }
        ],
        "review": [
            {"reason": "amount_mismatch", "ref": "pay_Sample0000000002", "amount": 99900, "currency": "INR"},
        ],
    },
}
_ALERT = {
    "kind": "event_unmatched",
    "todo": ADVICE["event_unmatched"],
    "count": 2,
    "facts": [
        ("SampleEvent0001", "payment.captured pay_Sample0000000003, last 2026-01-15 09:30 UTC"),
        ("SampleEvent0002", "payment.captured pay_Sample0000000004, 3 times, last 2026-01-14 18:05 UTC"),
    ],
}
_SAMPLE_REFS = {
    "payment_failed": "pay_Sample0000000000",
    "refund_processed": "rfnd_Sample000000001",
    "refund_failed": "rfnd_Sample000000001",
    "payment_review": "amount_mismatch:pay_Sample0000000002",
    "dispute_opened": "disp_Sample000000001",
    "dispute_closed": "disp_Sample000000001",
}
_STATES = {"refund_failed": ("refunds", "failed"), "dispute_closed": ("disputes", "won")}


@dataclass(frozen=True, slots=True)
class Subject:
    """An order and the fact of it that the message tells."""

    order: Mapping[str, Any]
    ref: str | None
    at: datetime
    known: bool = True
    """Whether the fact is in the order's history."""


def sample(notice: str) -> Subject:
    """The made-up order in the moment of this fact; for an alert a made-up alert stands in its place."""
    if notice in ALERT_ROUTES:
        return Subject({"alert": _ALERT}, None, _AT)
    order = copy.deepcopy(dict(SAMPLE))
    if notice in _STATES:
        kind, state = _STATES[notice]
        order["payment"][kind][0]["status"] = state
    return Subject(order, _SAMPLE_REFS.get(notice), _AT)


def latest(order: Mapping[str, Any], notice: str, now: datetime) -> Subject:
    """The last fact of this kind in the order's history, named as the watcher names it."""
    history = order.get("history")
    for entry in reversed(history if isinstance(history, list) else []):
        if isinstance(entry, Mapping) and entry.get("fact") == notice:
            parts = [str(entry.get(part, "")) for part in REFS.get(notice, ())]
            at = entry.get("at")
            return Subject(order, ":".join(parts) or None, at if isinstance(at, datetime) else now)
    return Subject(order, None, now, known=False)


def without_person(order: Mapping[str, Any]) -> dict[str, Any]:
    """The order with the customer's name, address and means of payment masked."""
    hidden: dict[str, Any] = masked(order, _PERSONAL)
    return hidden
