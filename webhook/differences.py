"""Where the shop and the provider's API disagree about orders, captures and refunds. Only looks, and changes nothing.

What a payment or refund would change here is asked of the same reducer that events go through, so a difference is
exactly what a lost event would still bring.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from bson import ObjectId

from models.database import Database, RawDocument
from models.duties import cancelled
from models.errors import OrderUnreadable, ProviderRefused
from models.facts import Event, LinkFact, PaymentFact, RefundFact
from models.provider_ids import provider_ids
from models.reducer import Change, reduce
from models.reviews import taken_elsewhere
from models.settings import OrderSettings, Settings
from models.states import OrderStatus
from webhook.admission import Delivery
from webhook.answers import Kind, link_deliveries, message, payment_delivery, refund_delivery
from webhook.orders import Found, expectation, find_order
from webhook.providers import Provider
from webhook.providers.razorpay_api import CONNECTIONS, PAGE, Json, RazorpayApi

Progress = Callable[[str, int], None]
"""Told at how many of what has been looked so far."""

UNKNOWN_THERE, DIFFERS = "ledger_unknown_to_provider", "ledger_differs"
_ENTRIES: Mapping[Kind, str] = {"payment": "capture", "refund": "refund"}
_PREFIXES: Mapping[Kind, str] = {"payment": "pay_", "refund": "rfnd_"}
_UNPAID = (OrderStatus.PENDING, OrderStatus.FAILED)
_BATCH = 20  # a cursor that is not read from for ten minutes is closed, and each order takes its time
_ORDER_FIELDS = {"createdAt": 1, "payment": 1, "history": 1, "version": 1}


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is known on one side only, or differently."""

    kind: Literal["payment", "refund", "payment_link", "order"]
    ref: str
    """The provider's id."""
    order: object
    """`_id` of the shop's order; None: it is not here."""
    amount: int | None
    """In the smallest unit."""
    currency: str | None
    missing: Literal["here", "there", "differs"]
    detail: str
    repair: Delivery | None = None
    """The message that puts it right; None: a person must look."""
    alert: str | None = None

    def document(self) -> dict[str, Any]:
        """As JSON names things."""
        return {
            "kind": self.kind,
            "ref": self.ref,
            "orderId": self.order,
            "amount": self.amount,
            "currency": self.currency,
            "missing": self.missing,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class Period:
    """From `since` until before `until`."""

    since: datetime
    until: datetime

    @property
    def unix(self) -> tuple[int, int]:
        """In unix seconds, as the API wants it."""
        return round(self.since.timestamp()), round(self.until.timestamp())


class Comparison:
    """Looks at both sides and counts at what: orders, payments, refunds, ledger; `foreign` is money of others."""

    def __init__(self, db: Database, api: RazorpayApi, provider: Provider, settings: Settings, tell: Progress) -> None:
        self._db, self._api, self._provider, self._tell = db, api, provider, tell
        self._settings, self._orders = settings.reconcile, settings.orders
        self.looked: Counter[str] = Counter()

    async def unpaid_orders(self, now: datetime) -> AsyncIterator[Difference]:
        """What the provider knows of each order that is unpaid here and has been quiet for a while, asked by its id."""
        since, until = (now - timedelta(seconds=age) for age in (self._settings.within, self._settings.older_than))
        wanted = {"payment.status": {"$in": list(_UNPAID)}}
        unpaid = self._db.orders.find(wanted, self._fields()).batch_size(_BATCH)
        async for orders in _grouped((order async for order in unpaid if quiet(order, since, until)), CONNECTIONS):
            for difference in await self._of_orders(orders):
                yield difference
            self._count("orders", len(orders))

    async def moved(self, kind: Kind, period: Period) -> AsyncIterator[Difference]:
        """Captures or refunds of a period that are on one side only, in both directions."""
        seen: set[str] = set()
        listed = self._api.payments(*period.unix) if kind == "payment" else self._api.refunds(*period.unix)
        async for entities in _grouped(listed, PAGE):
            booked = await self._booked(kind, [entity["id"] for entity in entities])
            for entity in entities:
                if difference := await self._compared(kind, entity, booked.get(entity["id"])):
                    yield difference
            seen |= {entity["id"] for entity in entities}
            self._count(f"{kind}s", len(entities))
        entries = {"entryType": _ENTRIES[kind], "createdAt": {"$gte": period.since, "$lt": period.until}}
        async for entry in self._db.ledger.find(entries):
            self._count("ledger")
            ours = str(entry["refId"]).startswith(_PREFIXES[kind]) and entry["refId"] not in seen
            if ours and (difference := await self._confirmed(kind, entry)):
                yield difference

    async def remains(self, difference: Difference) -> bool:
        """Whether its message would still change something here."""
        if difference.repair is None or difference.kind == "order":
            return True
        return await self._examined(difference.kind, difference.repair) is not None

    def _count(self, what: str, more: int = 1) -> None:
        self.looked[what] += more
        self._tell(what, self.looked[what])

    def _fields(self) -> dict[str, int]:
        own = (self._orders.amount_path, self._orders.currency_path)
        return {**_ORDER_FIELDS, **{path.split(".")[0]: 1 for path in own if path}}

    async def _of_orders(self, orders: list[RawDocument]) -> list[Difference]:
        """Asked for at once; when one of them fails, the others end with it."""
        tasks = [asyncio.create_task(self._of_order(order)) for order in orders]
        try:
            return [difference for found in await asyncio.gather(*tasks) for difference in found]
        finally:
            await cancelled(*tasks)

    async def _of_order(self, order: RawDocument) -> list[Difference]:
        """The payments of all its provider orders; the provider's order itself is asked for when that may matter."""
        found = [
            difference
            for link in provider_ids(order.get("payment"), "payment_link", self._provider.name)
            for difference in await self._of_link(order, link)
        ]
        for order_id in provider_ids(order.get("payment"), "order", self._provider.name):
            try:
                payments = await self._api.order_payments(order_id)
            except ProviderRefused:
                detail = "the provider does not know this order: is it of the other mode, or mistyped?"
                found.append(Difference("order", order_id, order["_id"], None, None, "there", detail))
                continue
            for payment in payments:
                if self._may_matter(order, payment):
                    delivery = await payment_delivery(self._api, self._provider, payment)
                    found += [d] if delivery and (d := await self._examined("payment", delivery)) else []
        return found

    async def _of_link(self, order: RawDocument, link_id: str) -> list[Difference]:
        """How a payment link stands, and the payments that came by it."""
        try:
            deliveries = await link_deliveries(self._api, self._provider, link_id)
        except ProviderRefused:
            detail = "the provider does not know this payment link: is it of the other mode, or mistyped?"
            return [Difference("payment_link", link_id, order["_id"], None, None, "there", detail)]
        kinds: list[Kind] = ["payment" if d.event and d.event.payments else "payment_link" for d in deliveries]
        examined = [await self._examined(kind, d) for kind, d in zip(kinds, deliveries, strict=True)]
        return [difference for difference in examined if difference]

    def _may_matter(self, order: RawDocument, payment: Json) -> bool:
        """A capture always may: what its order says besides can still complete an order that stays unpaid."""
        delivery = message(self._provider, "payment", payment=payment)
        if delivery is None or delivery.event is None:
            return False
        captured = any(fact.captured for fact in delivery.event.payments)
        try:
            return captured or news(Found(order), delivery.event, self._orders) is not None
        except OrderUnreadable:
            return True

    async def _booked(self, kind: Kind, refs: list[str]) -> dict[str, RawDocument]:
        ids = [f"{_ENTRIES[kind]}:{ref}" for ref in refs]
        return {entry["refId"]: entry async for entry in self._db.ledger.find({"_id": {"$in": ids}})}

    async def _compared(self, kind: Kind, entity: Json, booked: RawDocument | None) -> Difference | None:
        """The API's answer against the ledger, and against the order where the ledger does not settle it."""
        alone = message(self._provider, kind, **{kind: entity})
        if alone is None or alone.event is None:
            return Difference(kind, entity["id"], None, None, None, "differs", "the provider's answer cannot be read")
        fact = _money(alone.event)
        has_moved = fact.captured if isinstance(fact, PaymentFact) else fact.status == "processed"
        if booked is not None and (wrong := _disagreement(fact, booked)):
            return Difference(
                kind, fact.id, booked["orderId"], fact.amount, fact.currency, "differs", wrong, alert=DIFFERS
            )
        if has_moved == (booked is not None) and (has_moved or kind == "payment"):
            return None
        delivery = await self._whole(kind, entity)
        difference = await self._examined(kind, delivery) if delivery else None
        if difference or not has_moved or delivery is None or not await self._is_unbooked(kind, fact, delivery):
            return difference
        detail = "the order knows it and the ledger does not: is its amount unreadable, or was its entry deleted?"
        return Difference(kind, fact.id, None, fact.amount, fact.currency, "here", detail)

    async def _is_unbooked(self, kind: Kind, fact: PaymentFact | RefundFact, delivery: Delivery) -> bool:
        """Looked up once more, since its webhook may just have arrived; what is not ours need not be booked."""
        event = delivery.event
        found = await find_order(self._db, self._provider.name, event, self._orders) if event else None
        return found is not None and not await self._booked(kind, [fact.id])

    async def _whole(self, kind: Kind, entity: Json) -> Delivery | None:
        if kind == "payment":
            return await payment_delivery(self._api, self._provider, entity)
        return await refund_delivery(self._api, self._provider, entity)

    async def _confirmed(self, kind: Kind, entry: RawDocument) -> Difference | None:
        """A booked entry that the list lacks is asked for by its id: lists lag, and periods are of different clocks."""
        ask = self._api.payment if kind == "payment" else self._api.refund
        try:
            entity = await ask(entry["refId"])
        except ProviderRefused:
            detail = "it is booked here and the provider does not know it"
            facts = (entry["refId"], entry["orderId"], entry["amount"], entry["currency"])
            return Difference(kind, *facts, "there", detail, alert=UNKNOWN_THERE)
        return await self._compared(kind, entity, entry)

    async def _examined(self, kind: Kind, delivery: Delivery) -> Difference | None:
        """What the whole answer would change here, or None; money that names no order of the provider's is not ours."""
        event = delivery.event
        if event is None:
            return None
        fact, found = _about(event), await find_order(self._db, self._provider.name, event, self._orders)
        difference = Difference(kind, fact.id, None, fact.amount, fact.currency, "here", "", delivery)
        if found is None:
            if event.refs.order_id is None and event.refs.payment_link_id is None:
                self._count("foreign")
                return None
            return replace(difference, detail=f"no order here has {event.refs.order_id or event.refs.payment_link_id}")
        try:
            change = news(found, event, self._orders)
        except OrderUnreadable as error:
            return replace(difference, order=found.order["_id"], detail=str(error), repair=None)
        return replace(difference, order=found.order["_id"], detail=_words(change)) if change else None


def news(found: Found, event: Event, settings: OrderSettings) -> Change | None:
    """What an event would change, apart from details of what is known. Raises `OrderUnreadable`."""
    order = found.order
    payment = order.get("payment") or {}
    if not isinstance(payment, dict):
        raise OrderUnreadable("the order's `payment` is no document")
    never_stored = datetime.min  # noqa: DTZ901 - it would stand in for a missing time of something that is not written
    facts = (*event.facts, *found.refs)
    taken = taken_elsewhere(payment)  # the database would say it again
    change = reduce(payment, facts, expectation(order, settings), never_stored, taken, found.doubts)
    return change if change and (change.history or change.ledger) else None


def quiet(order: Mapping[str, Any], since: datetime, until: datetime) -> bool:
    """Whether an order's last sign of life lies between the two; one of which no time is known is always looked at."""
    payment, born = order.get("payment"), order.get("createdAt")
    if not isinstance(born, datetime) and isinstance(order["_id"], ObjectId):
        born = order["_id"].generation_time
    times = (born, payment.get("changedAt") if isinstance(payment, dict) else None)
    known = [time for time in times if isinstance(time, datetime)]
    return not known or since <= max(known) <= until


def _about(event: Event) -> PaymentFact | RefundFact | LinkFact:
    """What the message is about."""
    return event.links[0] if event.links and not event.payments else _money(event)


def _money(event: Event) -> PaymentFact | RefundFact:
    """The money that the message is about; a refund stands beside its payment, a payment beside its link."""
    return event.refunds[0] if event.refunds else event.payments[0]


def _disagreement(fact: PaymentFact | RefundFact, booked: RawDocument) -> str | None:
    ours, theirs = (booked["amount"], booked["currency"]), (fact.amount, fact.currency)
    if ours != theirs:
        return f"the ledger says {ours[0]} {ours[1]}, the provider {theirs[0]} {theirs[1]} (smallest unit)"
    if isinstance(fact, PaymentFact) and not fact.captured:
        return f"the ledger says captured, the provider {fact.status}"
    return None


def _words(change: Change) -> str:
    facts = ", ".join(dict.fromkeys(str(entry["fact"]).replace("_", " ") for entry in change.history))
    moved = f" ({change.status_from} → {change.status_to})" if change.status_from != change.status_to else ""
    return f"{facts or 'not booked'}{moved}"


async def _grouped(items: AsyncIterable[Any], size: int) -> AsyncIterator[list[Any]]:
    group: list[Any] = []
    async for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
