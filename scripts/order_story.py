"""The causal story of one order, as plain data: what it expects, what arrived, what that changed, who was told.

Everything here is pure and takes whatever is stored: a field of the shop's may be missing or of any type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic.alias_generators import to_camel

from models.errors import Unparseable
from models.facts import Event, PaymentFact, RefundFact
from models.money import parse_amount, parse_currency
from models.states import EventStatus, order_status
from models.terms import Expectation
from scripts.output import MASK
from watcher.money import money
from webhook.payload import read_object

_LONGEST = 200
_PAYER = ("email", "contact", "vpa")
_CUSTOMER = ("name", "email", "phone")
_CARD = ("name", "network", "last4")
_IGNORED = {
    "unknown_type": "ignored: no event of this type moves an order",
    "foreign_account": "ignored: it is about another account than the configured ones",
    "no_order_id": "ignored: it names no order",
}

Raw = Mapping[str, Any]
Parser = Callable[[Raw], Event | None]


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
class OrderPart:
    """What the order expects and where it stands."""

    id: object
    number: str
    provider_order_id: str
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
    """What an event says of a payment or a refund."""

    ref: str
    status: str
    captured: bool
    sum: Sum

    def __str__(self) -> str:
        return f"{self.ref} {self.status}, {self.sum}"


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


def clean(value: object) -> str:
    """Stored text of any type, short, in one line, and without anything that a terminal or a browser would obey."""
    text = "" if value is None else str(value)[:_LONGEST]
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def counted(number: int, noun: str) -> str:
    """`1 event`, `2 events`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def tell(records: Records, parse: Parser, *, reveal: bool = False) -> Story:
    """Make the story; it holds personal data only when that is to be revealed."""
    stored = records.order.get("payment", {})
    payment: Raw = stored if isinstance(stored, Mapping) else {}
    history = tuple(_fact(entry) for entry in _mappings(records.order.get("history")) if "fact" in entry)
    events = tuple(_event(row, parse, history, reveal=reveal) for row in records.events)
    known = {event.event_id for event in events}
    return Story(
        order=_order(records, payment, reveal=reveal),
        attempts=tuple(_attempt(entry, reveal=reveal) for entry in _mappings(payment.get("attempts"))),
        refunds=tuple(_refund(entry) for entry in _mappings(payment.get("refunds"))),
        reviews=tuple(_review(entry) for entry in _mappings(payment.get("review"))),
        events=events,
        more_events=records.more_events,
        other_facts=tuple(fact for fact in history if fact.event_id not in known),
        ledger=tuple(_ledger(row) for row in records.ledger),
        fulfilment=_fulfilment(records.fulfilment),
        notifications=tuple(_notification(row, reveal=reveal) for row in records.notifications),
        alerts=tuple(_alert(row) for row in records.alerts),
    )


def parsed(row: Raw, parse: Callable[[bytes], Event]) -> Event | None:
    """The typed view of a stored event; None for bytes that are none."""
    try:
        return parse(bytes(row["rawBody"]))
    except (Unparseable, KeyError, TypeError):
        return None


def said(event: Event | None) -> tuple[Said, ...]:
    """What an event says of payments and refunds."""
    facts: list[PaymentFact | RefundFact] = [*event.payments, *event.refunds] if event else []
    return tuple(map(_said, facts))


def _said(fact: PaymentFact | RefundFact) -> Said:
    captured = isinstance(fact, PaymentFact) and fact.captured
    return Said(clean(fact.id), clean(fact.status), captured, Sum(fact.amount, fact.currency))


