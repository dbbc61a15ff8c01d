"""Find an order by whatever id somebody has, and read everything that is stored about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bson import ObjectId

from models.database import Database, RawDocument
from models.errors import Refused
from models.settings import OrderSettings
from models.states import PAID, EventStatus, RowStatus, order_status
from scripts.order_parts import Records
from scripts.stored_values import mapping, mappings
from watcher.notices import encoded
from webhook.orders import expectation
from webhook.own_messages import review_event_id

MOST_EVENTS = 500
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_ID_PATHS = (
    "payment.razorpayOrderId",
    "payment.attempts.paymentId",
    "payment.razorpayPaymentId",
    "payment.transactionId",
    "payment.paymentLinkId",
    "payment.refs.id",
)
_PATHS_BY_REF = {
    "orderId": ("payment.razorpayOrderId", "payment.refs.id"),
    "paymentLinkId": ("payment.paymentLinkId", "payment.refs.id"),
    "paymentId": ("payment.attempts.paymentId", "payment.razorpayPaymentId"),
    "receipt": ("orderNumber",),
}


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
    events = await _naming(db, wanted)
    for query in _of_events(events):
        if found := await db.orders.find(query).limit(2).to_list():
            return _only(found, wanted)
    hint = f", but event {events[0]['eventId']} names it: see `paylatch orders unmatched`" if events else ""
    raise Refused(f"there is no order {wanted}{hint}")


async def _naming(db: Database, wanted: str) -> list[RawDocument]:
    """Events that name this id of a payment, refund, link or order."""
    names = ("paymentId", "refundId", "paymentLinkId", "orderId")
    query = {"$or": [{f"refs.{name}": wanted} for name in names]}
    return await db.events.find(query, {"refs": 1, "eventId": 1}).limit(20).to_list()


def _of_events(events: Iterable[RawDocument]) -> Iterator[dict[str, Any]]:
    """Queries for the orders that these events are about, by each id they name."""
    for event in events:
        for name, paths in _PATHS_BY_REF.items():
            if value := _ref(event, name):
                wanted = {"$in": _typed(value)} if name == "receipt" else value
                yield from ({path: wanted} for path in paths)


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
    """In order of receipt: those that name the order, a payment or a link of it, and those that changed it."""
    payment = mapping(order.get("payment"))
    causes = {mapping(entry.get("cause")).get("eventId") for entry in mappings(order.get("history"))}
    causing = {"eventId": {"$in": _texts([*causes, *_decisions(order)])}}
    changed = await db.events.find(causing, {"refs.orderId": 1}).to_list()  # its provider order may have been another
    refs = mappings(payment.get("refs"))
    entries = [*mappings(payment.get("attempts")), *mappings(payment.get("refunds"))]
    known = {
        "orderId": [
            payment.get("razorpayOrderId"),
            *_ids(refs, "order"),
            *(_ref(event, "orderId") for event in changed),
        ],
        "paymentLinkId": [payment.get("paymentLinkId"), *_ids(refs, "payment_link")],
        "paymentId": [payment.get("razorpayPaymentId"), *(entry.get("paymentId") for entry in entries)],
    }
    queries = [{f"refs.{name}": {"$in": texts}} for name, ids in known.items() if (texts := _texts(ids))]
    cursor = db.events.find({"$or": [*queries, causing]}, {"payload": 0}).sort([("receivedAt", 1), ("_id", 1)])
    return await cursor.limit(MOST_EVENTS + 1).to_list()


def _decisions(order: RawDocument) -> list[str]:
    """Ids of the events by which operators decided, or would: one that is stuck has left no trace in the order."""
    entries = mappings(mapping(order.get("payment")).get("review"))
    return [review_event_id(order["_id"], str(entry.get("reason")), str(entry.get("ref"))) for entry in entries]


def _ids(refs: Iterable[Mapping[str, Any]], kind: str) -> list[object]:
    return [ref.get("id") for ref in refs if ref.get("kind") == kind]


async def _alerts(
    db: Database, order: RawDocument, events: Iterable[RawDocument], rows: Iterable[RawDocument]
) -> list[RawDocument]:
    """Those that still stand: a dead event that was requeued since is no matter any more."""
    dead = [event["eventId"] for event in events if event["status"] == EventStatus.DEAD]
    payment = mapping(order.get("payment"))
    reviews, attempts = mappings(payment.get("review")), mappings(payment.get("attempts"))
    ids = [f"{kind}:{event}" for kind in ("event_dead", "event_unmatched", "event_unparseable") for event in dead]
    ids += [f"payment_review:{r.get('reason')}:{r.get('ref')}" for r in reviews if r.get("state") == "open"]
    kinds = {RowStatus.DEAD: "notification_dead", RowStatus.HELD: "notification_held"}
    ids += [f"{kinds[row['status']]}:{row['key']}" for row in rows if row["status"] in kinds]
    if order_status(payment.get("status")) not in PAID:
        ids += [f"payment_terms_unknown:{attempt.get('paymentId')}" for attempt in attempts]
    ids.append(f"history_shortened:{order['_id']}")
    return await db.alerts.find({"_id": {"$in": ids}}).sort("lastAt", -1).to_list()


def _ref(event: RawDocument, name: str) -> str:
    value = mapping(event.get("refs")).get(name)
    return value if isinstance(value, str) else ""


def _texts(values: Iterable[object]) -> list[str]:
    return sorted({value for value in values if isinstance(value, str) and value})
