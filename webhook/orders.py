"""Find the order an event is about, and read what the shop expects for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.database import Database, RawDocument
from models.facts import Event
from models.money import from_shop, parse_amount, parse_currency
from models.settings import OrderSettings
from models.terms import Expectation

_FIELDS = {"payment": 1, "history": 1, "version": 1, "orderNumber": 1, "userId": 1}


@dataclass(frozen=True, slots=True)
class Found:
    """An order, and the payments of the event that someone must look at (payment id -> reason)."""

    order: RawDocument
    doubts: Mapping[str, str] = field(default_factory=dict)


async def find_order(db: Database, event: Event, settings: OrderSettings) -> Found | None:
    """Look by our stored provider order id, then the payment's id, then the provider order's receipt; else None.

    `payment.notes` is never a key: it can come from the buyer's browser. When the receipt names another order than the
    provider's order id does, the id decides and the payment goes to review.
    """
    order = await _by(db, settings, "payment.razorpayOrderId", event.refs.order_id)
    for path in ("payment.attempts.paymentId", "payment.razorpayPaymentId"):
        order = order or await _by(db, settings, path, event.refs.payment_id)
    by_receipt = await _by_receipt(db, settings, event.receipt)
    if order is None:
        return Found(by_receipt) if by_receipt else None
    if by_receipt and by_receipt["_id"] != order["_id"]:
        return Found(order, {fact.id: "order_keys_disagree" for fact in event.payments})
    return Found(order)


async def _by_receipt(db: Database, settings: OrderSettings, receipt: str | None) -> RawDocument | None:
    """The one order with this number (a shop may store it as an integer); none when two share it."""
    if receipt is None:
        return None
    numbers: list[str | int] = [receipt, int(receipt)] if receipt.isascii() and receipt.isdigit() else [receipt]
    found = await db.orders.find({"orderNumber": {"$in": numbers}}, _fields(settings)).limit(2).to_list()
    return found[0] if len(found) == 1 else None


async def read_order(db: Database, order_id: object, settings: OrderSettings) -> RawDocument | None:
    """The order as it is now."""
    return await db.orders.find_one({"_id": order_id}, _fields(settings))


async def _by(db: Database, settings: OrderSettings, path: str, value: str | None) -> RawDocument | None:
    return await db.orders.find_one({path: value}, _fields(settings)) if value else None


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
        return Expectation(parse_amount(payment["amount"]), currency)
    if settings.amount_path is None or currency is None:
        return Expectation(None, currency)
    return Expectation(from_shop(_at(order, settings.amount_path), settings.amount_unit, currency), currency)


def _at(document: Mapping[str, Any], path: str) -> object:
    value: object = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
