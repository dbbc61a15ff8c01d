"""The entries of `payment.review`: what somebody must look at, and how each one was closed.

An entry is named by its reason and its ref (a payment id). It is open until an operator accepts or rejects it, or until
the shop corrects the order's expectation so that the money fits; a closed entry stays, with who closed it and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from models.entries import Entries, Entry, stored_list
from models.facts import DecisionFact
from models.terms import Expectation

OPEN, ACCEPTED, RESOLVED = "open", "accepted", "resolved"
OF_THE_EXPECTATION = frozenset(
    {"amount_mismatch", "currency_mismatch", "expected_amount_missing", "link_amount_differs"}
)
"""Reasons that go away when the shop corrects what it expects."""
_BY_THE_SHOP = "the shop"

Name = tuple[str, str]
"""(ref, reason)"""


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
        self.accepted_before = frozenset(name_of(entry) for entry in self._ours if entry.get("state") == ACCEPTED)
        """Names that operators accepted before, and `accepted` with the ones they accept now."""
        self.accepted = self.accepted_before | {name for name, d in self.taken.items() if d.state == ACCEPTED}

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
