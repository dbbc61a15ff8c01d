"""Notification rows as the outbox writes them, and orders that are paid."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId

from models.database import Database
from tests.support import sample
from tests.support.daemon import record
from tests.support.mailbox import Mailbox
from tests.support.wait import eventually
from watcher.channels import Message


def now() -> datetime:
    return datetime.now(UTC)


def row(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A pending mail row as the outbox writes it."""
    stored: dict[str, Any] = {
        "_id": ObjectId(),
        "key": f"order:ord{number}:payment_completed:email:customer",
        "notice": "payment_completed",
        "refs": [],
        "orderId": f"ord{number}",
        "channel": "email",
        "to": "customer",
        "status": "pending",
        "reason": None,
        "factAt": now(),
        "attempts": 0,
        "nextAttemptAt": now(),
        "createdAt": now(),
        "updatedAt": now(),
    }
    return {**stored, **changes}


def abandoned(**changes: Any) -> dict[str, Any]:
    """A row whose sender died a minute ago."""
    over = now() - timedelta(minutes=1)
    lease = {"token": "dead", "until": over, "lsid": None}
    message = Message("first@example.com", "A subject", "A text\n", None, {"order_id": "ord1", "role": "customer"})
    frozen = {"status": "sending", "lease": lease, "message": message.to_document()}
    return row(**{**frozen, "attempts": 1, "nextAttemptAt": over, **changes})


async def paid(db: Database, *numbers: int, **shipping: Any) -> None:
    """Orders that the webhook process completes."""
    for number in numbers:
        order = sample.order(number)
        order["shippingAddress"].update(shipping)
        await db.orders.insert_one(order)
        await record(db, number)


async def until_arrived(box: Mailbox, count: int = 1) -> None:
    async def check() -> bool:
        return len(box.arrived) >= count

    await eventually(check, f"{count} mails have come in")
