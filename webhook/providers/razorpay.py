"""Razorpay: signature, and a tolerant view of its bodies (facts from its documentation and from observed bodies)."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any

from models.errors import Unparseable
from models.facts import CallbackFact, Event, LinkFact, PaymentFact, Refs, RefundFact
from models.money import parse_amount, parse_currency
from models.settings import Settings
from models.states import OwnEvent
from webhook.payload import read_object

_SIGNATURE = re.compile(r"[0-9a-fA-F]{64}")
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LATEST = 253402300799  # 9999-12-31, the last second a date can hold
_LONGEST_TYPE = 100
_LONGEST_WORD = 100
_ORDER_PREFIX = "order_"

PAYMENT_EVENTS = frozenset({"payment.authorized", "payment.captured", "payment.failed", "order.paid"})
REFUND_EVENTS = frozenset({"refund.created", "refund.processed", "refund.failed", "refund.speed_changed"})
LINK_EVENTS = frozenset(
    {"payment_link.paid", "payment_link.partially_paid", "payment_link.expired", "payment_link.cancelled"}
)
_NEEDED: Mapping[str, frozenset[str]] = {
    "payment": PAYMENT_EVENTS | {OwnEvent.RECONCILED_PAYMENT},
    "refund": REFUND_EVENTS | {OwnEvent.RECONCILED_REFUND},
    "payment link": LINK_EVENTS | {OwnEvent.RECONCILED_LINK},
    "callback": frozenset({OwnEvent.CALLBACK}),
}
"""What a type that moves money must name, in its provider's bodies and in the ones that we make of its answers."""


class Razorpay:
    """Signs the raw body with HMAC-SHA256; the event id is an unsigned header."""

    name = "razorpay"
    path = "/webhooks/razorpay"
    signature_header = "X-Razorpay-Signature"
    event_id_header = "X-Razorpay-Event-Id"
    event_id_signed = False
    event_types = frozenset[str]().union(*_NEEDED.values())

    def __init__(self, settings: Settings) -> None:
        self._secrets = {
            label: secret.get_secret_value().encode() for label, secret in settings.razorpay.webhook_secrets.items()
        }
        self._accounts = frozenset(settings.razorpay.account_ids)

    def signature(self, value: str) -> bytes | None:
        """64 hex characters as 32 bytes; None for anything else."""
        return bytes.fromhex(value) if _SIGNATURE.fullmatch(value) else None

    def signed_with(self, signature: bytes, raw: bytes) -> str | None:
        """Compare with every live secret in constant time; retries of old events stay signed with the old one."""
        found = None
        for label, secret in self._secrets.items():
            if hmac.compare_digest(hmac.digest(secret, raw, hashlib.sha256), signature):
                found = label
        return found

    def parse(self, raw: bytes) -> Event:
        """Key off `payload`, never `contains`; raises `Unparseable` where a type that moves money names none.

        An old form of refund events has no payment entity; where there is one, its snapshot is a fact too.
        """
        body = read_object(raw)
        event_type = body.get("event")
        if not isinstance(event_type, str) or not event_type or not event_type.isprintable():
            raise Unparseable("the body names no event type")
        payload = _mapping(body.get("payload"))
        found = _Found(payload, event_type)
        for what, facts in found.by_name().items():
            if event_type in _NEEDED[what] and not facts:
                raise Unparseable(f"the payload has no usable {what}")
        return Event(
            event_type=event_type[:_LONGEST_TYPE],
            account_id=_word(body.get("account_id")),
            occurred_at=None if event_type in LINK_EVENTS else _occurred_at(body, payload),
            refs=_refs(payload),
            payments=found.payments,
            refunds=found.refunds,
            links=found.links,
            callbacks=found.callbacks,
            link_notes=_notes(_entity(payload, "payment_link")),
            payload=body,
        )

    def is_ours(self, event: Event) -> bool:
        """Every account is, unless some are configured; what we wrote ourselves names none."""
        return not self._accounts or event.account_id in self._accounts or event.event_type in set(OwnEvent)


