"""The API's answers as messages that are stored and processed like a webhook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from models.errors import ProviderRefused, Unparseable
from models.states import OwnEvent
from webhook.admission import Delivery
from webhook.own_messages import reconcile_delivery
from webhook.providers import Provider
from webhook.providers.razorpay_api import Json, RazorpayApi

Kind = Literal["payment", "refund"]

_EVENTS: Mapping[Kind, OwnEvent] = {"payment": OwnEvent.RECONCILED_PAYMENT, "refund": OwnEvent.RECONCILED_REFUND}


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


def message(provider: Provider, kind: Kind, **entities: Json) -> Delivery | None:
    """These entities as one message about a payment or a refund; None when nobody can read it."""
    try:
        return reconcile_delivery(provider, _EVENTS[kind], **entities)
    except Unparseable:
        return None
