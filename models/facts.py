"""What an authentic message says about money, in no provider's own words.

Each provider's parser makes these; the reducer and the watcher read nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

PaymentStatus = Literal["created", "authorized", "captured", "refunded", "failed", "pending"]


@dataclass(frozen=True, slots=True)
class PaymentFact:
    """A snapshot of one payment; it may be ahead of the event's name.

    `amount`, `fee` and `tax` are in the smallest unit (None: absent or not an amount), `created_at` is in unix seconds.
    """

    id: str
    status: str
    captured: bool
    """Whether this snapshot is a capture: `captured`, or `refunded` with the captured flag."""
    amount: int | None
    currency: str | None
    created_at: int | None = None
    method: str | None = None
    method_details: dict[str, str] = field(default_factory=dict)
    """network, last4, issuer, wallet, bank, vpaMasked; those that are known."""
    fee: int | None = None
    tax: int | None = None
    error: dict[str, str] = field(default_factory=dict)
    """code, reason, step, source of a failure; no free text."""


@dataclass(frozen=True, slots=True)
class RefundFact:
    """A snapshot of one refund; `amount` in the smallest unit, `created_at` in unix seconds."""

    id: str
    payment_id: str
    status: str
    """pending, processed or failed; a later one never yields to an earlier one."""
    amount: int | None
    currency: str | None
    created_at: int | None = None


@dataclass(frozen=True, slots=True)
class Refs:
    """How a message names the things it is about; all are the provider's ids."""

    order_id: str | None = None
    payment_id: str | None = None
    refund_id: str | None = None
    payment_link_id: str | None = None
    subscription_id: str | None = None

    def document(self) -> dict[str, str | None]:
        """As stored in `webhook_events.refs`."""
        return {
            "orderId": self.order_id,
            "paymentId": self.payment_id,
            "refundId": self.refund_id,
            "paymentLinkId": self.payment_link_id,
            "subscriptionId": self.subscription_id,
        }

    @property
    def lane(self) -> str | None:
        """What events of one order have in common."""
        return self.order_id or self.payment_link_id or self.payment_id


@dataclass(frozen=True, slots=True)
class Event:
    """A parsed, authentic message."""

    event_type: str
    account_id: str | None
    occurred_at: int | None
    """Unix seconds by the provider's clock; only ever shown, never compared."""
    refs: Refs
    payments: tuple[PaymentFact, ...] = ()
    refunds: tuple[RefundFact, ...] = ()
    receipt: str | None = None
    """The provider order's `receipt`: the shop's order number."""
    payload: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> tuple[PaymentFact | RefundFact, ...]:
        """Everything it says about money."""
        return self.payments + self.refunds

    @property
    def payment_ids(self) -> frozenset[str]:
        """The payments it is about."""
        return frozenset({fact.id for fact in self.payments} | {fact.payment_id for fact in self.refunds})


@dataclass(frozen=True, slots=True)
class Cause:
    """Which message made a change, as kept in `history[].cause`."""

    event_id: str
    event_type: str
    origin: str

    def document(self) -> dict[str, str]:
        """As stored."""
        return {"eventId": self.event_id, "eventType": self.event_type, "origin": self.origin}