class _Found:
    """The facts that a payload's entities hold; a refund, link or callback only where the type is about one."""

    def __init__(self, payload: Mapping[str, Any], event_type: str) -> None:
        known = any(event_type in types for types in _NEEDED.values())
        payment = _payment_fact(_entity(payload, "payment"), _entity(payload, "order")) if known else None
        refund = _refund_fact(_entity(payload, "refund")) if event_type in _NEEDED["refund"] else None
        ended = event_type.partition(".")[2]
        link = _link_fact(_entity(payload, "payment_link"), ended) if event_type in _NEEDED["payment link"] else None
        callback = _callback_fact(_entity(payload, "callback")) if event_type in _NEEDED["callback"] else None
        self.payments = (payment,) if payment else ()
        self.refunds = (refund,) if refund else ()
        self.links = (link,) if link else ()
        self.callbacks = (callback,) if callback else ()

    def by_name(self) -> dict[str, tuple[object, ...]]:
        """As `_NEEDED` names them."""
        return {
            "payment": self.payments,
            "refund": self.refunds,
            "payment link": self.links,
            "callback": self.callbacks,
        }


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _entity(payload: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return _mapping(_mapping(payload.get(name)).get("entity"))


def _id(value: object) -> str | None:
    return value if isinstance(value, str) and _ID.fullmatch(value) else None


def _word(value: object) -> str | None:
    """A short printable string, or None: absent, empty, null and odd types are all the same to us."""
    return value if isinstance(value, str) and 0 < len(value) <= _LONGEST_WORD and value.isprintable() else None


def _unix(value: object) -> int | None:
    seconds = parse_amount(value)
    return seconds if seconds and seconds <= _LATEST else None


def _occurred_at(body: Mapping[str, Any], payload: Mapping[str, Any]) -> int | None:
    """Some published bodies carry `created_at` inside `payload`, some nowhere."""
    return _unix(body.get("created_at")) or _unix(payload.get("created_at"))


def _refs(payload: Mapping[str, Any]) -> Refs:
    """A callback names its ids as its signature covers them; everything else names them in its entities."""
    payment, refund = _entity(payload, "payment"), _entity(payload, "refund")
    link, callback = _entity(payload, "payment_link"), _entity(payload, "callback")
    order = _entity(payload, "order")
    number = link.get("reference_id") or callback.get("reference_id")
    order_id = _id(payment.get("order_id")) or _id(link.get("order_id")) or _id(callback.get("order_id"))
    return Refs(
        order_id=order_id or _order_id(order.get("id")),
        payment_id=_id(payment.get("id")) or _id(refund.get("payment_id")) or _id(callback.get("payment_id")),
        refund_id=_id(refund.get("id")),
        payment_link_id=_id(link.get("id")) or _id(callback.get("payment_link_id")),
        subscription_id=_id(_entity(payload, "subscription").get("id")) or _id(callback.get("subscription_id")),
        receipt=_word(number) or _word(order.get("receipt")),
    )


def _order_id(value: object) -> str | None:
    """One published link body shows its order's id without the prefix."""
    found = _id(value)
    return found if found is None or found.startswith(_ORDER_PREFIX) else _ORDER_PREFIX + found


def _payment_fact(entity: Mapping[str, Any], order: Mapping[str, Any]) -> PaymentFact | None:
    payment_id, status = _id(entity.get("id")), _word(entity.get("status"))
    if payment_id is None or status is None:
        return None
    order_id, amount = _id(entity.get("order_id")), parse_amount(entity.get("amount"))
    of_our_order = order_id == _order_id(order.get("id"))
    return PaymentFact(
        id=payment_id,
        status=status,
        captured=_is_capture(status, entity.get("captured")),
        amount=amount,
        currency=parse_currency(entity.get("currency")),
        created_at=_unix(entity.get("created_at")),
        method=_word(entity.get("method")),
        method_details=_method_details(entity),
        fee=parse_amount(entity.get("fee")),
        tax=parse_amount(entity.get("tax")),
        error=_error(entity) if status == "failed" else {},
        order_id=order_id,
        order_amount=_paid_in_full(order, amount) if of_our_order else None,
    )


def _paid_in_full(order: Mapping[str, Any], payment: int | None) -> int | None:
    """The amount of a provider order that is paid, where one payment of another amount did not do it alone."""
    amount = parse_amount(order.get("amount"))
    paid = order.get("status") == "paid" and amount == parse_amount(order.get("amount_paid"))
    return amount if paid and amount != payment else None


def _link_fact(entity: Mapping[str, Any], named: str) -> LinkFact | None:
    """A link without a status is what the event's name says of it."""
    link_id, status = _id(entity.get("id")), _word(entity.get("status")) or named
    if link_id is None:
        return None
    partial = entity.get("accept_partial")
    return LinkFact(
        id=link_id,
        status=status,
        amount=parse_amount(entity.get("amount")),
        currency=parse_currency(entity.get("currency")),
        accept_partial=partial if isinstance(partial, bool) else None,
        order_id=_id(entity.get("order_id")),
    )


def _callback_fact(entity: Mapping[str, Any]) -> CallbackFact | None:
    payment_id, signature = _id(entity.get("payment_id")), _word(entity.get("signature"))
    return CallbackFact(payment_id, signature) if payment_id and signature else None


def _notes(link: Mapping[str, Any]) -> dict[str, str]:
    """Short notes; `[]`, null and odd values are none, whole numbers are text."""
    notes = _mapping(link.get("notes"))
    texts = {name: str(value) if type(value) is int else value for name, value in notes.items()}
    return {name: text for name, value in texts.items() if (text := _word(value))}


def _refund_fact(entity: Mapping[str, Any]) -> RefundFact | None:
    """The snapshot decides, not the event's name: `refund.created` may already say `processed`."""
    refund_id, payment_id, status = _id(entity.get("id")), _id(entity.get("payment_id")), _word(entity.get("status"))
    if refund_id is None or payment_id is None:
        return None
    return RefundFact(
        id=refund_id,
        payment_id=payment_id,
        status=status or "pending",
        amount=parse_amount(entity.get("amount")),
        currency=parse_currency(entity.get("currency")),
        created_at=_unix(entity.get("created_at")),
    )


def _is_capture(status: str, flag: object) -> bool:
    """`captured: true` alone is none: published failed and authorised payments carry it."""
    return status == "captured" or (status == "refunded" and flag in (1, "1"))


def _method_details(entity: Mapping[str, Any]) -> dict[str, str]:
    card = _mapping(entity.get("card"))
    found = {
        "network": _word(card.get("network")),
        "last4": _word(card.get("last4")),
        "issuer": _word(card.get("issuer")),
        "wallet": _word(entity.get("wallet")),
        "bank": _word(entity.get("bank")),
        "vpaMasked": _masked_vpa(_word(entity.get("vpa"))),
    }
    return {name: value for name, value in found.items() if value}


def _masked_vpa(vpa: str | None) -> str | None:
    """`gaurav@okbank` -> `g***@okbank`: enough to recognise, too little to misuse."""
    if vpa is None:
        return None
    user, at, handle = vpa.partition("@")
    return f"{user[:1]}***{at}{handle}"


def _error(entity: Mapping[str, Any]) -> dict[str, str]:
    """The coded parts of a failure; descriptions are for people and may hold anything, so they stay in the raw body."""
    found = {name: _word(entity.get(f"error_{name}")) for name in ("code", "reason", "step", "source")}
    return {name: value for name, value in found.items() if value}
