"""What must be true of an order once everything in its plan was heard, by the rules as they are written down.

Nothing of the code under test is used here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support import sample
from tests.support.histories import FOREIGN, Payment, Plan


@dataclass(frozen=True)
class Truth:
    """The end. `notices` are keys without channel and recipient; amounts are in the smallest unit."""

    status: object
    paid: int | None
    refunded: int
    ledger: frozenset[str]
    notices: frozenset[str]
    fulfilled: bool


def truth_of(plan: Plan, number: int) -> Truth:
    """The end of the plan's history of order `number`."""
    return _Judge(plan, number).truth()


@dataclass(frozen=True)
class _Judge:
    plan: Plan
    number: int

    def truth(self) -> Truth:
        foreign = self.plan.status in FOREIGN
        complete, paying = self._complete(), self._paying()
        refunded = sum(self._standing(payment) for payment in paying)
        paid = sum(payment.amount for payment in paying)
        return Truth(
            status=self.plan.status if foreign else self._status(paid, refunded, complete=complete),
            paid=paid if paying else None,
            refunded=refunded,
            ledger=frozenset(self._ledger()),
            notices=frozenset(self._notices(completed=complete and not foreign)),
            fulfilled=complete and not foreign,
        )

    def _status(self, paid: int, refunded: int, *, complete: bool) -> str:
        if not complete:
            return "failed" if any(payment.failed for payment in self.plan.payments) else "pending"
        return "completed" if not refunded else "refunded" if refunded >= paid else "partially_refunded"

    def _parts_allowed(self) -> bool:
        """The shop's word; without it the link's, where the order can only be paid by its link."""
        if self.plan.accept_partial is not None:
            return self.plan.accept_partial
        return self.plan.link is not None and self.plan.link.partial

    def _fits(self, payment: Payment) -> bool:
        return payment.amount == self.plan.expected or (self._parts_allowed() and payment.amount < self.plan.expected)

    def _fitting(self) -> list[Payment]:
        return [payment for payment in self.plan.captured if self._fits(payment)]

    def _paying(self) -> list[Payment]:
        """One payment over the whole, or all parts: a link never takes more than it asks for."""
        fitting = self._fitting()
        return fitting[:1] if fitting and fitting[0].amount == self.plan.expected else fitting

    def _complete(self) -> bool:
        return bool(self._paying()) and sum(payment.amount for payment in self._paying()) == self.plan.expected

    def _standing(self, payment: Payment) -> int:
        refunds = [refund for refund in self.plan.refunds if refund.letter == payment.letter]
        return sum(refund.amount for refund in refunds if refund.processed and not refund.failed)

    def _ever_processed(self, payment: Payment) -> int:
        return sum(each.amount for each in self.plan.refunds if each.letter == payment.letter and each.processed)

    def _ledger(self) -> list[str]:
        """Only what came in can go back."""
        captured = {payment.letter for payment in self.plan.captured}
        moved = [refund for refund in self.plan.refunds if refund.letter in captured]
        refunds = {sample.refund_id(self.number, refund.nth): refund for refund in moved}
        return [
            *(f"capture:{self._id(payment)}" for payment in self.plan.captured),
            *(f"refund:{ref}" for ref, refund in refunds.items() if refund.processed),
            *(f"refund_reversal:{ref}" for ref, refund in refunds.items() if refund.processed and refund.failed),
        ]

    def _notices(self, *, completed: bool) -> list[str]:
        refunds = {sample.refund_id(self.number, refund.nth): refund for refund in self.plan.refunds}
        told = [
            *(["payment_completed"] if completed else []),
            *(f"payment_failed:{self._id(payment)}" for payment in self.plan.payments if payment.failed),
            *(f"refund_processed:{ref}" for ref, refund in refunds.items() if refund.processed),
            *(f"refund_failed:{ref}" for ref, refund in refunds.items() if refund.failed),
            *(f"payment_review:{reason}:{ref}" for reason, ref in self._reviews()),
        ]
        return [f"order:ord{self.number}:{notice}" for notice in told]

    def _reviews(self) -> list[tuple[str, str]]:
        """(reason, payment id) of what somebody must look at."""
        plan, found = self.plan, []
        for payment in plan.captured:
            ref = self._id(payment)
            if not self._fits(payment):
                found.append(("amount_mismatch", ref))
            elif plan.status in FOREIGN:
                word = "null" if plan.status is None else plan.status
                found.append((f"paid_after_{word}", ref))
            if self._fits(payment) and payment not in self._paying():
                found.append(("duplicate_capture", ref))
            if self._ever_processed(payment) > payment.amount:
                found.append(("refunded_more_than_captured", ref))
            if plan.link and plan.link.end:
                found.append((f"paid_after_link_{plan.link.end}", ref))
        return found

    def _id(self, payment: Payment) -> str:
        return sample.payment_id(self.number, payment.letter)
