"""What follows from the captures, refunds and links that are known: which of them pay for the order, and its status.

Everything here only depends on *what* is known. A capture's place is its creation time and id, never its arrival, and
more facts never take back that the order is paid, or that somebody must look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.entries import Entry
from models.known import Known
from models.reviews import TAKEN, Decided, Name, paid_after
from models.states import OrderStatus
from models.terms import FITS, OUT, WAITS, WHOLE, Expectation, fit, may_be_paid_in_parts

_LAST = 2**63
ONLY_CLOSED = frozenset({"amount_unreadable", TAKEN})
"""Reasons of money that completes nothing, even when an operator accepts it: it cannot be counted, or is another's."""


@dataclass(frozen=True, slots=True)
class Derived:
    """What follows."""

    accepted: tuple[Entry, ...]
    """The captures that pay for the order, oldest first; one, unless it is paid in parts."""
    complete: bool
    refunded: int
    """Sum of the standing refunds of the accepted captures, in the smallest unit."""
    fitting: frozenset[str]
    """Payment ids of the captures that could pay for the order."""
    parts: frozenset[str]
    """Those of them that pay for a part."""
    waiting: frozenset[str]
    """Payment ids of the captures whose fit is not known yet."""
    reviews: frozenset[Name]
    """(payment id, reason) of all that somebody must look at."""
    any_failed: bool

    @property
    def paid(self) -> int:
        """Sum of the accepted captures."""
        return sum(attempt["amount"] for attempt in self.accepted)

    @property
    def status(self) -> OrderStatus:
        """The order's status as far as the money says."""
        if not self.complete:
            return OrderStatus.FAILED if self.any_failed else OrderStatus.PENDING
        if self.refunded == 0:
            return OrderStatus.COMPLETED
        return OrderStatus.REFUNDED if self.refunded >= self.paid else OrderStatus.PARTIALLY_REFUNDED


def derive(
    payment: Mapping[str, Any],
    known: Known,
    expected: Expectation,
    taken: frozenset[str],
    decided: Decided,
) -> Derived:
    """`taken` holds payments that belong to another order, `decided` what operators said about review entries."""
    partial = may_be_paid_in_parts(payment, known)
    fits = {
        attempt["paymentId"]: TAKEN if attempt["paymentId"] in taken else fit(attempt, expected, partial)
        for attempt in known.captures
    }
    reviews = {(ref, reason) for ref, reason in fits.items() if reason not in FITS | {WAITS}}
    reviews |= _suspicions(payment, known, fits, expected)
    for ref, reason in reviews & decided.accepted:
        if fits[ref] == reason and reason not in ONLY_CLOSED:
            fits[ref] = WHOLE
    fits |= dict.fromkeys(decided.kept_out & fits.keys(), OUT)
    fitting = sorted((known.attempts[ref] for ref, found in fits.items() if found in FITS), key=_age)
    paying, complete, over = _add_up(fitting, fits, expected)
    return Derived(
        accepted=tuple(paying),
        complete=complete,
        refunded=sum(known.refunded(attempt["paymentId"]) for attempt in paying),
        fitting=frozenset(attempt["paymentId"] for attempt in fitting),
        parts=frozenset(attempt["paymentId"] for attempt in fitting if fits[attempt["paymentId"]] != WHOLE),
        waiting=frozenset(ref for ref, found in fits.items() if found == WAITS),
        reviews=frozenset(reviews | {(ref, "duplicate_capture") for ref in over}),
        any_failed=any("failed" in attempt["statuses"] for attempt in known.attempts.values()),
    )


def _suspicions(payment: Mapping[str, Any], known: Known, fits: Mapping[str, str], expected: Expectation) -> set[Name]:
    """What is odd about a capture whether or not it fits: refunds beyond it, a link that ended or asks for more."""
    link = payment.get("paymentLinkId")
    odd: set[Name] = set()
    for attempt in known.captures:
        ref = attempt["paymentId"]
        if known.credited(ref) and known.processed(ref) > attempt["amount"]:
            odd.add((ref, "refunded_more_than_captured"))
        if link or attempt.get("orderId") is None or attempt["orderId"] != payment.get("razorpayOrderId"):
            odd |= {(ref, paid_after(f"link_{end}")) for end in known.ends(link)}
        asked = {link["amount"] for link in known.links.values() if link["acceptPartial"]} - {None, expected.amount}
        if asked and expected.amount is not None and fits[ref] not in {WHOLE, WAITS}:
            odd.add((ref, "link_amount_differs"))
    return odd


def _add_up(fitting: list[Entry], fits: Mapping[str, str], expected: Expectation) -> tuple[list[Entry], bool, set[str]]:
    """The captures that pay, whether they pay all of it, and those by which more came than was expected."""
    paying: list[Entry] = []
    over: set[str] = set()
    total, complete = 0, False
    for attempt in fitting:
        ref, amount, before = attempt["paymentId"], attempt["amount"], total
        whole, total = fits[ref] == WHOLE, total + amount
        reached = whole or (expected.amount is not None and total >= expected.amount)
        if complete or (before > 0 if whole else total > (expected.amount or 0)):
            over.add(ref)
        if not complete:
            paying.append(attempt)
        complete = complete or reached
    return paying, complete, over


def _age(attempt: Entry) -> tuple[int, str]:
    return _LAST if attempt["createdAt"] is None else attempt["createdAt"], attempt["paymentId"]
