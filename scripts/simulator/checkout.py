"""One cart on its way through checkout: the shop's order, the provider's order, the payments and their events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from scripts.simulator import builders
from scripts.simulator.builders import Json, identifier

if TYPE_CHECKING:
    import random

Story = Literal[
    "paid",
    "paid_twice",
    "failed_first",
    "failed",
    "late",
    "authorized_only",
    "partial_refund",
    "full_refund",
    "failed_refund",
]
FinalStatus = Literal["completed", "partially_refunded", "refunded", "failed", "pending"]

GOODS = (
    ("Filter coffee 500 g", 49900),
    ("Steel tumbler", 24900),
    ("Kolhapuri chappal", 129900),
    ("Cotton kurta", 89900),
)
CUSTOMERS = (
    ("Asha Nair", "asha.nair"),
    ("Ravi Menon", "ravi.menon"),
    ("Zoë D’Souza", "zoe.dsouza"),
    ("मीरा जोशी", "meera.joshi"),
)
NOTES: tuple[Json | None, ...] = (
    None,
    None,
    {"channel": "web", "coupon": "DIWALI/10"},
    {"gift": "शुभकामनाएँ", "points": 60},
)


@dataclass(frozen=True, slots=True)
class OrderTruth:
    """What must be true of one order once everything was processed."""

    status: FinalStatus
    captured: str | None
    """Id of the payment that completed it."""
    failed: tuple[str, ...]
    """Ids of the payments that ever failed."""
    amount_refunded: int = 0
    refunds_processed: tuple[str, ...] = ()
    """Ids of the refunds that went through; `refunds_failed` of those that did not."""
    refunds_failed: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    """Ids of the further payments that paid for a part of it."""
    reviews: tuple[tuple[str, str], ...] = ()
    """(reason, payment id) of what somebody must look at."""

    @property
    def ledger(self) -> frozenset[str]:
        """Ids of the ledger entries: a credit per capture and a debit per refund that went through."""
        captured = {self.captured, *self.parts, *(ref for _, ref in self.reviews)} - {None}
        credited = {f"capture:{payment}" for payment in captured}
        return frozenset(credited | {f"refund:{refund}" for refund in self.refunds_processed})


@dataclass(frozen=True, slots=True)
class Life:
    """An order from cart to end; `bodies` are its events in the order of their making."""

    order: Json
    provider_order: Json
    truth: OrderTruth
    bodies: list[Json]


def shop_order(rng: random.Random, number: str, provider_order_id: str, goods: list[tuple[str, int]]) -> Json:
    """An order as the shop inserts it before checkout: `pending`, expecting this amount in paise."""
    name, mailbox = rng.choice(CUSTOMERS)
    return {
        "_id": identifier(rng, "shop_"),
        "orderNumber": number,
        "userId": identifier(rng, "user_"),
        "items": [{"name": title, "quantity": 1, "price": price} for title, price in goods],
        "shippingAddress": {
            "name": name,
            "email": f"{mailbox}@example.com",
            "phone": f"+9100000{builders.digits(rng, 5)}",  # no Indian number starts with 0: nobody can be called
        },
        "payment": {
            "status": "pending",
            "amount": sum(price for _, price in goods),
            "currency": "INR",
            "razorpayOrderId": provider_order_id,
        },
    }


def checkout(rng: random.Random, number: str, created_at: int) -> tuple[Json, Json]:
    """One cart on its way to payment: the shop's order and the provider's order."""
    goods = rng.choices(GOODS, k=rng.randint(1, 3))
    amount = sum(price for _, price in goods)
    provider_order = builders.order(rng, amount=amount, receipt=number, created_at=created_at, notes=rng.choice(NOTES))
    return shop_order(rng, number, provider_order["id"], goods), provider_order


def attempt(rng: random.Random, shop: Json, provider_order: Json, created_at: int) -> Json:
    """A payment of the full amount for this order, by a random method."""
    return builders.payment(
        rng,
        order_id=provider_order["id"],
        amount=provider_order["amount"],
        created_at=created_at,
        method=rng.choice(builders.METHODS),
        notes=provider_order["notes"] or None,
        email=shop["shippingAddress"]["email"],
        contact=shop["shippingAddress"]["phone"],
    )


def live(
    rng: random.Random,
    number: str,
    placed_at: int,
    account_id: str,
    story: Story,
    *,
    authorized: float = 1.0,
) -> Life:
    """The whole life of one order; `authorized` is the share of captured payments that announce their authorisation."""
    shop, provider_order = checkout(rng, number, placed_at)
    payment = attempt(rng, shop, provider_order, placed_at + rng.randint(20, 60))
    loser = attempt(rng, shop, provider_order, placed_at + 10) if story == "failed_first" else payment
    second = [attempt(rng, shop, provider_order, payment["created_at"] + 90)] if story == "paid_twice" else []
    bodies = []
    if fails := story in {"failed_first", "failed", "late"}:
        failure = rng.randrange(len(builders.FAILURES))
        bodies.append(builders.payment_failed(loser, loser["created_at"] + 4, account_id, failure=failure))
    at = payment["created_at"] + (40 if story == "late" else 2)
    if story == "authorized_only" or (story != "failed" and rng.random() < authorized):
        bodies.append(builders.payment_authorized(payment, at, account_id))
    if captures := story not in {"failed", "authorized_only"}:
        attempts = 2 if story == "failed_first" else 1
        bodies.append(builders.payment_captured(payment, at + 3, account_id))
        bodies.append(builders.order_paid(payment, provider_order, at + 3, account_id, attempts=attempts))
    bodies += [builders.payment_captured(again, again["created_at"] + 5, account_id) for again in second]
    refunds = _refunds(rng, story, payment, at + 20)
    refund_ids, refund_fails = tuple(refund["id"] for refund in refunds), story == "failed_refund"
    bodies += _refund_events(story, payment, refunds, account_id)
    truth = OrderTruth(
        status=_REFUNDED.get(story, "completed") if captures else "failed" if fails else "pending",
        captured=payment["id"] if captures else None,
        failed=(loser["id"],) if fails else (),
        amount_refunded=0 if refund_fails else sum(refund["amount"] for refund in refunds),
        refunds_processed=() if refund_fails else refund_ids,
        refunds_failed=refund_ids if refund_fails else (),
        reviews=tuple(("duplicate_capture", again["id"]) for again in second),
    )
    return Life(shop, provider_order, truth, bodies)


_REFUNDED: dict[Story, FinalStatus] = {"partial_refund": "partially_refunded", "full_refund": "refunded"}


def _refunds(rng: random.Random, story: Story, payment: Json, at: int) -> list[Json]:
    """The refunds of this story: one of a part, or two that add up to the whole payment."""
    amount, amounts = payment["amount"], list[int]()
    if story in {"partial_refund", "failed_refund"}:
        amounts = [100 * rng.randint(1, amount // 100 - 1)]
    if story == "full_refund":
        amounts = [amount // 2, amount - amount // 2]
    return [builders.refund(rng, payment_id=payment["id"], amount=part, created_at=at) for part in amounts]


def _refund_events(story: Story, payment: Json, refunds: list[Json], account_id: str) -> list[Json]:
    """All are created before the first of them ends."""
    end = builders.refund_failed if story == "failed_refund" else builders.refund_processed
    total, created, ended = sum(refund["amount"] for refund in refunds), list[Json](), list[Json]()
    for refund in refunds:
        at, before = refund["created_at"], sum(body["payload"]["refund"]["entity"]["amount"] for body in created)
        created.append(builders.refund_created(refund, payment, at, account_id, others=before))
        ended.append(end(refund, payment, at + 15, account_id, others=total - refund["amount"]))
    return created + ended
