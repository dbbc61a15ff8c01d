"""Make one event take effect: the event's fence, the order's transition, ledger and fulfilment in one transaction."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any

import pymongo
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import DuplicateKeyError, PyMongoError

from models.alerts import record_alert
from models.clock import ServerClock
from models.crash import crash_point
from models.database import DURABLE, Database
from models.errors import PreconditionMissed
from models.facts import Cause
from models.reducer import MISSING, Change, LedgerEntry, numbered

COMMIT_TRIES = 3
COMMIT_WITHIN = 3.0
ABORT_WITHIN = 1.0
PAYMENT_INDEX = "payment.razorpayPaymentId"

End = Callable[[AsyncClientSession], Awaitable[None]]
"""The fenced write of the event's row, inside the same transaction; raises `LeaseLost`."""


class PaymentTaken(Exception):  # noqa: N818 - a finding, caught by the one caller
    """The unique index says that this payment belongs to another order."""


class Settlement:
    """Writes a reduced change. A missed precondition aborts everything and leaves no effect."""

    def __init__(self, db: Database, clock: ServerClock) -> None:
        self._db, self._clock = db, clock

    async def apply(
        self,
        end: End,
        session: AsyncClientSession,
        order: Mapping[str, Any],
        change: Change,
        cause: Cause,
    ) -> None:
        """Commit the change together with what becomes of its event.

        Raises `LeaseLost`, `PreconditionMissed` (read the order again), `PaymentTaken`, or a driver's error.
        """
        await session.start_transaction(write_concern=DURABLE)
        try:
            await end(session)
            await self._transition(order, change, cause, session)
            await self._record_money(order, change, session)
            crash_point("webhook.in_transaction")
            await _beyond_the_deadline(_commit(session))
        except DuplicateKeyError as error:
            if PAYMENT_INDEX in ((error.details or {}).get("keyPattern") or {}):
                raise PaymentTaken from None
            raise PreconditionMissed("another process wrote the same ledger row in this moment") from None
        finally:
            if session.in_transaction:
                await _beyond_the_deadline(_abort(session))
        crash_point("webhook.committed")

    async def _transition(
        self,
        order: Mapping[str, Any],
        change: Change,
        cause: Cause,
        session: AsyncClientSession,
    ) -> None:
        """The precondition is in the update: this version, this status; no match means somebody was faster."""
        stored = order.get("version", MISSING)
        entries = numbered(change, order.get("history"), self._clock.now(), cause.document())
        first = order.get("history", MISSING) is None  # null cannot be pushed to
        update: dict[str, Any] = {
            "$set": {**change.set, "version": _following(stored)},
            "$currentDate": {"payment.changedAt": True},
        }
        if entries and first:
            update["$set"]["history"] = entries
        elif entries:
            update["$push"] = {"history": {"$each": entries}}
        found = await self._db.orders.find_one_and_update(
            {"_id": order["_id"], "version": _exactly(stored), "payment.status": _exactly(change.status_from)},
            update,
            projection={"_id": 1},
            session=session,
        )
        if found is None:
            raise PreconditionMissed("the order was written by somebody else in this moment")

    async def _record_money(self, order: Mapping[str, Any], change: Change, session: AsyncClientSession) -> None:
        now = self._clock.now()
        for entry in change.ledger:
            document = _ledger_document(entry, order, now)
            await self._db.ledger.update_one(
                {"_id": entry.id}, {"$setOnInsert": document}, upsert=True, session=session
            )
        if change.fulfil:
            go_ahead = {"paymentId": change.set.get(PAYMENT_INDEX), "createdAt": now, "updatedAt": now}
            await self._db.fulfilments.update_one(
                {"_id": order["_id"]},
                {"$setOnInsert": go_ahead},
                upsert=True,
                session=session,
            )
        for reason, ref in change.reviews:
            await record_alert(self._db, "payment_review", f"{reason}:{ref}", now, f"order {order['_id']}", session)


def _following(stored: object) -> int:
    """The next version; shells and scripts write whole numbers as floats, and what is no number counts as 0."""
    return int(stored) + 1 if isinstance(stored, int | float) and float(stored).is_integer() else 1


def _exactly(stored: object) -> object:
    """A filter for a field as it was read; an absent field is not the same as null."""
    return {"$exists": False} if stored is MISSING else {"$eq": stored, "$exists": True}


def _ledger_document(entry: LedgerEntry, order: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    return {
        "entryType": entry.entry_type,
        "refId": entry.ref_id,
        "amount": entry.amount,
        "currency": entry.currency,
        "orderId": order["_id"],
        "userRef": order.get("userId"),
        "createdAt": now,
        "updatedAt": now,
    }


async def _beyond_the_deadline(end: Coroutine[Any, Any, None]) -> None:
    """End a transaction in a context that knows no deadline: the work's own may be over, and would leave it open."""
    await asyncio.create_task(end, context=contextvars.Context())


async def _commit(session: AsyncClientSession) -> None:
    """Commit; a lost reply is asked for again, which the server answers with what it did the first time."""
    for tries_left in reversed(range(COMMIT_TRIES)):
        try:
            with pymongo.timeout(COMMIT_WITHIN):
                await session.commit_transaction()
        except PyMongoError as error:
            if not tries_left or not error.has_error_label("UnknownTransactionCommitResult"):
                raise
        else:
            return


async def _abort(session: AsyncClientSession) -> None:
    """Free the order at once.

    Failure policy: open. A transaction that cannot be aborted ends with its lease (`killSessions`) or by itself.
    """
    with contextlib.suppress(PyMongoError), pymongo.timeout(ABORT_WITHIN):
        await session.abort_transaction()
