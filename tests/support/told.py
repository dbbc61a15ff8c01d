"""A plan as the messages of a particular order: the order as its shop wrote it, and every message that tells of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import orjson

from models.states import Origin, OwnEvent
from scripts.simulator import builders
from tests.support import sample
from tests.support.histories import LETTERS, Payment, Plan, Refund
from webhook.admission import Delivery
from webhook.own_messages import callback_delivery, reconcile_delivery
from webhook.providers.razorpay import Razorpay

Json = dict[str, Any]
How = Literal["first", "redelivered", "replayed", "reworded"]
REPEATS: tuple[How, ...] = ("redelivered", "replayed", "reworded")
PROVIDER = Razorpay(sample.settings("mongodb://127.0.0.1:1", "paylatch"))


def message(body: Json, event_id: str) -> Delivery:
    """A webhook as the endpoint hands it to admission."""
    raw = sample.encode(body)
    return Delivery(PROVIDER.name, raw, event_id, event_id_signed=False, signed_with="new", event=PROVIDER.parse(raw))


def repeated(told: Delivery, how: How) -> Delivery:
    """A message as it comes again; our own messages, whose ids we make ourselves, stay as they are.

    Replayed are the very same bytes under an id that nobody has seen, reworded the same facts in other bytes, which
    admission cannot know as a duplicate.
    """
    event_id = f"{told.event_id}-{how}"
    if told.origin != Origin.WEBHOOK or how in {"first", "redelivered"}:
        return told
    if how == "replayed":
        return replace(told, event_id=event_id)
    body = orjson.loads(told.raw)
    return message({**body, "created_at": body["created_at"] + 1}, event_id)


def _written_order(plan: Plan, number: int) -> Json:
    """The order as the shop wrote it."""
    order = sample.order(number, amount=plan.expected, status=plan.status)
    if plan.shop in {"link", "number"}:
        del order["payment"]["razorpayOrderId"]
    if plan.shop == "link and checkout":
        order["payment"]["razorpayOrderId"] = _provider_order(plan, number)
    if plan.shop in {"link", "link and checkout"}:
        order["payment"]["paymentLinkId"] = sample.link_id(number)
    if plan.accept_partial is not None:
        order["payment"]["acceptPartial"] = plan.accept_partial
    return order


def _messages(plan: Plan, number: int) -> list[Delivery]:
    teller = _Teller(plan, number)
    bodies = [*teller.of_payments(), *teller.of_refunds(), *teller.of_the_link()]
    return [
        body if isinstance(body, Delivery) else message(body, f"E{number}-{place}") for place, body in enumerate(bodies)
    ]


def _provider_order(plan: Plan, number: int) -> str:
    return _link_order(number) if plan.link else sample.provider_order_id(number)


def _link_order(number: int) -> str:
    return f"order_Link{number:010d}"


def _second_order(number: int) -> str:
    return f"order_Again{number:010d}"


def names(number: int) -> list[str]:
    """Every id by which a message or an order may name something of order `number`."""
    orders = [sample.provider_order_id(number), _link_order(number), _second_order(number), sample.link_id(number)]
    payments = [sample.payment_id(number, letter) for letter in LETTERS]
    return [*orders, *payments, *(sample.refund_id(number, nth) for nth in range(1, 2 * len(LETTERS) + 1))]


@dataclass(frozen=True)
class _Teller:
    """Writes the messages of one order."""

    plan: Plan
    number: int

    def of_payments(self) -> Iterator[Json | Delivery]:
        """Everything about payments, and what a paid link says beside them."""
        paid = 0
        for payment in self.plan.payments:
            if payment.failed:
                yield sample.event("payment.failed", payment=self._seen(payment, "failed"))
            if payment.authorized:
                yield sample.event("payment.authorized", payment=self._seen(payment, "authorized"))
            if payment.callback:
                yield self._callback(payment)
            paid += payment.amount * payment.captured
            for kind in payment.captured_by:
                yield self._captured(kind, payment, paid)
            if self.plan.link and payment.captured:
                yield builders.link_paid(
                    self._link(), self._order(payment), self._entity(payment), sample.ACCOUNT, paid=paid
                )

    def of_refunds(self) -> Iterator[Json | Delivery]:
        """Everything about refunds."""
        by_letter = {payment.letter: payment for payment in self.plan.payments}
        for refund in self.plan.refunds:
            yield from self._refund(refund, by_letter[refund.letter])

    def of_the_link(self) -> Iterator[Json | Delivery]:
        """That the link ended; and what the provider's API says of it."""
        link = self.plan.link
        if link is None:
            return
        if link.end:
            yield builders.link_ended(self._link(), link.end, sample.CREATED + 900, sample.ACCOUNT)
        if link.reconciled:
            entity = builders.link_in_status(self._link(), link.end or "created", sample.CREATED + 900)
            yield reconcile_delivery(PROVIDER, OwnEvent.RECONCILED_LINK, payment_link=entity)

    def _captured(self, kind: str, payment: Payment, paid: int) -> Json | Delivery:
        seen = self._seen(payment, "captured")
        match kind:
            case "reconcile":
                return reconcile_delivery(PROVIDER, OwnEvent.RECONCILED_PAYMENT, payment=seen)
            case "order.paid":
                order = {**self._order(payment), "amount_paid": max(paid, sample.AMOUNT), "status": "paid"}
                return sample.event("order.paid", payment=seen, order=order)
            case "ahead":  # a snapshot that is newer than the event's name
                return sample.event("payment.authorized", payment={**seen, "description": "ahead"})
            case _:
                return sample.event(kind, payment=seen)

    def _callback(self, payment: Payment) -> Delivery:
        named = {
            "order_id": self._order(payment)["id"],
            "payment_id": sample.payment_id(self.number, payment.letter),
            "signature": f"signature of {payment.letter}",
        }
        linked = {"payment_link_id": sample.link_id(self.number)} if self.plan.link else {}
        return callback_delivery(PROVIDER, {**named, **linked})

    def _refund(self, refund: Refund, payment: Payment) -> Iterator[Json | Delivery]:
        number, of = self.number, self._entity(payment)
        entity = sample.refund(number, "pending", nth=refund.nth, letter=refund.letter, amount=refund.amount)
        at, account, old = sample.CREATED + 60, sample.ACCOUNT, refund.old_shape
        if "created" in refund.kinds or refund.end == "pending":
            yield builders.refund_created(entity, of, at, account, old_shape=old)
        if refund.processed:
            yield builders.refund_processed(entity, of, at, account, old_shape=old)
            if "speed_changed" in refund.kinds:
                yield builders.refund_speed_changed(entity, of, at, account, old_shape=old)
        if refund.failed:
            yield builders.refund_failed(entity, of, at, account, old_shape=old)
        if "reconcile" in refund.kinds:
            status = "failed" if refund.failed else "processed" if refund.processed else "pending"
            beside = builders.after_refunds(of, 0 if refund.failed else refund.amount)
            yield reconcile_delivery(
                PROVIDER, OwnEvent.RECONCILED_REFUND, refund={**entity, "status": status}, payment=beside
            )

    def _entity(self, payment: Payment) -> Json:
        """The payment as authorised."""
        return sample.payment(
            self.number,
            "authorized",
            letter=payment.letter,
            amount=payment.amount,
            order_id=self._order(payment)["id"],
            created_at=sample.CREATED + payment.at,
        )

    def _seen(self, payment: Payment, status: builders.PaymentStatus) -> Json:
        return builders.in_status(self._entity(payment), status)

    def _order(self, payment: Payment) -> Json:
        """The provider's order that the payment belongs to."""
        receipt, created = f"TEA-{self.number}", sample.CREATED - 60
        made = builders.order(random.Random(self.number), amount=sample.AMOUNT, receipt=receipt, created_at=created)
        second = payment.second_order
        return {**made, "id": _second_order(self.number) if second else _provider_order(self.plan, self.number)}

    def _link(self) -> Json:
        assert self.plan.link is not None
        return sample.link(self.number, accept_partial=self.plan.link.partial)


@dataclass(frozen=True)
class History:
    """A plan told of order `number`."""

    plan: Plan
    number: int

    @property
    def order(self) -> Json:
        return _written_order(self.plan, self.number)

    @cached_property
    def messages(self) -> list[Delivery]:
        """Everything that is said of the order, once each, in the order in which it happened."""
        return _messages(self.plan, self.number)
