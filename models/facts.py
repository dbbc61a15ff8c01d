"""What an authentic message says about money, in no provider's own words.

Each provider's parser makes these; the reducer and the watcher read nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    order_id: str | None = None
    """The provider's order that the payment belongs to."""
    order_amount: int | None = None
    """Amount of that provider order where the provider says that it is paid in full, and this payment has another."""


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
class LinkFact:
    """A snapshot of a payment link; `amount` in the smallest unit."""

    id: str
    status: str
    """created, partially_paid, paid, expired or cancelled."""
    amount: int | None
    currency: str | None
    accept_partial: bool | None = None
    order_id: str | None = None
    """The provider's order behind the link; known once somebody paid."""


@dataclass(frozen=True, slots=True)
class CallbackFact:
    """A browser came back with the provider's signature over this payment; it says nothing of the amount."""

    payment_id: str
    signature: str


@dataclass(frozen=True, slots=True)
class DecisionFact:
    """What an operator decided about one entry of `payment.review`."""

    reason: str
    ref: str
    state: Literal["accepted", "rejected"]
    by: str
    why: str
    at: int
    """Unix seconds."""


@dataclass(frozen=True, slots=True, order=True)
class RefFact:
    """One more id under which a provider knows the order."""

    provider: str
    kind: Literal["order", "payment_link"]
    id: str

    def document(self) -> dict[str, str]:
        """As stored in `payment.refs`."""
        return {"provider": self.provider, "kind": self.kind, "id": self.id}


Fact = PaymentFact | RefundFact | LinkFact | CallbackFact | DecisionFact | RefFact


@dataclass(frozen=True, slots=True)
class Refs:
    """How a message names the things it is about; all are the provider's ids."""

    order_id: str | None = None
    payment_id: str | None = None
    refund_id: str | None = None
    payment_link_id: str | None = None
    subscription_id: str | None = None
    receipt: str | None = None
    """The shop's order number: the provider order's `receipt`, or the link's `reference_id`."""

    def document(self) -> dict[str, str | None]:
        """As stored in `webhook_events.refs`."""
        named = {"receipt": self.receipt} if self.receipt else {}
        return {
            "orderId": self.order_id,
            "paymentId": self.payment_id,
            "refundId": self.refund_id,
            "paymentLinkId": self.payment_link_id,
            "subscriptionId": self.subscription_id,
            **named,
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
    links: tuple[LinkFact, ...] = ()
    callbacks: tuple[CallbackFact, ...] = ()
    decisions: tuple[DecisionFact, ...] = ()
    link_notes: Mapping[str, str] = field(default_factory=dict)
    """The link's notes, which only the shop can write; a payment's notes can come from a browser and are no key."""
    order_key: object = None
    """The order's own `_id`, in messages that we make ourselves."""
    payload: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Everything it says about money."""
        return (*self.payments, *self.refunds, *self.links, *self.callbacks, *self.decisions)

    @property
    def payment_ids(self) -> frozenset[str]:
        """The payments it is about."""
        named = {fact.payment_id for fact in self.refunds} | {fact.payment_id for fact in self.callbacks}
        return frozenset({fact.id for fact in self.payments} | named)


@dataclass(frozen=True, slots=True)
class Cause:
    """Which message made a change, as kept in `history[].cause`."""

    event_id: str
    event_type: str
    origin: str

    def document(self) -> dict[str, str]:
        """As stored."""
        return {"eventId": self.event_id, "eventType": self.event_type, "origin": self.origin}
