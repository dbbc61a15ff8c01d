"""Orders of every shape, and the words of messages about them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bson import ObjectId

from models.settings import Settings
from watcher.render import Rendered, Renderer

FACT_AT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
REFS = {
    "payment_failed": "pay_failed",
    "refund_processed": "rfnd_1",
    "refund_failed": "rfnd_1",
    "payment_review": "amount_mismatch:pay_wrong",
    "dispute_opened": "disp_1",
    "dispute_closed": "disp_1",
}
FULL: dict[str, Any] = {
    "_id": ObjectId("65a000000000000000000001"),
    "orderNumber": "A-1001",
    "userId": ObjectId("65a000000000000000000002"),
    "items": [{"name": "Tea", "quantity": 2}],
    "shippingAddress": {"name": "Priya Rao", "email": "priya@example.com"},
    "payment": {
        "status": "completed",
        "amount": 49900000,
        "currency": "INR",
        "razorpayOrderId": "order_1",
        "razorpayPaymentId": "pay_1",
        "amountPaid": 49900000,
        "amountRefunded": 20000,
        "method": "card",
        "methodDetails": {"last4": "4242", "network": "Visa"},
        "attempts": [
            {
                "paymentId": "pay_failed",
                "amount": 49900000,
                "currency": "INR",
                "error": {"reason": "insufficient_funds"},
            },
            {"paymentId": "pay_1", "amount": 49900000, "currency": "INR", "method": "card"},
        ],
        "refunds": [
            {"refundId": "rfnd_1", "amount": 20000, "currency": "INR", "paymentId": "pay_1", "status": "processed"}
        ],
        "disputes": [
            {"disputeId": "disp_1", "amount": 30000, "paymentId": "pay_1", "respondBy": 1767500000, "status": "lost"}
        ],
        "review": [
            {"reason": "amount_mismatch", "ref": "pay_wrong", "amount": 4900, "currency": "INR", "state": "open"}
        ],
    },
}
JUNK: tuple[Any, ...] = (
    None,
    True,
    7,
    -1.5,
    float("nan"),
    10**400,
    "text",
    b"bytes",
    [],
    [1, [2]],
    {"a": {}},
    {"": None},
    object(),
)
ORDERS = {
    "full": FULL,
    "empty": {},
    **{f"payment is junk {n}": {**FULL, "payment": junk} for n, junk in enumerate(JUNK)},
    **{f"all fields are junk {n}": dict.fromkeys(FULL, junk) for n, junk in enumerate(JUNK)},
    **{f"all of payment is junk {n}": {"payment": dict.fromkeys(FULL["payment"], junk)} for n, junk in enumerate(JUNK)},
    **{
        f"all entries are junk {n}": {
            "payment": {
                "currency": junk,
                "razorpayPaymentId": "pay_1",
                **{
                    kind: [junk, {**dict.fromkeys(FULL["payment"][kind][-1], junk), name: ref}]
                    for kind, name, ref in (
                        ("attempts", "paymentId", "pay_failed"),
                        ("refunds", "refundId", "rfnd_1"),
                        ("disputes", "disputeId", "disp_1"),
                        ("review", "ref", "amount_mismatch:pay_wrong"),
                    )
                },
            },
        }
        for n, junk in enumerate(JUNK)
    },
}


def settings(**sections: Any) -> Settings:
    given: dict[str, Any] = {"mongodb": {"uri": "mongodb://127.0.0.1:1"}, "shop": {"name": "Chai & Co"}, **sections}
    return Settings(**given, _env_file=None)


def render(
    renderer: Renderer,
    notice: str = "payment_completed",
    channel: str = "email",
    recipient: str = "customer",
    order: Mapping[str, Any] = FULL,
) -> Rendered:
    return renderer.render(notice, REFS.get(notice), channel, recipient, order, FACT_AT)


def override(folder: Path, name: str, source: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(source, encoding="utf-8")


def own(folder: Path, **sections: Any) -> Settings:
    return settings(notifications={"templates": folder}, **sections)
