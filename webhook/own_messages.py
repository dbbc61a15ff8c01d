"""Messages that we make ourselves, stored and processed like a provider's: one function changes orders, whoever asks.

A browser's callback and what the provider's API says are written in the provider's own shapes and read by its parser;
an operator's decision is read here. `rawBody` holds exactly these bytes, so each can be replayed like a webhook.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import bson.json_util
import orjson
from bson.errors import BSONError

from models.errors import Unparseable
from models.facts import DecisionFact, Event, Refs
from models.states import Origin, OwnEvent
from webhook.admission import Delivery
from webhook.payload import read_object
from webhook.providers import Provider

OWN = "paylatch"
"""`provider` of the messages that no provider has a part in."""


def callback_delivery(provider: Provider, named: Mapping[str, str]) -> Delivery:
    """A verified callback; its id is made of what was paid and the payment, so a buyer who reloads is a duplicate.

    `named` holds payment_id, signature and at least one of order_id, payment_link_id and subscription_id; reference_id
    too where the shop's order is known by nothing else.
    """
    raw = _body(OwnEvent.CALLBACK, callback=dict(named))
    subject = next(named[name] for name in ("order_id", "payment_link_id", "subscription_id") if name in named)
    event_id = f"callback:{subject}:{named['payment_id']}"
    return _delivery(provider.name, raw, event_id, Origin.CALLBACK, provider.parse(raw))


def reconcile_delivery(provider: Provider, event_type: OwnEvent, **entities: Mapping[str, Any]) -> Delivery:
    """What the API says now (payment, order, refund, payment_link); the same answer is the same event."""
    raw = _body(event_type, **entities)
    event_id = f"reconcile:{hashlib.sha256(raw).hexdigest()}"
    return _delivery(provider.name, raw, event_id, Origin.RECONCILE, provider.parse(raw))


def review_delivery(order_id: object, decision: DecisionFact) -> Delivery:
    """An operator's decision about one review entry; of several about the same entry the first counts."""
    entity = {
        "order": bson.json_util.dumps(order_id),
        "reason": decision.reason,
        "ref": decision.ref,
        "state": decision.state,
        "by": decision.by,
        "why": decision.why,
        "at": decision.at,
    }
    raw = _body(OwnEvent.REVIEWED, decision=entity)
    event_id = review_event_id(order_id, decision.reason, decision.ref)
    return _delivery(OWN, raw, event_id, Origin.OPERATOR, parse_own(raw))


def review_event_id(order_id: object, reason: str, ref: str) -> str:
    """The id of the one decision that can be made about a review entry."""
    entry = f"{bson.json_util.dumps(order_id)}\n{reason}\n{ref}"
    return f"operator:{hashlib.sha256(entry.encode()).hexdigest()[:32]}"


def parse_own(raw: bytes) -> Event:
    """Read a message whose provider is `paylatch`. Raises `Unparseable`."""
    body = read_object(raw)
    try:
        entity = body["payload"]["decision"]["entity"]
        order_key = bson.json_util.loads(entity["order"])
        fields = {name: entity[name] for name in ("reason", "ref", "state", "by", "why", "at")}
    except (KeyError, TypeError, ValueError, BSONError):
        raise Unparseable("the message is no decision about a review") from None
    return Event(
        event_type=str(body["event"]),
        account_id=None,
        occurred_at=fields["at"],
        refs=Refs(),
        decisions=(DecisionFact(**fields),),
        order_key=order_key,
        payload=body,
    )


def _body(event_type: str, **entities: Mapping[str, Any]) -> bytes:
    payload = {name: {"entity": entity} for name, entity in entities.items()}
    return orjson.dumps({"entity": "event", "event": event_type, "payload": payload}, option=orjson.OPT_SORT_KEYS)


def _delivery(provider: str, raw: bytes, event_id: str, origin: Origin, event: Event) -> Delivery:
    return Delivery(provider, raw, event_id, event_id_signed=True, signed_with=None, event=event, origin=origin)
