"""Find the order an event is about, and read what the shop expects for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bson import ObjectId

from models.database import Database, RawDocument
from models.facts import Event, RefFact
from models.money import from_shop, parse_amount, parse_currency
from models.provider_ids import OWN_IDS, Kind
from models.settings import OrderSettings
from models.terms import Expectation

_LARGEST_INTEGER = 2**63 - 1
_FIELDS = {"payment": 1, "history": 1, "version": 1, "orderNumber": 1, "userId": 1}


@dataclass(frozen=True, slots=True)
class Found:
    """An order, the payments of the event that someone must look at, and the ids under which the provider knows it."""

    order: RawDocument
    doubts: Mapping[str, str] = field(default_factory=dict)
    """Payment id -> reason."""
    refs: tuple[RefFact, ...] = ()


async def find_order(db: Database, provider: str, event: Event, settings: OrderSettings) -> Found | None:
    """The order that an event is about, or None.

    Looked up by our stored provider order id, our stored link id, the payment's id, the shop's order number in the
    provider order's receipt or the link's `reference_id`, and at last the link's notes. A payment's notes are never a
    key: they can come from the buyer's browser. When two keys name different orders, or one key two, the first decides
    and the payment goes to review.
    """
    look = _Look(db, settings)
    if event.order_key is not None:
        order = await read_order(db, event.order_key, settings)
        return Found(order) if order else None
    refs = event.refs
    found = await look.by_id(provider, "order", refs.order_id)
    found += await look.by_id(provider, "payment_link", refs.payment_link_id)
    by_payment = None if found else await look.by_payment(refs.payment_id)
    by_number = await look.by_number(refs.receipt)
    found += [order for order in (by_payment, by_number) if order]
    if not found and (by_notes := await look.by_notes(event.link_notes)):
        found = [by_notes]
    if not found:
        return None
    if any(other["_id"] != found[0]["_id"] for other in found):
        return Found(found[0], {fact.id: "order_keys_disagree" for fact in event.payments})
    return Found(found[0], refs=tuple(_learned(provider, event)))


def _learned(provider: str, event: Event) -> Iterator[RefFact]:
    """Ids that later events of the order may come under."""
    if event.refs.order_id:
        yield RefFact(provider, "order", event.refs.order_id)
    if event.refs.payment_link_id:
        yield RefFact(provider, "payment_link", event.refs.payment_link_id)


class _Look:
    """Look-ups of one order, each by an index."""

    def __init__(self, db: Database, settings: OrderSettings) -> None:
        self._orders, self._note_keys, self._fields = db.orders, settings.link_note_keys, _fields(settings)

    async def by_id(self, provider: str, kind: Kind, value: str | None) -> list[RawDocument]:
        """By the shop's own field, or by what we have learned from the provider; two where the id is not unique."""
        if value is None:
            return []
        ref = {"provider": provider, "kind": kind, "id": value}
        known = {"payment.refs.id": value, "payment.refs": {"$elemMatch": ref}}
        return await self._two({f"payment.{OWN_IDS[kind]}": value}) or await self._two(known)

    async def by_payment(self, payment_id: str | None) -> RawDocument | None:
        """By a payment that the order knows: the one that it paid comes first, then one where its money is noted."""
        if payment_id is None:
            return None
        noted = {"$elemMatch": {"paymentId": payment_id, "captured": True}}
        return (
            await self._one({"payment.razorpayPaymentId": payment_id})
            or await self._one({"payment.attempts.paymentId": payment_id, "payment.attempts": noted})
            or await self._one({"payment.attempts.paymentId": payment_id})
        )

    async def by_number(self, number: str | None) -> RawDocument | None:
        """The one order with this number (a shop may store it as an integer); none when two share it."""
        if number is None:
            return None
        found = await self._two({"orderNumber": {"$in": as_numbers(number)}})
        return found[0] if len(found) == 1 else None

    async def by_notes(self, notes: Mapping[str, str]) -> RawDocument | None:
        """By the order's number or `_id` under a configured name."""
        for value in (notes[key] for key in self._note_keys if key in notes):
            ids: list[object] = [value, ObjectId(value)] if ObjectId.is_valid(value) else [value]
            if order := await self._one({"_id": {"$in": ids}}) or await self.by_number(value):
                return order
        return None

    async def _one(self, query: Mapping[str, Any]) -> RawDocument | None:
        return await self._orders.find_one(query, self._fields)

    async def _two(self, query: Mapping[str, Any]) -> list[RawDocument]:
        """At most two, the same ones whoever asks."""
        found = await self._orders.find(query, self._fields).limit(2).to_list()
        return sorted(found, key=lambda order: repr(order["_id"]))  # a sort by the server could choose another index


def as_numbers(text: str) -> list[str | int]:
    """An order number as a shop may store it: as it is, or as an integer of at most 64 bits."""
    if text.isascii() and text.isdigit() and int(text) <= _LARGEST_INTEGER:
        return [text, int(text)]
    return [text] if text else []


async def read_order(db: Database, order_id: object, settings: OrderSettings) -> RawDocument | None:
    """The order as it is now."""
    return await db.orders.find_one({"_id": order_id}, _fields(settings))


def _fields(settings: OrderSettings) -> dict[str, int]:
    """What the reducer needs, and the shop's own amount and currency where they are configured."""
    own = {path.split(".")[0]: 1 for path in (settings.amount_path, settings.currency_path) if path}
    return {**_FIELDS, **own}


def expectation(order: Mapping[str, Any], settings: OrderSettings) -> Expectation:
    """The amount (smallest unit) and currency that complete the order.

    An order that lacks them is read by the configured paths; what cannot be read is None and ends in review.
    """
    payment = order.get("payment") or {}
    stated = payment.get("currency")
    if stated is None and settings.currency_path:
        stated = _at(order, settings.currency_path)
    currency = settings.default_currency if stated is None else parse_currency(stated)
    if payment.get("amount") is not None:
        return Expectation(parse_amount(payment["amount"]), currency, settings.customer_bears_fee)
    if settings.amount_path is None or currency is None:
        return Expectation(None, currency)
    amount = from_shop(_at(order, settings.amount_path), settings.amount_unit, currency)
    return Expectation(amount, currency, settings.customer_bears_fee)


def _at(document: Mapping[str, Any], path: str) -> object:
    value: object = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
