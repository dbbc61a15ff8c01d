"""The statuses of events, orders and notification rows, and which of them have work left."""

from __future__ import annotations

from enum import StrEnum


class EventStatus(StrEnum):
    """Where an event stands; `failed` and `parked` are due again at `nextAttemptAt`."""

    RECEIVED = "received"
    PROCESSING = "processing"
    COMPLETED = "completed"
    IGNORED = "ignored"
    PARKED = "parked"
    FAILED = "failed"
    DEAD = "dead"


CLAIMABLE_EVENTS = (EventStatus.RECEIVED, EventStatus.FAILED, EventStatus.PARKED)


class Origin(StrEnum):
    """Which of the sources an event came from."""

    WEBHOOK = "webhook"
    CALLBACK = "callback"
    RECONCILE = "reconcile"
    OPERATOR = "operator"


class OwnEvent(StrEnum):
    """`eventType` of the messages that we make ourselves (`webhook/own_messages.py`)."""

    CALLBACK = "checkout.callback"
    RECONCILED_PAYMENT = "reconcile.payment"
    RECONCILED_REFUND = "reconcile.refund"
    RECONCILED_LINK = "reconcile.payment_link"
    REVIEWED = "operator.review"


class Verdict(StrEnum):
    """What admission says of a delivery."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"


class OrderStatus(StrEnum):
    """`payment.status` of an order; anything else there is the shop's own and is never overwritten."""

    PENDING = "pending"
    FAILED = "failed"
    COMPLETED = "completed"
    PARTIALLY_REFUNDED = "partially_refunded"
    REFUNDED = "refunded"


ORDER_RANK = {status: rank for rank, status in enumerate(OrderStatus)}
PAID = frozenset({OrderStatus.COMPLETED, OrderStatus.PARTIALLY_REFUNDED, OrderStatus.REFUNDED})


def order_status(value: object) -> OrderStatus | None:
    """The status as one of ours, or None when the shop wrote something else."""
    return OrderStatus(value) if isinstance(value, str) and value in set(OrderStatus) else None


class RowStatus(StrEnum):
    """Where a notification row stands."""

    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    RETRY = "retry"
    UNKNOWN = "unknown"
    HELD = "held"
    DEAD = "dead"
    EXPIRED = "expired"
    SUPPRESSED = "suppressed"
    SKIPPED = "skipped"


SENDABLE_ROWS = (RowStatus.PENDING, RowStatus.RETRY, RowStatus.UNKNOWN)


class AlertState(StrEnum):
    """Where an alert stands."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    """Somebody looks after it; nobody is told again."""
    RESOLVED = "resolved"
