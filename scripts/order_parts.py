"""The parts of an order's story, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from pydantic.alias_generators import to_camel

from models.money import parse_amount, parse_currency
from models.states import EventStatus
from models.terms import Expectation
from scripts.stored_values import Raw
from watcher.money import money

UNSETTLED = (
    EventStatus.DEAD,
    EventStatus.FAILED,
    EventStatus.PARKED,
    EventStatus.PROCESSING,
    EventStatus.RECEIVED,
)
"""Events that have work left, the worst first."""


@dataclass(frozen=True, slots=True)
class Records:
    """What is stored about one order, as it is."""

    order: Raw
    expected: Expectation
    events: Sequence[Raw] = ()
    """In order of receipt."""
    ledger: Sequence[Raw] = ()
    fulfilment: Raw | None = None
    notifications: Sequence[Raw] = ()
    alerts: Sequence[Raw] = ()
    more_events: bool = False
    """Whether there are more events than were read."""


@dataclass(frozen=True, slots=True)
class Sum:
    """Money in the smallest unit."""

    amount: int | None
    currency: str | None

    @classmethod
    def of(cls, amount: object, currency: object) -> Sum:
        """From stored values of any type."""
        return cls(parse_amount(amount), parse_currency(currency))

    def __str__(self) -> str:
        return money(self.amount, self.currency).replace("\xa0", " ") or "an unknown amount"


@dataclass(frozen=True, slots=True)
class Ref:
    """An id under which a provider knows the order."""

    provider: str
    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.kind.replace('_', ' ')} {self.id}"


@dataclass(frozen=True, slots=True)
class Link:
    """A payment link of the order."""

    link_id: str
    status: str
    statuses: tuple[str, ...]
    sum: Sum
    accept_partial: bool | None
    order_id: str
    """The provider's order behind it."""


@dataclass(frozen=True, slots=True)
class OrderPart:
    """What the order expects and where it stands."""

    id: object
    number: str
    provider_order_id: str
    link_id: str
    """The payment link that the shop stored."""
    refs: tuple[Ref, ...]
    """Further ids that the provider's events taught."""
    readable: bool
    """Whether `payment` is a document at all."""
    status: str
    own_status: bool
    """Whether the status is one of ours; if not, it is the shop's and is left alone."""
    expected: Sum
    paid: Sum | None
    refunded: Sum | None
    payment_id: str
    method: str
    paid_at: datetime | None
    complete: bool
    """Whether the money that is known pays for the order, whatever its status says."""
    parts: tuple[str, ...]
    """The payments that pay for the order, or for a part of it."""
    waiting: tuple[str, ...]
    """Captured payments of which the provider has not told whether they fit."""
    version: object
    customer: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A payment of the order."""

    payment_id: str
    statuses: tuple[str, ...]
    captured: bool
    sum: Sum
    created_at: datetime | None
    method: str
    error: str
    details: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Refund:
    """A refund of the order."""

    refund_id: str
    payment_id: str
    status: str
    sum: Sum


@dataclass(frozen=True, slots=True)
class Review:
    """Money that somebody must look at."""

    reason: str
    ref: str
    state: str
    sum: Sum
    expected: Sum
    by: str
    """Who closed it."""
    why: str
    closed_at: datetime | None

    @property
    def open(self) -> bool:
        """Whether somebody must still decide."""
        return self.state == "open"


@dataclass(frozen=True, slots=True)
class Fact:
    """An entry of the order's history."""

    seq: int | None
    at: datetime | None
    fact: str
    ref: str
    reason: str
    was: str
    now: str
    event_id: str

    def __str__(self) -> str:
        words = " ".join(word for word in (self.fact, self.reason, self.ref) if word)
        moved = f"{self.was} → {self.now}" if self.was != self.now else f"stays {self.now}"
        return f"{words} ({moved})"


@dataclass(frozen=True, slots=True)
class Said:
    """What an event says of a payment, a refund, a link or a review."""

    ref: str
    status: str
    captured: bool = False
    sum: Sum | None = None
    """None where no amount belongs to it."""

    def __str__(self) -> str:
        return f"{self.ref} {self.status}, {self.sum}" if self.sum else f"{self.ref} {self.status}"


@dataclass(frozen=True, slots=True)
class EventPart:
    """A raw event, what it says and what came of it."""

    event_id: str
    event_type: str
    origin: str
    received_at: datetime | None
    status: str
    outcome: str
    result: str
    """In words: what it changed, or why nothing."""
    attempts: int
    next_attempt_at: datetime | None = None
    parked_until: datetime | None = None
    error: str = ""
    duplicates: int = 0
    requeues: int = 0
    flags: tuple[str, ...] = ()
    order_id: str = ""
    link_id: str = ""
    says: tuple[Said, ...] = ()
    changed: tuple[Fact, ...] = ()
    payer: Mapping[str, str] = field(default_factory=dict)

    @property
    def brings_money(self) -> bool:
        """Whether it says that a payment was captured."""
        return any(said.captured for said in self.says)


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """Money that was booked."""

    entry_type: str
    ref: str
    sum: Sum
    booked_at: datetime | None


@dataclass(frozen=True, slots=True)
class FulfilmentPart:
    """The go-ahead to ship."""

    payment_id: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class NotificationPart:
    """A message about the order."""

    notice: str
    refs: tuple[str, ...]
    channel: str
    to: str
    status: str
    reason: str
    attempts: int
    fact_at: datetime | None
    next_attempt_at: datetime | None
    sent_at: datetime | None
    unknown_at: datetime | None
    address: str


@dataclass(frozen=True, slots=True)
class AlertPart:
    """Something open that a person must look at."""

    kind: str
    ref: str
    count: int
    first_at: datetime | None
    last_at: datetime | None
    detail: str


@dataclass(frozen=True, slots=True)
class Story:
    """All of it."""

    order: OrderPart
    links: tuple[Link, ...]
    attempts: tuple[Attempt, ...]
    refunds: tuple[Refund, ...]
    reviews: tuple[Review, ...]
    events: tuple[EventPart, ...]
    more_events: bool
    other_facts: tuple[Fact, ...]
    """History entries of events that are not stored (any more)."""
    ledger: tuple[LedgerPart, ...]
    fulfilment: FulfilmentPart | None
    notifications: tuple[NotificationPart, ...]
    alerts: tuple[AlertPart, ...]

    def document(self) -> dict[str, Any]:
        """As JSON names things."""
        named: dict[str, Any] = _camel(asdict(self))
        return named


def counted(number: int, noun: str) -> str:
    """`1 event`, `2 events`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


Tone = Literal["good", "waiting", "bad", "look"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer, and what to do about it (empty: nothing)."""

    code: str
    tone: Tone
    sentence: str
    todo: str = ""


def paid(story: Story) -> str:
    """What came, of how much while that is not all, and in how many parts."""
    order, parts = story.order, counted(len(story.order.parts), "part")
    if order.paid is None or not order.parts:
        return str(order.paid or "")
    if order.complete:
        return f"{order.paid} in {parts}" if len(order.parts) > 1 else str(order.paid)
    return f"{order.paid} of {order.expected} in {parts}"


def _camel(value: Any) -> Any:  # noqa: ANN401 - any part of a story
    if isinstance(value, Mapping):
        return {to_camel(key) if isinstance(key, str) else key: _camel(inner) for key, inner in value.items()}
    return [_camel(inner) for inner in value] if isinstance(value, list | tuple) else value
