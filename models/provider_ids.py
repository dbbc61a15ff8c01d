"""The ids under which a provider knows an order: the shop's own fields, and what was learned in `payment.refs`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

Kind = Literal["order", "payment_link"]

OWN_IDS: Mapping[Kind, str] = MappingProxyType({"order": "razorpayOrderId", "payment_link": "paymentLinkId"})
"""The shop's field in `payment` by the kind of its id."""


def provider_ids(payment: object, kind: Kind, provider: str | None = None) -> list[str]:
    """The ids of this kind, each once, the shop's own first; of one provider, or of all.

    `payment` may be anything that the shop's code left there.
    """
    if not isinstance(payment, Mapping):
        return []
    refs = payment.get("refs")
    learned = [
        ref.get("id")
        for ref in (refs if isinstance(refs, list) else [])
        if isinstance(ref, Mapping) and ref.get("kind") == kind and provider in {None, ref.get("provider")}
    ]
    ids = [payment.get(OWN_IDS[kind]), *learned]
    return list(dict.fromkeys(known for known in ids if isinstance(known, str) and known))
