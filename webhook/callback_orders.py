"""Find the shop's order that a browser's callback is about, by ids that we have stored."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.database import Database, RawDocument
from models.provider_ids import OWN_IDS, provider_ids
from models.states import PAID, order_status
from webhook.orders import as_numbers
from webhook.signatures import Callback

_FIELDS = {"payment.status": 1, "payment.razorpayOrderId": 1, "payment.paymentLinkId": 1, "payment.refs": 1}


@dataclass(frozen=True, slots=True)
class Subject:
    """The shop's order as far as a callback needs it."""

    order_id: object
    """The shop's `_id`."""
    stored_id: str
    """The provider's id of order or link as we have it; the link's own where we know it only by its reference."""
    named: Mapping[str, str]
    """What `own_messages.callback_delivery` needs to name the order."""
    paid: bool = False

    @property
    def shown(self) -> str | None:
        """The order's id as text; a subscription has none."""
        return None if self.order_id is None else str(self.order_id)


async def subject_of(db: Database, provider: str, callback: Callback) -> Subject | None:
    """The order with this provider order or link; of a link, else the one with its reference as `orderNumber`.

    Every way is tried whatever the others find, so that the time taken does not tell an order from none.
    """
    wanted = callback.subject_id
    if callback.kind == "subscription":  # none is stored yet: the signature alone says that it is the account's
        return Subject(None, wanted, {"subscription_id": wanted})
    ref = {"provider": provider, "kind": callback.kind, "id": wanted}
    own, kept, numbered = await asyncio.gather(
        _find(db, {f"payment.{OWN_IDS[callback.kind]}": wanted}),
        _find(db, {"payment.refs.id": wanted, "payment.refs": {"$elemMatch": ref}}),
        _find(db, {"orderNumber": {"$in": as_numbers(callback.reference_id)}}),
    )
    for order in (*own, *kept):
        if wanted in provider_ids(order.get("payment"), callback.kind):  # byte for byte, whatever a collation says
            return _subject(order, callback, wanted, {})
    if len(numbered) != 1:
        return None
    return _subject(numbered[0], callback, wanted, {"reference_id": callback.reference_id})


async def _find(db: Database, search: RawDocument) -> list[RawDocument]:
    return await db.orders.find(search, _FIELDS).limit(2).to_list()


def _payment(order: RawDocument) -> Mapping[str, Any]:
    payment = order.get("payment")
    return payment if isinstance(payment, dict) else {}


def _subject(order: RawDocument, callback: Callback, stored_id: str, extra: Mapping[str, str]) -> Subject:
    payment, named = _payment(order), dict(extra)
    own = stored_id if callback.kind == "order" else payment.get(OWN_IDS["order"])
    if isinstance(own, str) and own:
        named["order_id"] = own
    if callback.kind == "payment_link":
        named["payment_link_id"] = stored_id
    return Subject(order["_id"], stored_id, named, order_status(payment.get("status")) in PAID)
