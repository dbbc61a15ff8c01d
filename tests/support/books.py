"""What really came of orders, compared with what their histories imply."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from models.database import Database
from models.states import PAID, OrderStatus
from tests.support.truth import Truth
from watcher.notices import notices

_CHANNEL = ":email:customer"
_RANKS = {"pending": 0, "failed": 1}
_ENDS = frozenset({"sent", "dead", "expired", "suppressed", "skipped"})


def keys_of(order_id: object, history: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys, without channel and recipient, of the notices that a watcher makes of these history entries."""
    pushed = {f"history.{place}": entry for place, entry in enumerate(history)}
    change = {
        "operationType": "update",
        "documentKey": {"_id": order_id},
        "updateDescription": {"updatedFields": pushed},
        "wallTime": datetime.now(UTC),
    }
    return {notice.key("email", "customer").removesuffix(_CHANNEL) for notice in notices(change)}


def sound(stored: dict[str, Any], booked: list[dict[str, Any]]) -> None:
    """One credit per captured payment, sums that follow from what is known, a history without a gap."""
    payment, history = stored["payment"], stored.get("history", [])
    captures = {each["paymentId"]: each["amount"] for each in payment.get("attempts", []) if each["captured"]}
    credited = {row["refId"]: row["amount"] for row in booked if row["entryType"] == "capture"}
    assert credited == captures
    standing = [each for each in payment.get("refunds", []) if each["status"] == "processed"]
    assert payment.get("amountRefunded", 0) <= sum(each["amount"] for each in standing)
    assert payment.get("amountPaid", 0) <= sum(captures.values())
    assert [entry["seq"] for entry in history] == list(range(1, len(history) + 1))
    assert all(one["to"] == other["from"] for one, other in itertools.pairwise(history))
    facts = [(entry["fact"], entry["ref"], entry.get("reason")) for entry in history]
    assert len(facts) == len(set(facts))


def legal_move(before: object, now: object) -> None:
    """A paid order never becomes unpaid again, a failed one never pending, and the shop's own status stays."""
    if before in PAID:
        assert now in PAID
    elif before in _RANKS:
        assert now in PAID or _RANKS[str(now)] >= _RANKS[str(before)]
    elif before is not None and before not in set(OrderStatus):
        assert now == before


@dataclass(frozen=True)
class Books:
    """Everything that was written, read once."""

    events: Sequence[dict[str, Any]]
    orders: Mapping[object, dict[str, Any]]
    ledger: Sequence[dict[str, Any]]
    fulfilments: frozenset[object]
    rows: Sequence[dict[str, Any]]

    @classmethod
    async def read(cls, db: Database) -> Books:
        return cls(
            events=await db.events.find({}, {"eventId": 1, "status": 1}).to_list(),
            orders={order["_id"]: order async for order in db.orders.find({})},
            ledger=await db.ledger.find({}).to_list(),
            fulfilments=frozenset([row["_id"] async for row in db.fulfilments.find({}, {"_id": 1})]),
            rows=await db.notification_log.find({}).to_list(),
        )

    def ledger_of(self, order_id: object) -> list[str]:
        """Ids of the order's ledger entries."""
        return sorted(row["_id"] for row in self.ledger if row["orderId"] == order_id)


@dataclass(frozen=True)
class Reckoning:
    """What the books and the mailbox say, against the truth: nothing missing; extra only what a row announces."""

    truths: Mapping[str, Truth]
    """By order id."""
    books: Books
    copies: Mapping[str, int]
    """How many mails carry each Message-ID."""
    told: frozenset[str]
    """The notices that the shop mails to its customers."""

    @property
    def missing(self) -> set[str]:
        """What should be there and is not."""
        unfinished = {f"event {row['eventId']}" for row in self.books.events if row["status"] != "completed"}
        pending = {f"end of {row['key']}" for row in self.books.rows if row["status"] not in _ENDS}
        unsent = {f"mail of {row['key']}" for row in self._sent if not self.copies.get(row["providerMessageId"])}
        return unfinished | pending | unsent | (self._wanted - self._found)

    @property
    def extra(self) -> set[str]:
        """What is there and should not be; a mail that came twice is announced by its row's `unknownAt`."""
        ids = {row["providerMessageId"]: row for row in self._sent}
        silent = {
            f"copy of {message_id}"
            for message_id, count in self.copies.items()
            if message_id not in ids or (count > 1 and not ids[message_id].get("unknownAt"))
        }
        return silent | self._suppressed_in_vain | (self._found - self._wanted)

    @property
    def line(self) -> tuple[str, ...]:
        """events | ledger | rows | mails | verdict"""
        ledger = sum(len(truth.ledger) for truth in self.truths.values())
        completed = sum(row["status"] == "completed" for row in self.books.events)
        announced = sum(bool(row.get("unknownAt")) for row in self.books.rows)
        return (
            f"{completed}/{len(self.books.events)}",
            f"{len(self.books.ledger)}/{ledger}",
            f"{len(self.books.rows)}/{len(self._keys)}",
            f"{sum(self.copies.values())} for {len(self._sent)}, {announced} unknown",
            "WRONG" if self.missing or self.extra else "right",
        )

    @property
    def _sent(self) -> list[dict[str, Any]]:
        return [row for row in self.books.rows if row["status"] == "sent"]

    @property
    def _suppressed_in_vain(self) -> set[str]:
        """Only a failure that a later payment made good need not be told."""
        paid = {order_id for order_id, truth in self.truths.items() if truth.fulfilled}
        return {
            f"suppression of {row['key']}"
            for row in self.books.rows
            if row["status"] in _ENDS - {"sent"} and not (row["notice"] == "payment_failed" and row["orderId"] in paid)
        }

    @property
    def _keys(self) -> set[str]:
        notices = (key for truth in self.truths.values() for key in truth.notices)
        return {f"{key}{_CHANNEL}" for key in notices if key.split(":")[2] in self.told}

    @property
    def _wanted(self) -> set[str]:
        return self._keys.union(*(_claims(order_id, truth) for order_id, truth in self.truths.items()))

    @property
    def _found(self) -> set[str]:
        keys = {row["key"] for row in self.books.rows}
        return keys.union(*(_stored_claims(self.books, order_id) for order_id in self.books.orders))


def _claims(order_id: str, truth: Truth) -> set[str]:
    """What the truth says of an order, each as one name."""
    shipped = {f"{order_id} is shipped"} if truth.fulfilled else set()
    return {f"{order_id} is {truth.status}", *truth.ledger, *truth.notices, *shipped}


def _stored_claims(books: Books, order_id: Any) -> set[str]:
    """What the books say of an order, by the same names."""
    order = books.orders[order_id]
    history = order.get("history", [])
    gaps = {f"gap in {order_id}"} if [e["seq"] for e in history] != list(range(1, len(history) + 1)) else set()
    shipped = {f"{order_id} is shipped"} if order_id in books.fulfilments else set()
    ledger = books.ledger_of(order_id)
    return {f"{order_id} is {order['payment']['status']}", *ledger, *keys_of(order_id, history), *shipped, *gaps}