def _order(records: Records, payment: Raw, *, reveal: bool) -> OrderPart:
    order, expected = records.order, records.expected
    status = payment.get("status", "pending")
    currency = payment.get("currency") or expected.currency
    return OrderPart(
        id=order.get("_id"),
        number=clean(order.get("orderNumber")),
        provider_order_id=clean(payment.get("razorpayOrderId")),
        readable=isinstance(order.get("payment", {}), Mapping),
        status="null" if status is None else clean(status),
        own_status=order_status(status) is not None,
        expected=Sum(expected.amount, expected.currency),
        paid=_sum(payment.get("amountPaid"), currency),
        refunded=_sum(payment.get("amountRefunded"), currency),
        payment_id=clean(payment.get("razorpayPaymentId")),
        method=clean(payment.get("method")),
        paid_at=moment(payment.get("paidAt")),
        version=order.get("version"),
        customer=_customer(_mapping(order.get("shippingAddress")), reveal=reveal),
    )


def _sum(amount: object, currency: object) -> Sum | None:
    return None if amount is None else Sum.of(amount, currency)


def _attempt(entry: Raw, *, reveal: bool) -> Attempt:
    error, details = _mapping(entry.get("error")), _mapping(entry.get("methodDetails"))
    return Attempt(
        payment_id=clean(entry.get("paymentId")),
        statuses=_words(entry.get("statuses")),
        captured=entry.get("captured") is True,
        sum=Sum.of(entry.get("amount"), entry.get("currency")),
        created_at=_unix(entry.get("createdAt")),
        method=clean(entry.get("method")),
        error=clean(error.get("reason") or error.get("code")),
        details={clean(name): clean(value) for name, value in details.items() if value} if reveal else {},
    )


def _refund(entry: Raw) -> Refund:
    return Refund(
        clean(entry.get("refundId")),
        clean(entry.get("paymentId")),
        clean(entry.get("status")),
        Sum.of(entry.get("amount"), entry.get("currency")),
    )


def _review(entry: Raw) -> Review:
    return Review(
        reason=clean(entry.get("reason")),
        ref=clean(entry.get("ref")),
        state=clean(entry.get("state")),
        sum=Sum.of(entry.get("amount"), entry.get("currency")),
        expected=Sum.of(entry.get("expectedAmount"), entry.get("expectedCurrency")),
    )


def _fact(entry: Raw) -> Fact:
    seq = entry.get("seq")
    return Fact(
        seq=seq if isinstance(seq, int) else None,
        at=moment(entry.get("at")),
        fact=clean(entry.get("fact")),
        ref=clean(entry.get("ref")),
        reason=clean(entry.get("reason")),
        was=clean(entry.get("from")),
        now=clean(entry.get("to")),
        event_id=clean(_mapping(entry.get("cause")).get("eventId")),
    )


def _event(row: Raw, parse: Parser, history: Iterable[Fact], *, reveal: bool) -> EventPart:
    changed = tuple(fact for fact in history if fact.event_id == clean(row["eventId"]))
    return EventPart(
        event_id=clean(row["eventId"]),
        event_type=clean(row.get("eventType")),
        origin=clean(row.get("origin")),
        received_at=moment(row.get("receivedAt")),
        status=clean(row.get("status")),
        outcome=clean(_mapping(row.get("outcome")).get("code")),
        result=_result(row, changed),
        attempts=int(row.get("attempts") or 0),
        next_attempt_at=moment(row.get("nextAttemptAt")),
        parked_until=moment(row.get("parkedUntil")) if row.get("status") == EventStatus.PARKED else None,
        error=clean(row.get("error")),
        duplicates=int(_mapping(row.get("duplicates")).get("count") or 0),
        requeues=int(row.get("requeues") or 0),
        flags=_words(row.get("flags")),
        order_id=clean(_mapping(row.get("refs")).get("orderId")),
        says=said(parse(row)),
        changed=changed,
        payer=_payer(row) if reveal else {},
    )


