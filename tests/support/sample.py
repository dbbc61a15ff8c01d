"""Orders, events and settings as tests need them; every value is our own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, cast

from models.settings import Settings
from scripts.simulator import builders
from scripts.simulator.sender import sign

SECRET = "test-secret-new"
OLD_SECRET = "test-secret-old"
ACCOUNT = "acc_Test0000000001"
CREATED = 1_790_000_000
AMOUNT = 49_900

QUIET_ALERTS: Mapping[str, Any] = MappingProxyType({"alert": {}})
"""Nobody is told of alerts unless a test wants it: that comes by the clock, in the middle of what a test counts."""

Json = dict[str, Any]


def settings(uri: str, database: str, **sections: Mapping[str, Any]) -> Settings:
    """Settings of a test process: short leases and intervals, free ports; sections are merged over these."""
    base: dict[str, dict[str, Any]] = {
        "mongodb": {"uri": uri, "database": database},
        "razorpay": {"webhook_secrets": {"new": SECRET, "old": OLD_SECRET}},
        "http": {"host": "127.0.0.1", "port": 0, "private_port": 0},
        "processing": {"lease": 2.0, "recovery_interval": 0.2, "drain": 3.0},
        "watcher": {"private_port": 0, "leader_lease": 2.0, "poll_interval": 0.3, "drain": 3.0},
        "email": {"host": "127.0.0.1", "port": 1, "from": "Tea Shop <shop@example.com>", "timeout": 2.0},
        "notifications": {"admin_email": "admin@example.com", "rates": {"email": 1000}},
    }
    for name, values in sections.items():
        base.setdefault(name, {}).update(values)
    told = base["notifications"]
    told["routes"] = {**QUIET_ALERTS, **told.get("routes", {})}
    return Settings.model_validate(base)


def order(number: int, *, amount: Any = AMOUNT, currency: Any = "INR", **payment: Any) -> Json:
    """A pending order of the shop, `_id` `ord<number>`; keywords go into `payment`."""
    return {
        "_id": f"ord{number}",
        "orderNumber": f"TEA-{number}",
        "userId": f"user{number}",
        "items": [{"sku": "tea", "qty": 2}],
        "shippingAddress": {"name": f"Asha {number}", "email": f"asha{number}@example.com", "phone": "+910000000000"},
        "payment": {
            "status": "pending",
            "amount": amount,
            "currency": currency,
            "razorpayOrderId": provider_order_id(number),
            **payment,
        },
    }


def provider_order_id(number: int) -> str:
    return f"order_Test{number:010d}"


def payment_id(number: int, letter: str = "A") -> str:
    return f"pay_Test{letter}{number:09d}"


def payment(number: int, status: str = "captured", *, letter: str = "A", **changes: Any) -> Json:
    """Order `number`'s payment entity in the given status; keywords replace fields."""
    entity = builders.payment(
        random.Random(f"{number}{letter}"),
        order_id=provider_order_id(number),
        amount=AMOUNT,
        created_at=CREATED,
    )
    entity = builders.in_status(entity, cast("builders.PaymentStatus", status))
    return {**entity, "id": payment_id(number, letter), **changes}


def event(name: str, **parts: Json) -> Json:
    return builders.event(name, CREATED + 5, ACCOUNT, **parts)


def captured(number: int, **changes: Any) -> Json:
    return event("payment.captured", payment=payment(number, "captured", **changes))


def authorized(number: int, **changes: Any) -> Json:
    return event("payment.authorized", payment=payment(number, "authorized", **changes))


def failed(number: int, **changes: Any) -> Json:
    return event("payment.failed", payment=payment(number, "failed", **changes))


def order_paid(number: int, **changes: Any) -> Json:
    entity = payment(number, "captured", **changes)
    provider_order = {
        "id": provider_order_id(number),
        "entity": "order",
        "amount": entity["amount"],
        "amount_paid": entity["amount"],
        "amount_due": 0,
        "currency": entity["currency"],
        "receipt": f"TEA-{number}",
        "offer_id": None,
        "status": "paid",
        "attempts": 1,
        "notes": [],
        "created_at": CREATED - 60,
    }
    return event("order.paid", payment=entity, order=provider_order)


def link_id(number: int) -> str:
    return f"plink_Test{number:09d}"


def link(number: int, *, amount: int = AMOUNT, **changes: Any) -> Json:
    """The payment link of order `number`, in status `created`."""
    made = builders.payment_link(
        random.Random(f"link{number}"), amount=amount, reference_id=f"TEA-{number}", created_at=CREATED - 600
    )
    return {**made, "id": link_id(number), **changes}


def link_paid(
    number: int, *payments: Json, of: Json | None = None, order_id: str | None = None, paid: int | None = None
) -> Json:
    """`payment_link.paid` or `.partially_paid` after these payments; the last one is in the event."""
    entity, shown = of or link(number), [*payments] or [payment(number)]
    provider_order = {
        **builders.link_order(random.Random(f"lo{number}"), entity),
        "id": order_id or provider_order_id(number),
    }
    total = sum(each["amount"] for each in shown) if paid is None else paid
    return builders.link_paid(entity, provider_order, shown[-1], ACCOUNT, paid=total)


def link_ended(number: int, status: Literal["expired", "cancelled"] = "expired", **changes: Any) -> Json:
    return builders.link_ended(link(number, **changes), status, CREATED + 900, ACCOUNT)


def refund_id(number: int, nth: int = 1) -> str:
    return f"rfnd_Test{number:07d}{nth:03d}"


def refund(number: int, status: str = "processed", *, nth: int = 1, letter: str = "A", **changes: Any) -> Json:
    """The `nth` refund of order `number`'s payment, of its whole amount unless told otherwise."""
    entity = builders.refund(
        random.Random(f"{number}{nth}"),
        payment_id=payment_id(number, letter),
        amount=AMOUNT,
        created_at=CREATED + 60,
    )
    return {**entity, "id": refund_id(number, nth), "status": status, **changes}


_REFUND_STATUS = {"created": "pending", "processed": "processed", "failed": "failed", "speed_changed": "processed"}


def refunded(
    number: int,
    kind: str = "processed",
    *,
    nth: int = 1,
    letter: str = "A",
    beside: Mapping[str, Any] | None = MappingProxyType({}),
    **changes: Any,
) -> Json:
    """`refund.<kind>`; keywords replace fields of the refund, `beside` those of the payment (None: the old shape)."""
    entity = refund(number, **{"status": _REFUND_STATUS[kind], "nth": nth, "letter": letter, **changes})
    if beside is None:
        return event(f"refund.{kind}", refund=entity)
    total = 0 if entity["status"] == "failed" else entity["amount"]
    snapshot = {**builders.after_refunds(payment(number, letter=letter), total), **beside}
    return event(f"refund.{kind}", refund=entity, payment=snapshot)


def encode(body: Any) -> bytes:
    return body if isinstance(body, bytes) else builders.encode(body)


def signed(body: Any, event_id: str | None, secret: str = SECRET) -> tuple[bytes, dict[str, str]]:
    """The exact bytes and the true headers."""
    raw = encode(body)
    headers = {"Content-Type": "application/json", "X-Razorpay-Signature": sign(secret, raw)}
    return raw, headers if event_id is None else {**headers, "X-Razorpay-Event-Id": event_id}
