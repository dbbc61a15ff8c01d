"""The review entries of orders, which one an operator means, and what accepting it would do. All of it is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from models.errors import OrderUnreadable, Refused
from models.facts import DecisionFact
from models.reducer import reduce
from models.reviews import taken_elsewhere
from models.terms import Expectation
from scripts.order_parts import Review, Sum
from scripts.order_story import review_part
from scripts.stored_values import at, clean, mapping, mappings, moment

_WHY_NOTHING = {
    "amount_unreadable": "its amount cannot be counted",
    "payment_on_two_orders": "the payment completed another order",
    "duplicate_capture": "the order is paid by another payment",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A review entry, the order it belongs to, and since when it is there (None: the order's history does not say)."""

    order_id: object
    number: str
    review: Review
    since: datetime | None

    def __str__(self) -> str:
        return f"{self.review.reason} of {self.review.ref}"

    def document(self) -> dict[str, Any]:
        """As JSON names things."""
        review = self.review
        return {
            "orderId": self.order_id,
            "orderNumber": self.number,
            "reason": review.reason,
            "ref": review.ref,
            "state": review.state,
            "amount": review.sum.amount,
            "currency": review.sum.currency,
            "expectedAmount": review.expected.amount,
            "expectedCurrency": review.expected.currency,
            "since": self.since,
            "by": review.by or None,
            "why": review.why or None,
            "closedAt": review.closed_at,
        }


def entries_of(order: Mapping[str, Any]) -> list[Entry]:
    """All entries of an order, as they are stored."""
    stored = mappings(mapping(order.get("payment")).get("review"))
    since = {
        (clean(fact.get("reason")), clean(fact.get("ref"))): moment(fact.get("at"))
        for fact in mappings(order.get("history"))
        if fact.get("fact") == "payment_review"
    }
    reviews = map(review_part, stored)
    number = clean(order.get("orderNumber"))
    return [Entry(order["_id"], number, review, since.get((review.reason, review.ref))) for review in reviews]


def chosen(entries: Sequence[Entry], named: str, reason: str | None, ref: str | None) -> Entry:
    """The one open entry that is meant. Raises `Refused` when there is none, or more than one."""
    meant = [entry for entry in entries if reason in {None, entry.review.reason} and ref in {None, entry.review.ref}]
    still_open = [entry for entry in meant if entry.review.open]
    if len(still_open) == 1:
        return still_open[0]
    if still_open:
        raise Refused(f"{named} has {len(still_open)} open review entries, say which: {_names(still_open)}")
    if meant:
        raise Refused(closed(meant[-1]))
    others = [entry for entry in entries if entry.review.open]
    if others:
        raise Refused(f"{named} has no such review entry; open are: {_names(others)}")
    raise Refused(f"{named} has no {'such ' if entries else ''}review entry")


def _names(entries: Sequence[Entry]) -> str:
    return ", ".join(f"`{entry.review.reason} {entry.review.ref}`" for entry in entries)


def closed(entry: Entry) -> str:
    """Who closed an entry, when and why."""
    review = entry.review
    return f"{entry} is closed already: {review.by} {review.state} it on {at(review.closed_at)}: {review.why}"


def effect(payment: Mapping[str, Any], review: Review, expected: Expectation, now: datetime) -> str:
    """What accepting an open entry does: the rules themselves say it, of what is stored now.

    Raises `Refused` for an order that cannot be read.
    """
    accepted = DecisionFact(review.reason, review.ref, "accepted", by="", why="", at=0)
    try:
        change = reduce(payment, (accepted,), expected, now, taken_elsewhere(payment))
    except OrderUnreadable as error:
        raise Refused(f"{error}, so nothing can be applied to the order: mend it in the shop") from None
    if change is None:
        raise Refused("the order's review cannot be read, so nothing can be applied to it: mend it in the shop")
    if change.fulfil:
        paid = Sum.of(change.set.get("payment.amountPaid", payment.get("amountPaid")), _currency(review, expected))
        does = f"completes the order with {paid}"
    elif change.status_from != change.status_to:
        does = f"sets the order to {change.status_to}"
    else:
        does = "closes the entry" if change.reviews else f"only closes the entry: {_why_nothing(payment, review)}"
    return does + "".join(f"; then {reason} of {ref} is to be decided" for reason, ref in change.reviews)


def _currency(review: Review, expected: Expectation) -> str | None:
    return review.sum.currency if review.reason == "currency_mismatch" else expected.currency


def _why_nothing(payment: Mapping[str, Any], review: Review) -> str:
    status = payment.get("status", "pending")
    return _WHY_NOTHING.get(review.reason) or f"the order stays {'null' if status is None else clean(status)}"
