"""One order that is paid by a payment link, wholly, in parts, too late or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from scripts.simulator import builders
from scripts.simulator.builders import Json
from scripts.simulator.checkout import Life, OrderTruth, attempt, checkout

if TYPE_CHECKING:
    import random

LinkStory = Literal["link", "link_parts", "link_expired", "link_late"]
LINK_STORIES: tuple[LinkStory, ...] = ("link", "link_parts", "link_expired", "link_late")


def link_life(rng: random.Random, number: str, placed_at: int, account_id: str, story: LinkStory) -> Life:
    """The whole life of the order. The shop knows the link's id only; the provider makes its order for itself."""
    shop, _ = checkout(rng, number, placed_at)
    total, parts = shop["payment"]["amount"], story == "link_parts"
    link = builders.payment_link(
        rng, amount=total, reference_id=number, created_at=placed_at, accept_partial=parts, notes={"order_id": number}
    )
    del shop["payment"]["razorpayOrderId"]
    shop["payment"]["paymentLinkId"] = link["id"]
    provider_order = builders.link_order(rng, link)
    amounts = [total // 3, total - total // 3] if parts else [] if story == "link_expired" else [total]
    payments = [
        attempt(rng, shop, {**provider_order, "amount": amount}, placed_at + 30 * nth)
        for nth, amount in enumerate(amounts, start=1)
    ]
    bodies: list[Json] = []
    if story in {"link_expired", "link_late"}:
        bodies.append(builders.link_ended(link, "expired", placed_at + 20, account_id))
    bodies += _payment_events(link, provider_order, payments, account_id, late=story == "link_late")
    late = tuple(("paid_after_link_expired", payment["id"]) for payment in payments if story == "link_late")
    truth = OrderTruth(
        status="completed" if payments else "pending",
        captured=payments[0]["id"] if payments else None,
        failed=(),
        parts=tuple(payment["id"] for payment in payments[1:]),
        reviews=late,
    )
    return Life(shop, provider_order, truth, bodies)


def _payment_events(link: Json, of: Json, payments: list[Json], account_id: str, *, late: bool) -> list[Json]:
    """Each payment is told three times within a second, as the provider does; an ended link tells nothing more."""
    bodies, paid = list[Json](), 0
    for payment in payments:
        paid, at = paid + payment["amount"], payment["created_at"] + 3
        bodies.append(builders.payment_captured(payment, at, account_id))
        if paid == link["amount"]:
            bodies.append(builders.order_paid(payment, of, at, account_id))
        if not late:
            bodies.append(builders.link_paid(link, of, payment, account_id, paid=paid))
    return bodies
