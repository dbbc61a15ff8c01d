"""What a browser brings back from Razorpay, and what its signature covers: ids, with the API key's secret."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["order", "subscription", "payment_link"]

UNKNOWN_ID = "order_00000000000000"
"""Stands in for the stored id of an order that we do not have, so that its refusal takes as long as any other."""
PAID = "paid"
_SIGNATURE = re.compile(r"[0-9a-fA-F]{64}")
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PAYMENT_ID = re.compile(r"pay_[A-Za-z0-9_.-]{1,60}")
_SUBSCRIPTION_ID = re.compile(r"sub_[A-Za-z0-9_.-]{1,60}")
_STATUS = re.compile(r"[a-z_]{1,40}")
_LONGEST_REFERENCE = 100
_PREFIX = "razorpay_"


@dataclass(frozen=True, slots=True)
class Callback:
    """Well-formed and not yet believed; `subject_id` is the order's, the subscription's or the link's id.

    The prefixes of payments and subscriptions are checked, since a signature over `order|payment` would else be one
    over `payment|subscription` too.
    """

    kind: Kind
    subject_id: str
    payment_id: str
    signature: str
    """64 hex characters in lower case."""
    reference_id: str = ""
    link_status: str = PAID

    def message(self, stored_id: str) -> bytes:
        """What the provider signed if the subject is the one that we have stored under this id."""
        parts = {
            "order": (stored_id, self.payment_id),
            "subscription": (self.payment_id, stored_id),
            "payment_link": (stored_id, self.reference_id, self.link_status, self.payment_id),
        }
        return "|".join(parts[self.kind]).encode()

    def is_signed(self, key_secret: bytes, stored_id: str) -> bool:
        """Compared in constant time."""
        true = hmac.digest(key_secret, self.message(stored_id), hashlib.sha256)
        return hmac.compare_digest(true, bytes.fromhex(self.signature))


def single(pairs: Iterable[tuple[str, object]]) -> dict[str, str] | None:
    """The provider's fields by name without its prefix; None when one stands twice or is no text."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name.startswith(_PREFIX):
            short = name.removeprefix(_PREFIX)
            if short in found or not isinstance(value, str):
                return None
            found[short] = value
    return found


def read_checkout(fields: Mapping[str, str]) -> Callback | None:
    """What the checkout's handler received, of an order or of a subscription; None when it cannot be that."""
    payment_id = _matching(_PAYMENT_ID, fields.get("payment_id"))
    order_id, subscription_id = fields.get("order_id"), fields.get("subscription_id")
    signature = _signature(fields)
    if payment_id is None or signature is None or (order_id is None) == (subscription_id is None):
        return None
    if order_id is not None:
        return Callback("order", order_id, payment_id, signature) if _matching(_ID, order_id) else None
    if subscription_id is None or not _matching(_SUBSCRIPTION_ID, subscription_id):
        return None
    return Callback("subscription", subscription_id, payment_id, signature)


def read_link(fields: Mapping[str, str]) -> Callback | None:
    """What a payment link's page adds to the address that it sends the buyer to; None when it cannot be that."""
    link_id = _matching(_ID, fields.get("payment_link_id"))
    status = _matching(_STATUS, fields.get("payment_link_status"))
    reference, payment_id = fields.get("payment_link_reference_id", ""), fields.get("payment_id", "")
    signature = _signature(fields)
    if link_id is None or status is None or signature is None:
        return None
    if len(reference) > _LONGEST_REFERENCE or not reference.isprintable():
        return None
    if not _PAYMENT_ID.fullmatch(payment_id) and (payment_id or status == PAID):  # an unpaid link may name none
        return None
    return Callback("payment_link", link_id, payment_id, signature, reference, status)


def _signature(fields: Mapping[str, str]) -> str | None:
    signature = _matching(_SIGNATURE, fields.get("signature"))
    return signature and signature.lower()


def _matching(pattern: re.Pattern[str], value: str | None) -> str | None:
    return value if value is not None and pattern.fullmatch(value) else None
