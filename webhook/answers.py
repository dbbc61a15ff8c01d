"""The API's answers as messages that are stored and processed like a webhook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from models.errors import ProviderRefused, Unparseable
from models.facts import Event
from models.states import OwnEvent
from webhook.admission import Delivery
from webhook.own_messages import reconcile_delivery
from webhook.providers import Provider
from webhook.providers.razorpay_api import Json, RazorpayApi

Kind = Literal["payment", "refund", "payment_link"]

_EVENTS: Mapping[Kind, OwnEvent] = {
    "payment": OwnEvent.RECONCILED_PAYMENT,
    "refund": OwnEvent.RECONCILED_REFUND,
    "payment_link": OwnEvent.RECONCILED_LINK,
}


async def payment_delivery(api: RazorpayApi, provider: Provider, payment: Json) -> Delivery | None:
    """A payment and its order, as one message; None when nobody can read it."""
    return message(provider, "payment", payment=payment, **await _order_of(api, payment))


async def refund_delivery(api: RazorpayApi, provider: Provider, refund: Json) -> Delivery | None:
    """A refund, its payment and that one's order, as one message; None when nobody can read it."""
    try:
        payment = await api.payment(str(refund.get("payment_id")))
    except ProviderRefused:
        return message(provider, "refund", refund=refund)
    return message(provider, "refund", refund=refund, payment=payment, **await _order_of(api, payment))


async def _order_of(api: RazorpayApi, payment: Json) -> dict[str, Json]:
    order_id = payment.get("order_id")
    if not isinstance(order_id, str):
        return {}
    try:
        return {"order": await api.order(order_id)}
    except ProviderRefused:
        return {}


async def link_deliveries(api: RazorpayApi, provider: Provider, link_id: str) -> list[Delivery]:
    """A payment link alone, then with each payment of its order. Raises `ProviderRefused` for an unknown link."""
    link = await api.payment_link(link_id)
    made = [message(provider, "payment_link", payment_link=link)]
    order_id = link.get("order_id")
    if isinstance(order_id, str) and order_id:
        order = await api.order(order_id)
        made += [
            message(provider, "payment_link", payment_link=link, order=order, payment=payment)
            for payment in await api.order_payments(order_id)
        ]
    return [delivery for delivery in made if delivery]


async def fetched(api: RazorpayApi, provider: Provider, event: Event) -> Event | None:
    """What the API says now about the payment that a callback names, with its order, as a reconciled payment.

    None when the API does not know the payment, or knows it as one of another order; a payment link has an order of
    its own, which its callback does not name. Raises `ProviderUnavailable` (try again) or `CredentialsRefused`.
    """
    if event.refs.payment_id is None:
        return None
    try:
        payment = await api.payment(event.refs.payment_id)
    except ProviderRefused:
        return None
    by_link = event.refs.payment_link_id is not None
    if not by_link and event.refs.order_id is not None and payment.get("order_id") != event.refs.order_id:
        return None
    delivery = await payment_delivery(api, provider, payment)
    return delivery.event if delivery else None


def message(provider: Provider, kind: Kind, **entities: Json) -> Delivery | None:
    """These entities as one message about a payment, refund or link; None when nobody can read it."""
    try:
        return reconcile_delivery(provider, _EVENTS[kind], **entities)
    except Unparseable:
        return None
