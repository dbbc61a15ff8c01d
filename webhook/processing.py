"""Process one claimed event: parse its raw bytes, find its order, reduce, settle. The only way an order changes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pymongo
from bson import Binary
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure, PyMongoError

from models.alerts import announce, raise_alert
from models.clock import ServerClock
from models.crash import crash_point
from models.database import Database, RawDocument, is_outage
from models.errors import LeaseLost, OrderUnreadable, PayLatchError, Poison, PreconditionMissed, Retryable, Unparseable
from models.facts import Cause, Event
from models.known import Known
from models.leases import Claim
from models.parking import Names, wake_parked
from models.provider_ids import provider_ids
from models.reducer import Change, reduce
from models.settings import OrderSettings, ProcessingSettings
from models.states import EventStatus
from models.telemetry import Telemetry
from webhook.event_rows import FOR_PROVIDER, FOR_TERMS, PARK_PAUSES, EventRows, Job, parks_of, retry_delay
from webhook.orders import Found, expectation, find_order, read_order
from webhook.settlement import PAYMENT_INDEX, PaymentTaken, Settlement
from webhook.sources import Sources

PRECONDITION_TRIES = 5
PATIENCE = len(PARK_PAUSES)
"""How often an event waits for what the provider has not told yet; then it takes effect as far as it can."""
OUTAGE_PAUSE = 1.0
SHORTEST_DEADLINE = 0.1


@dataclass(slots=True)
class _Work:
    """One claimed row, under way; a row that is woken while it is being parked goes on under a new claim."""

    row: RawDocument
    claim: Claim
    session: AsyncClientSession


class Processor:
    """Runs jobs; whatever happens, the row ends finished, due again, or with a lease that will end."""

    def __init__(
        self,
        db: Database,
        rows: EventRows,
        clock: ServerClock,
        sources: Sources,
        processing: ProcessingSettings,
        orders: OrderSettings,
        telemetry: Telemetry,
    ) -> None:
        self._db, self._rows, self._clock, self._sources = db, rows, clock, sources
        self._processing, self._orders, self._telemetry = processing, orders, telemetry
        self._settlement = Settlement(db, clock)

    async def run(self, job: Job) -> None:
        """Work on one event under its lease; never raises."""
        async with job.session or self._db.client.start_session() as session:
            try:
                work = await self._take(job, session)
                if work is not None:
                    await self._work(work)
            except Exception as error:  # noqa: BLE001 - the row's lease or due time brings it back
                self._telemetry.emit("event.not_taken", row=str(job.row_id), error=_name(error))

    async def _take(self, job: Job, session: AsyncClientSession) -> _Work | None:
        """The row under our claim; a job that was queued claims it now, unless somebody else was faster."""
        if job.row is not None and job.claim is not None:
            crash_point("webhook.claimed")
            return _Work(job.row, job.claim, session)
        found = await self._rows.load(job.row_id)
        if found is None or not self._rows.is_due(found):
            return None
        if found["attempts"] >= self._processing.max_attempts and found["status"] == EventStatus.PROCESSING:
            await self._bury_abandoned(found)
            return None
        claim = Claim.of(self._clock, self._processing.lease, Binary(session.session_id["id"], 4))
        row = await self._rows.claim(found, claim)
        crash_point("webhook.claimed")
        return _Work(row, claim, session) if row is not None else None

    async def _bury_abandoned(self, row: RawDocument) -> None:
        """Ten workers died over this row: it is likely the row that kills them."""
        claim = Claim.of(self._clock, self._processing.lease)
        if await self._rows.claim(row, claim) is not None:
            await self._bury(row, claim, "worker_died", "every worker that took it died over it")

    async def _work(self, work: _Work) -> None:
        started = time.monotonic()
        error: str | None = None
        try:
            with pymongo.timeout(min(self._processing.deadline, max(work.claim.remaining, SHORTEST_DEADLINE))):
                outcome = await self._settle(work)
        except asyncio.CancelledError:
            await self._give_back(work)
            raise
        except LeaseLost:
            outcome = "lease_lost"
        except Exception as failure:  # noqa: BLE001 - every failure ends in the row
            error = _name(failure)
            outcome = await self._failed(work, failure)
        self._telemetry.emit(
            "event.processed",
            event_id=work.row["eventId"],
            type=work.row["eventType"],
            outcome=outcome,
            error=error,
            attempts=work.row["attempts"],
            duration_ms=round((time.monotonic() - started) * 1000, 1),
            age_ms=self._age_ms(work.row),
        )

    def _age_ms(self, row: RawDocument) -> int | None:
        """From the webhook's arrival until now; None while the server's time is not known."""
        with contextlib.suppress(Retryable):
            age: timedelta = self._clock.now() - row["receivedAt"]
            return round(age.total_seconds() * 1000)
        return None

    async def _give_back(self, work: _Work) -> None:
        """The process stops: let another one have the row now rather than when the lease ends."""
        with contextlib.suppress(PyMongoError, Retryable), pymongo.timeout(1):
            await self._rows.give_back(work.row["_id"], work.claim)

    async def _settle(self, work: _Work) -> str:
        """The event's effect; the outcome's code. Raises what `_failed` knows how to take."""
        row, claim = work.row, work.claim
        event = self._sources.parse(row)
        if reason := self._sources.not_for_us(row, event):
            await self._rows.finish(row["_id"], claim, EventStatus.IGNORED, reason)
            return reason
        found = await self._find(row, event)
        if found is None:
            return await self._park(work, event)
        if event.callbacks and self._sources.look_up and not _knows_capture(found.order, event):
            return await self._confirm(work, event, found)
        return await self._change(work, event, found)

    async def _confirm(self, work: _Work, event: Event, found: Found) -> str:
        """A callback: first what it says itself; then, unless the webhook was faster, what the provider's API says."""
        row, claim = work.row, work.claim
        if not parks_of(row, FOR_PROVIDER):
            return await self._change(work, event, found, then=FOR_PROVIDER)
        try:
            told = await self._sources.asked(row, event)
        except Retryable:  # the webhook, or reconciliation, will tell
            if row["parks"] < PATIENCE:
                await self._rows.park(row, claim, FOR_PROVIDER)
                return "parked"
            told = None
        event = _with_payments(event, told)  # which may name the order by more ids, and one of them another order
        return await self._change(work, event, await self._find(row, event) or found)

    async def _find(self, row: RawDocument, event: Event) -> Found | None:
        return await find_order(self._db, row["provider"], event, self._orders)

    async def _park(self, work: _Work, event: Event) -> str:
        """Written first, then looked up once more: an order that came in between is not missed."""
        row, claim = work.row, work.claim
        deadline = row.get("parkedUntil")
        if deadline is not None and deadline <= self._clock.now():
            await self._bury(row, claim, "unmatched", "its order never came")
            return "unmatched"
        await self._rows.park(row, claim)
        crash_point("webhook.parked")
        if await self._find(row, event) is None:
            return "parked"
        again = Claim.of(self._clock, self._processing.lease, claim.lsid)
        parked = await self._rows.load(row["_id"])
        if parked is None or parked["status"] != EventStatus.PARKED:
            return "parked"
        woken = await self._rows.claim(parked, again)
        if woken is None:
            return "parked"
        work.row, work.claim = woken, again
        return await self._settle(work)

    async def _change(self, work: _Work, event: Event, found: Found, then: str | None = None) -> str:
        """Reduce and commit; when somebody else wrote the order in between, read it again, at most five times.

        The event ends with it, or, where `then` says for what, waits.
        """
        row, order = work.row, found.order
        taken: frozenset[str] = frozenset()
        for _ in range(PRECONDITION_TRIES):
            change = self._reduce(order, event, found, taken)
            if change is None:
                await self._end(work, "already_applied", then)
                return "already_applied"
            if change.waiting and parks_of(row, FOR_TERMS) < PATIENCE:
                await self._rows.park(row, work.claim, FOR_TERMS)
                return "parked"
            try:
                await self._apply(work, order, change, then)
            except PaymentTaken:
                taken |= {change.set[PAYMENT_INDEX]}
            except (PreconditionMissed, PyMongoError) as error:
                if not _is_conflict(error):
                    raise
                self._telemetry.emit("order.conflict")
                await asyncio.sleep(random.uniform(0, 0.05))  # noqa: S311 - lets the other writer go first
            else:
                await self._tell(order, event, change)
                return "applied"
            order = await self._read_again(order)
        raise PreconditionMissed("the order is written faster than it can be read")

    async def _end(
        self, work: _Work, outcome: str, then: str | None, session: AsyncClientSession | None = None
    ) -> None:
        """Complete the event, or let it wait."""
        if then is None:
            await self._rows.finish(work.row["_id"], work.claim, EventStatus.COMPLETED, outcome, session=session)
        else:
            await self._rows.park(work.row, work.claim, then, session)

    async def _apply(self, work: _Work, order: RawDocument, change: Change, then: str | None) -> None:
        row = work.row
        for payment_id in change.waiting:  # before, so that a crash repeats it instead of losing it
            now, about = self._clock.now(), f"order {order['_id']}"
            await raise_alert(self._db, self._telemetry, "payment_terms_unknown", payment_id, now, about)
        cause = Cause(row["eventId"], row["eventType"], row["origin"])
        end = partial(self._end, work, "applied", then)
        await self._settlement.apply(end, work.session, order, change, cause)

    def _reduce(self, order: RawDocument, event: Event, found: Found, taken: frozenset[str]) -> Change | None:
        payment = order.get("payment", {})
        if not isinstance(payment, dict):
            raise OrderUnreadable("the order's `payment` is no document")
        expected, facts = expectation(order, self._orders), (*event.facts, *found.refs)
        return reduce(payment, facts, expected, self._clock.now(), taken, found.doubts)

    async def _read_again(self, order: RawDocument) -> RawDocument:
        again = await read_order(self._db, order["_id"], self._orders)
        if again is None:
            raise PreconditionMissed("the order was deleted in this moment")
        return again

    async def _tell(self, order: RawDocument, event: Event, change: Change) -> None:
        """Log what happened, and wake events that waited for what this one told.

        Failure policy: open. What is not woken here wakes by its own timer.
        """
        if change.status_from != change.status_to:
            self._telemetry.emit("order.moved", order=str(order["_id"]), to=str(change.status_to))
        for reason, ref in change.reviews:
            announce(self._telemetry, "payment_review", f"{reason}:{ref}", f"order {order['_id']}")
        told_terms = any(fact.order_amount is not None for fact in event.payments)
        if not told_terms and "payment.refs" not in change.set and "payment.links" not in change.set:
            return
        names = _names(order.get("payment"), change)
        with contextlib.suppress(PyMongoError):
            await wake_parked(self._db, names, self._clock.now())

    async def _failed(self, work: _Work, failure: Exception) -> str:
        """Write what follows from a failure; if even that fails, the lease ends and another worker comes."""
        row, claim = work.row, work.claim
        while True:
            try:
                with pymongo.timeout(max(claim.remaining, SHORTEST_DEADLINE)):  # a transaction of ours may hold the row
                    return await self._record_failure(row, claim, failure)
            except LeaseLost:
                return "lease_lost"
            except (PyMongoError, Retryable):
                if claim.remaining < 2 * OUTAGE_PAUSE:
                    return "unavailable"
                await asyncio.sleep(OUTAGE_PAUSE)

    async def _record_failure(self, row: RawDocument, claim: Claim, failure: Exception) -> str:
        if isinstance(failure, Poison):
            outcome = "unparseable" if isinstance(failure, Unparseable) else failure.code
            await self._bury(row, claim, outcome, _sentence(failure))
            return outcome
        if isinstance(failure, Retryable) or (isinstance(failure, PyMongoError) and is_outage(failure)):
            await self._rows.postpone(row["_id"], claim, _name(failure), retry_delay(1))
            return "unavailable"
        if row["attempts"] >= self._processing.max_attempts:
            await self._bury(row, claim, "gave_up", _name(failure))
            return "gave_up"
        await self._rows.retry(row["_id"], claim, _name(failure), _sentence(failure), retry_delay(row["attempts"]))
        return "failed"

    async def _bury(self, row: RawDocument, claim: Claim, outcome: str, detail: str) -> None:
        """Dead letter: the alert first, so that a crash in between repeats it instead of losing it."""
        kind = {"unmatched": "event_unmatched", "unparseable": "event_unparseable"}.get(outcome, "event_dead")
        await raise_alert(self._db, self._telemetry, kind, row["eventId"], self._clock.now(), f"{outcome}: {detail}")
        await self._rows.finish(row["_id"], claim, EventStatus.DEAD, outcome, detail)


