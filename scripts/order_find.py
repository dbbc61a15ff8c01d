"""Find an order by whatever id somebody has, and read everything that is stored about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bson import ObjectId

from models.database import Database, RawDocument
from models.errors import Refused
from models.settings import OrderSettings
from models.states import EventStatus, RowStatus
from scripts.order_story import Records
from watcher.notices import encoded
from webhook.orders import expectation

MOST_EVENTS = 500
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_ID_PATHS = (
    "payment.razorpayOrderId",
    "payment.attempts.paymentId",
    "payment.razorpayPaymentId",
    "payment.transactionId",
    "payment.paymentLinkId",
)


async def find(db: Database, wanted: str) -> RawDocument:
    """The one order that is meant. Raises `Refused` when there is none, or more than one."""
    if not wanted or not wanted.isprintable():
        raise Refused("that is no id of an order")
    ids = _typed(wanted)
    queries: list[dict[str, Any]] = [{"_id": {"$in": ids}}, {"orderNumber": {"$in": ids}}]
    queries += [{path: wanted} for path in _ID_PATHS]
    for query in queries:
        if found := await db.orders.find(query).limit(2).to_list():
            return _only(found, wanted)
    events = await db.events.find({"refs.paymentId": wanted}, {"refs": 1, "eventId": 1}).limit(20).to_list()
    for order_id in {_ref(event, "orderId") for event in events} - {""}:
        if found := await db.orders.find({"payment.razorpayOrderId": order_id}).limit(2).to_list():
            return _only(found, wanted)
    hint = await _hint(db, wanted, events)
    raise Refused(f"there is no order {wanted}{hint}")


def _typed(text: str) -> list[object]:
    """The ids that this text can stand for; `int~7`, `oid~...` and `str~...` say which type is meant."""
    tag, mark, rest = text.partition("~")
    kinds = (tag,) if mark and tag in {"str", "int", "oid"} else ("str", "int", "oid")
    bare = rest if len(kinds) == 1 else text
    ids: list[object] = [bare] if "str" in kinds else []
    if "int" in kinds and _INTEGER.fullmatch(bare):
        ids.append(int(bare))
    if "oid" in kinds and ObjectId.is_valid(bare):
        ids.append(ObjectId(bare))
    return ids


def _only(found: Sequence[RawDocument], wanted: str) -> RawDocument:
    if len(found) == 1:
        return found[0]
    first, second = (encoded(order["_id"]) for order in found)
    raise Refused(f"{wanted} fits more than one order: say {_tagged(first)} or {_tagged(second)}")


def _tagged(key: str) -> str:
    return key if "~" in key else f"str~{key}"


async def _hint(db: Database, wanted: str, events: Sequence[RawDocument]) -> str:
    event = events[0] if events else await db.events.find_one({"refs.orderId": wanted}, {"eventId": 1})
    return f", but event {event['eventId']} names it: see `paylatch orders unmatched`" if event else ""


async def gather(db: Database, order: RawDocument, settings: OrderSettings) -> Records:
    """Everything that is stored about the order."""
    events = await _events(db, order)
    mine = {"orderId": order["_id"]}
    rows = await db.notification_log.find(mine).sort("factAt", 1).to_list()
    readable = isinstance(order.get("payment", {}), Mapping)
    return Records(
        order=order,
        expected=expectation(order if readable else {**order, "payment": {}}, settings),
        events=events[:MOST_EVENTS],
        more_events=len(events) > MOST_EVENTS,
        ledger=await db.ledger.find(mine).sort("createdAt", 1).to_list(),
        fulfilment=await db.fulfilments.find_one({"_id": order["_id"]}),
        notifications=rows,
        alerts=await _alerts(db, order, events, rows),
    )


async def _events(db: Database, order: RawDocument) -> list[RawDocument]:
    """In order of receipt: those that name the order or a payment of it, and those that changed it."""
    payment = _mapping(order.get("payment"))
    causes = {_mapping(entry.get("cause")).get("eventId") for entry in _mappings(order.get("history"))}
    causing = {"eventId": {"$in": _texts(causes)}}
    changed = await db.events.find(causing, {"refs.orderId": 1}).to_list()  # its provider order may have been another
    order_ids = _texts([payment.get("razorpayOrderId"), *(_ref(event, "orderId") for event in changed)])
    entries = [*_mappings(payment.get("attempts")), *_mappings(payment.get("refunds"))]
    payment_ids = _texts([payment.get("razorpayPaymentId"), *(entry.get("paymentId") for entry in entries)])
    queries = [{"refs.orderId": {"$in": order_ids}}, {"refs.paymentId": {"$in": payment_ids}}, causing]
    cursor = db.events.find({"$or": queries}, {"payload": 0}).sort([("receivedAt", 1), ("_id", 1)])
    return await cursor.limit(MOST_EVENTS + 1).to_list()


async def _alerts(
    db: Database, order: RawDocument, events: Iterable[RawDocument], rows: Iterable[RawDocument]
) -> list[RawDocument]:
    """Those that still stand: a dead event that was requeued since is no matter any more."""
    dead = [event["eventId"] for event in events if event["status"] == EventStatus.DEAD]
    reviews = _mappings(_mapping(order.get("payment")).get("review"))
    ids = [f"{kind}:{event}" for kind in ("event_dead", "event_unmatched", "event_unparseable") for event in dead]
    ids += [f"payment_review:{r.get('reason')}:{r.get('ref')}" for r in reviews if r.get("state") == "open"]
    kinds = {RowStatus.DEAD: "notification_dead", RowStatus.HELD: "notification_held"}
    ids += [f"{kinds[row['status']]}:{row['key']}" for row in rows if row["status"] in kinds]
    ids.append(f"history_shortened:{order['_id']}")
    return await db.alerts.find({"_id": {"$in": ids}}).sort("lastAt", -1).to_list()


def _ref(event: RawDocument, name: str) -> str:
    value = _mapping(event.get("refs")).get(name)
    return value if isinstance(value, str) else ""


def _texts(values: Iterable[object]) -> list[str]:
    return sorted({value for value in values if isinstance(value, str) and value})


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
