"""What an order's `payment` knows of the money: attempts, refunds and payment links, each by its id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from models.entries import (
    Entries,
    Entry,
    join_callbacks,
    join_links,
    join_payments,
    join_refunds,
    stored_entries,
)
from models.facts import CallbackFact, Fact, LinkFact, PaymentFact, RefundFact

LISTS = {"attempts": "paymentId", "refunds": "refundId", "links": "linkId"}
"""The lists in `payment` that are joins, and the field that names each one's entries."""
_ENDED = ("expired", "cancelled")


@dataclass(frozen=True, slots=True)
class Known:
    """Everything by id."""

    attempts: Entries
    refunds: Entries
    links: Entries

    @classmethod
    def stored(cls, payment: Mapping[str, Any]) -> Known:
        """As an order holds it. Raises `OrderUnreadable`."""
        return cls(**{name: stored_entries(payment, name, key)[1] for name, key in LISTS.items()})

    def joined(self, facts: Iterable[Fact]) -> tuple[Known, int]:
        """With facts added, and how many failed attempts beyond the hundredth were only counted."""
        given = tuple(facts)
        attempts, overflow = join_payments(self.attempts, (fact for fact in given if isinstance(fact, PaymentFact)))
        attempts = join_callbacks(attempts, (fact for fact in given if isinstance(fact, CallbackFact)))
        refunds = join_refunds(self.refunds, (fact for fact in given if isinstance(fact, RefundFact)))
        links = join_links(self.links, (fact for fact in given if isinstance(fact, LinkFact)))
        return Known(attempts, refunds, links), overflow

    @property
    def captures(self) -> list[Entry]:
        """The attempts whose money came in."""
        return [attempt for attempt in self.attempts.values() if attempt["captured"]]

    def credited(self, payment_id: str) -> bool:
        """Whether this payment's money came in, and how much is known."""
        attempt = self.attempts.get(payment_id)
        return attempt is not None and attempt["captured"] and attempt["amount"] is not None

    def processed(self, payment_id: str) -> int:
        """Sum of the refunds of a payment that were ever processed; it only grows, whatever fails later."""
        ours = (refund for refund in self.refunds.values() if refund["paymentId"] == payment_id)
        return sum(refund["amount"] or 0 for refund in ours if "processed" in refund["statuses"])

    def refunded(self, payment_id: str) -> int:
        """Sum of the refunds of a payment that stand."""
        ours = (refund for refund in self.refunds.values() if refund["paymentId"] == payment_id)
        return sum(refund["amount"] or 0 for refund in ours if refund["status"] == "processed")

    def ends(self, current: object) -> set[str]:
        """How links of the order ended: expired, cancelled; only the current one counts where the shop says which."""
        named = isinstance(current, str) and current != ""
        links = [link for link_id, link in self.links.items() if not named or link_id == current]
        return {end for link in links for end in _ENDED if end in link["statuses"]}