def _knows_capture(order: Mapping[str, Any], event: Event) -> bool:
    """Whether the webhook was faster than the callback."""
    payment = order.get("payment")
    attempts = Known.stored(payment).attempts if isinstance(payment, dict) else {}
    return all(attempts.get(callback.payment_id, {}).get("captured") for callback in event.callbacks)


def _with_payments(event: Event, told: Event | None) -> Event:
    """The callback together with what the provider says of its payment; without that it is an unverified attempt."""
    if told is None:
        return event
    order_id, receipt = told.refs.order_id or event.refs.order_id, event.refs.receipt or told.refs.receipt
    return replace(event, payments=told.payments, refs=replace(event.refs, order_id=order_id, receipt=receipt))


def _names(payment: object, change: Change) -> Names:
    """All ids under which a parked event may know the order once it is changed; not only those of this event."""
    stored = payment if isinstance(payment, dict) else {}
    now = {**stored, "refs": change.set.get("payment.refs", stored.get("refs"))}
    return Names(orders=provider_ids(now, "order"), links=provider_ids(now, "payment_link"))


def _is_conflict(error: Exception) -> bool:
    return isinstance(error, PreconditionMissed) or (
        isinstance(error, PyMongoError) and error.has_error_label("TransientTransactionError") and not error.timeout
    )


def _name(failure: Exception) -> str:
    """Our own code, or the class and the server's code; never a driver's text."""
    if isinstance(failure, PayLatchError):
        return failure.code
    code = failure.code if isinstance(failure, OperationFailure) else None
    return f"{type(failure).__name__}:{code}" if code else type(failure).__name__


def _sentence(failure: Exception) -> str:
    """Our own text only: a driver's quotes whole documents."""
    return str(failure)[:300] if isinstance(failure, PayLatchError) else f"unexpected {type(failure).__name__}"
