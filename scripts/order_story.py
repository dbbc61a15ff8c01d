"""The causal story of one order, as plain data: what it expects, what arrived, what that changed, who was told.

Everything here is pure and takes whatever is stored: a field of the shop's may be missing or of any type.
"""

from __future__ import annotations

from collections.abc import Mapping

from models.derive import Derived, derive
from models.errors import OrderUnreadable
from models.known import Known
from models.reviews import Reviews, taken_elsewhere
from models.states import order_status
from models.terms import Expectation
from scripts.order_events import Parser, event_part, fact_of
from scripts.order_parts import (
    AlertPart,
    Attempt,
    FulfilmentPart,
    LedgerPart,
    Link,
    NotificationPart,
    OrderPart,
    Records,
    Ref,
    Refund,
    Review,
    Story,
    Sum,
)
from scripts.output import MASK
from scripts.stored_values import Raw, clean, mapping, mappings, moment, unix_moment, words

_CUSTOMER = ("name", "email", "phone")


def tell(records: Records, parse: Parser, *, reveal: bool = False) -> Story:
    """Make the story; it holds personal data only when that is to be revealed."""
    stored = records.order.get("payment", {})
    payment: Raw = stored if isinstance(stored, Mapping) else {}
    history = tuple(fact_of(entry) for entry in mappings(records.order.get("history")) if "fact" in entry)
    events = tuple(event_part(row, parse, history, reveal=reveal) for row in records.events)
    known = {event.event_id for event in events}
    return Story(
        order=_order(records, payment, reveal=reveal),
        links=tuple(_link(entry) for entry in mappings(payment.get("links"))),
        attempts=tuple(_attempt(entry, reveal=reveal) for entry in mappings(payment.get("attempts"))),
        refunds=tuple(_refund(entry) for entry in mappings(payment.get("refunds"))),
        reviews=tuple(review_part(entry) for entry in mappings(payment.get("review"))),
        events=events,
        more_events=records.more_events,
        other_facts=tuple(fact for fact in history if fact.event_id not in known),
        ledger=tuple(_ledger(row) for row in records.ledger),
        fulfilment=_fulfilment(records.fulfilment),
        notifications=tuple(_notification(row, reveal=reveal) for row in records.notifications),
        alerts=tuple(_alert(row) for row in records.alerts),
    )


def _order(records: Records, payment: Raw, *, reveal: bool) -> OrderPart:
    order, expected = records.order, records.expected
    status, money = payment.get("status", "pending"), _derived(payment, expected)
    currency = payment.get("currency") or expected.currency
    return OrderPart(
        id=order.get("_id"),
        number=clean(order.get("orderNumber")),
        provider_order_id=clean(payment.get("razorpayOrderId")),
        link_id=clean(payment.get("paymentLinkId")),
        refs=tuple(_ref(entry) for entry in mappings(payment.get("refs"))),
        readable=isinstance(order.get("payment", {}), Mapping),
        status="null" if status is None else clean(status),
        own_status=order_status(status) is not None,
        expected=Sum(expected.amount, expected.currency),
        paid=_sum(payment.get("amountPaid"), currency),
        refunded=_sum(payment.get("amountRefunded"), currency),
        payment_id=clean(payment.get("razorpayPaymentId")),
        method=clean(payment.get("method")),
        paid_at=moment(payment.get("paidAt")),
        complete=money is not None and money.complete,
        parts=tuple(clean(each["paymentId"]) for each in money.accepted) if money else (),
        waiting=tuple(map(clean, sorted(money.waiting))) if money else (),
        version=order.get("version"),
        customer=_customer(mapping(order.get("shippingAddress")), reveal=reveal),
    )


def _derived(payment: Raw, expected: Expectation) -> Derived | None:
    """What the money that is known says; None where the shop's code left something else in its place."""
    try:
        decided = Reviews(payment, ()).before
        return derive(payment, Known.stored(payment), expected, taken_elsewhere(payment), decided)
    except (OrderUnreadable, KeyError, TypeError):
        return None


def _ref(entry: Raw) -> Ref:
    return Ref(clean(entry.get("provider")), clean(entry.get("kind")), clean(entry.get("id")))


def _link(entry: Raw) -> Link:
    partial = entry.get("acceptPartial")
    return Link(
        link_id=clean(entry.get("linkId")),
        status=clean(entry.get("status")),
        statuses=words(entry.get("statuses")),
        sum=Sum.of(entry.get("amount"), entry.get("currency")),
        accept_partial=partial if isinstance(partial, bool) else None,
        order_id=clean(entry.get("orderId")),
    )


def _sum(amount: object, currency: object) -> Sum | None:
    return None if amount is None else Sum.of(amount, currency)


def _attempt(entry: Raw, *, reveal: bool) -> Attempt:
    error, details = mapping(entry.get("error")), mapping(entry.get("methodDetails"))
    return Attempt(
        payment_id=clean(entry.get("paymentId")),
        statuses=words(entry.get("statuses")),
        captured=entry.get("captured") is True,
        sum=Sum.of(entry.get("amount"), entry.get("currency")),
        created_at=unix_moment(entry.get("createdAt")),
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


def review_part(entry: Raw) -> Review:
    """An entry of `payment.review`."""
    return Review(
        reason=clean(entry.get("reason")),
        ref=clean(entry.get("ref")),
        state=clean(entry.get("state")),
        sum=Sum.of(entry.get("amount"), entry.get("currency")),
        expected=Sum.of(entry.get("expectedAmount"), entry.get("expectedCurrency")),
        by=clean(entry.get("by")),
        why=clean(entry.get("why")),
        closed_at=moment(entry.get("closedAt")),
    )


def _ledger(row: Raw) -> LedgerPart:
    sum_ = Sum.of(row.get("amount"), row.get("currency"))
    return LedgerPart(clean(row.get("entryType")), clean(row.get("refId")), sum_, moment(row.get("createdAt")))


def _fulfilment(row: Raw | None) -> FulfilmentPart | None:
    return FulfilmentPart(clean(row.get("paymentId")), moment(row.get("createdAt"))) if row else None


def _notification(row: Raw, *, reveal: bool) -> NotificationPart:
    return NotificationPart(
        notice=clean(row.get("notice")),
        refs=words(row.get("refs")),
        channel=clean(row.get("channel")),
        to=clean(row.get("to")),
        status=clean(row.get("status")),
        reason=clean(row.get("reason")),
        attempts=int(row.get("attempts") or 0),
        fact_at=moment(row.get("factAt")),
        next_attempt_at=moment(row.get("nextAttemptAt")),
        sent_at=moment(row.get("sentAt")),
        unknown_at=moment(row.get("unknownAt")),
        address=clean(mapping(row.get("message")).get("address")) if reveal else "",
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


def _customer(address: Raw, *, reveal: bool) -> dict[str, str]:
    return {name: clean(address[name]) if reveal else MASK for name in _CUSTOMER if address.get(name)}