def _result(row: Raw, changed: Sequence[Fact]) -> str:
    """What the event changed, or why it changed nothing."""
    outcome = _mapping(row.get("outcome"))
    code, detail = clean(outcome.get("code")), clean(outcome.get("detail"))
    match row.get("status"):
        case EventStatus.COMPLETED if changed:
            return "; ".join(map(str, changed))
        case EventStatus.COMPLETED:
            nothing_new = "changed nothing: everything it says was known already"
            return nothing_new if code == "already_applied" else "added details; no new fact"
        case EventStatus.IGNORED:
            return _IGNORED.get(code, f"ignored: {code}")
        case EventStatus.DEAD:
            return f"dead ({code}): {detail}" if detail else f"dead ({code})"
        case _:
            return _unsettled(row)


def _unsettled(row: Raw) -> str:
    """Why the event changed nothing yet, and when it goes on."""
    due = at(row.get("nextAttemptAt"))
    match row.get("status"):
        case EventStatus.PARKED:
            return f"parked: waits for its order since {at(row.get('receivedAt'))}, looks again at {due}"
        case EventStatus.FAILED:
            return f"failed: {clean(row.get('errorDetail')) or clean(row.get('error'))}; tried again at {due}"
        case EventStatus.PROCESSING:
            return "a worker is at it"
        case _:
            return "waits for a worker"


def _payer(row: Raw) -> dict[str, str]:
    """Who paid, as the body has it: personal data."""
    try:
        payload = _mapping(read_object(bytes(row["rawBody"])).get("payload"))
    except (Unparseable, KeyError, TypeError):
        return {}
    entity = _mapping(_mapping(payload.get("payment")).get("entity"))
    card = _mapping(entity.get("card"))
    known = {name: clean(entity.get(name)) for name in _PAYER}
    known["card"] = " ".join(clean(card[name]) for name in _CARD if card.get(name))
    return {name: value for name, value in known.items() if value}


def _ledger(row: Raw) -> LedgerPart:
    sum_ = Sum.of(row.get("amount"), row.get("currency"))
    return LedgerPart(clean(row.get("entryType")), clean(row.get("refId")), sum_, moment(row.get("createdAt")))


def _fulfilment(row: Raw | None) -> FulfilmentPart | None:
    return FulfilmentPart(clean(row.get("paymentId")), moment(row.get("createdAt"))) if row else None


def _notification(row: Raw, *, reveal: bool) -> NotificationPart:
    return NotificationPart(
        notice=clean(row.get("notice")),
        refs=_words(row.get("refs")),
        channel=clean(row.get("channel")),
        to=clean(row.get("to")),
        status=clean(row.get("status")),
        reason=clean(row.get("reason")),
        attempts=int(row.get("attempts") or 0),
        fact_at=moment(row.get("factAt")),
        next_attempt_at=moment(row.get("nextAttemptAt")),
        sent_at=moment(row.get("sentAt")),
        unknown_at=moment(row.get("unknownAt")),
        address=clean(_mapping(row.get("message")).get("address")) if reveal else "",
    )


def _alert(row: Raw) -> AlertPart:
    return AlertPart(
        clean(row.get("kind")),
        clean(row.get("ref")),
        int(row.get("count") or 0),
        moment(row.get("firstAt")),
        moment(row.get("lastAt")),
        clean(row.get("detail")),
    )


def moment(value: object) -> datetime | None:
    """A stored time; None for what is none."""
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def at(value: object) -> str:
    """A time in words; all of them are in UTC."""
    known = moment(value)
    return f"{known.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if known else "an unknown time"


def _unix(value: object) -> datetime | None:
    seconds = parse_amount(value)
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _mapping(value: object) -> Raw:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Raw]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _words(value: object) -> tuple[str, ...]:
    return tuple(clean(word) for word in value) if isinstance(value, list) else ()


def _customer(address: Raw, *, reveal: bool) -> dict[str, str]:
    return {name: clean(address[name]) if reveal else MASK for name in _CUSTOMER if address.get(name)}


def _camel(value: Any) -> Any:  # noqa: ANN401 - any part of a story
    if isinstance(value, Mapping):
        return {to_camel(key) if isinstance(key, str) else key: _camel(inner) for key, inner in value.items()}
    return [_camel(inner) for inner in value] if isinstance(value, list | tuple) else value
