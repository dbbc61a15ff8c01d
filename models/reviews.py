"""The entries of `payment.review`: what somebody must look at, and how each one was closed.

An entry is named by its reason and its ref (a payment id). It is open until an operator accepts or rejects it, or until
the shop corrects the order's expectation so that the money fits; a closed entry stays, with who closed it and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from models.entries import Entries, Entry, stored_list
from models.facts import DecisionFact
from models.terms import Expectation

OPEN, ACCEPTED, REJECTED, RESOLVED = "open", "accepted", "rejected", "resolved"
OF_THE_EXPECTATION = frozenset(
    {"amount_mismatch", "currency_mismatch", "expected_amount_missing", "link_amount_differs"}
)
"""Reasons that go away when the shop corrects what it expects."""
TAKEN = "payment_on_two_orders"
MISFITS = frozenset({"amount_mismatch", "amount_unreadable", "currency_mismatch", "expected_amount_missing", TAKEN})
"""Reasons that lie in the money itself; a status of the shop's is one too (`is_misfit`)."""
_PAID_AFTER = "paid_after_"
_AFTER_A_LINK = frozenset({"paid_after_link_expired", "paid_after_link_cancelled"})
"""Reasons of money that pays for the order and is only late."""
_BY_THE_SHOP = "the shop"

Name = tuple[str, str]
"""(ref, reason)"""


@dataclass(frozen=True, slots=True)
class Decided:
    """The entries that operators accepted, and those that they rejected."""

    accepted: frozenset[Name] = frozenset()
    rejected: frozenset[Name] = frozenset()

    @property
    def kept_out(self) -> frozenset[str]:
        """Payment ids whose money did not fit and was rejected: they pay for nothing, whatever is corrected later.

        Rejecting what is only odd about a capture (one too many, on a link that ended) takes back nothing it paid.
        """
        return frozenset(ref for ref, reason in self.rejected if is_misfit(reason))


def paid_after(what: str) -> str:
    """The reason of money that came when the order was at its end already, in the shop or by its link."""
    return f"{_PAID_AFTER}{what}"


def is_misfit(reason: str) -> bool:
    """Whether it is a reason why a capture pays for nothing."""
    return reason in MISFITS or (reason.startswith(_PAID_AFTER) and reason not in _AFTER_A_LINK)


def taken_elsewhere(payment: Mapping[str, Any]) -> frozenset[str]:
    """Payments that the database said belong to another order, as the stored review tells; for those who only look."""
    stored = payment.get("review")
    ours = [entry for entry in stored if isinstance(entry, Mapping)] if isinstance(stored, list) else []
    return frozenset(str(entry.get("ref")) for entry in ours if entry.get("reason") == TAKEN)


def name_of(entry: Mapping[str, Any]) -> Name:
    """An entry's name."""
    return str(entry.get("ref")), str(entry.get("reason"))


class Reviews:
    """An order's entries, with the decisions that reached it in this moment."""

    def __init__(self, payment: Mapping[str, Any], decisions: Iterable[DecisionFact]) -> None:
        """Raise `OrderUnreadable` when the stored list is none."""
        stored = stored_list(payment, "review")
        self._ours = [entry for entry in stored if isinstance(entry, dict)]
        self._foreign = [entry for entry in stored if not isinstance(entry, dict)]
        still_open = {name_of(entry) for entry in self._ours if entry.get("state") == OPEN}
        self.taken = {(d.ref, d.reason): d for d in decisions if (d.ref, d.reason) in still_open}
        """The decisions about entries that are still open; the first one closed the others."""
        self.before = Decided(self._in_state(ACCEPTED), self._in_state(REJECTED))
        """What operators decided before, and `decided` with what they decide now."""
        self.decided = Decided(
            self.before.accepted | {name for name, d in self.taken.items() if d.state == ACCEPTED},
            self.before.rejected | {name for name, d in self.taken.items() if d.state == REJECTED},
        )

    def _in_state(self, state: str) -> frozenset[Name]:
        return frozenset(name_of(entry) for entry in self._ours if entry.get("state") == state)

    def missing(self, needed: Iterable[Name], attempts: Entries, expected: Expectation) -> list[Entry]:
        """New open entries for those of the needed names that have none yet."""
        known = {name_of(entry) for entry in self._ours}
        return [_entry(ref, reason, attempts[ref], expected) for ref, reason in sorted(set(needed) - known)]

    def written(self, fresh: list[Entry], needed: frozenset[Name], now: datetime) -> dict[str, Any]:
        """The whole list in its order, where anything of it changes; entries that are not ours stay in front."""
        closed = [self._closed(entry, needed, now) for entry in self._ours]
        if not fresh and closed == self._ours:
            return {}
        return {"review": [*self._foreign, *sorted([*closed, *fresh], key=_order)]}

    def _closed(self, entry: Entry, needed: frozenset[Name], now: datetime) -> Entry:
        name = name_of(entry)
        if decision := self.taken.get(name):
            at = datetime.fromtimestamp(decision.at, UTC)
            return {**entry, "state": decision.state, "by": decision.by, "why": decision.why, "closedAt": at}
        fits_now = entry.get("state") == OPEN and name[1] in OF_THE_EXPECTATION and name not in needed
        if not fits_now:
            return entry
        why = "the order's expectation was corrected"
        return {**entry, "state": RESOLVED, "by": _BY_THE_SHOP, "why": why, "closedAt": now}


def _entry(ref: str, reason: str, attempt: Entry, expected: Expectation) -> Entry:
    return {
        "reason": reason,
        "ref": ref,
        "amount": attempt["amount"],
        "currency": attempt["currency"],
        "expectedAmount": expected.amount,
        "expectedCurrency": expected.currency,
        "state": OPEN,
    }


def _order(entry: Mapping[str, Any]) -> tuple[str, str]:
    return str(entry.get("reason")), str(entry.get("ref"))
