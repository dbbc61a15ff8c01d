"""An alert is one row in `alerts`, one log line that says what to do, one metric.

It is open until an operator acknowledges it, or, where it tells of a condition, until the condition has been quiet for
a while: then it is resolved. It opens again when the same thing happens after that; what can happen anew under the same
name opens again, too, when it happens half an hour after it was acknowledged.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import DuplicateKeyError

from models.database import Database
from models.states import AlertState
from models.telemetry import Telemetry

ADVICE = {
    "event_unparseable": "authentic bytes that are no event: see `paylatch events show REF`",
    "event_dead": "an event gave up: see `paylatch events show REF`, mend the cause, then requeue it",
    "event_unmatched": "money for an order we never saw: see `paylatch events show REF`, insert it, requeue",
    "payment_review": "money that does not fit its order: `paylatch orders show PAYMENT`, then "
    "`paylatch orders review accept` or `reject`",
    "payment_terms_unknown": "whether this money fits, the provider has not told: see `paylatch orders show PAYMENT`; "
    "subscribe to payment_link.* and order.paid, or set payment.acceptPartial on the order",
    "change_unreadable": "a change of an order could not be understood: see watcher_dead_letters",
    "notification_dead": "a notification cannot be delivered: see `paylatch notifications list --status dead`",
    "notification_held": "messages wait for you: `paylatch notifications list --status held`, then release or resolve",
    "notifications_delayed": "a channel takes no messages; they are kept and tried again: look at its provider",
    "orders_collection_changed": "the orders collection was dropped or renamed: check what was done to it",
    "ledger_unknown_to_provider": "money is booked here that the provider does not know: look REF up in its dashboard",
    "ledger_differs": "ledger and provider disagree about this money: `paylatch orders show REF`, then its dashboard",
    "reconcile_failed": "a round of reconciliation could not be done: the detail says why; it is tried again",
    "stream_gap": "changes may have been missed; a sweep makes up for them: read what held the watcher up so long",
    "stream_stalled": "the change stream brings nothing while the database moves: look at the watcher's log",
    "checkpoint_delayed": "the watcher cannot store its place, so it reads no further: look at the database's writes",
    "change_too_large": "a change over 16 MB was stepped past and its order swept: keep such fields out of orders",
    "order_facts_lost": "an order lost a credited payment to a saved old copy; its events are evaluated again",
    "history_shortened": "an order lost entries of its payment history: somebody saved an old copy over it",
}

CONDITIONS = frozenset({"notifications_delayed", "stream_stalled", "checkpoint_delayed", "reconcile_failed"})
"""Kinds that tell of something lasting: when it stops, nobody has to do anything any more."""
ANEW = frozenset(
    {
        "stream_gap",
        "orders_collection_changed",
        "notification_held",
        "notification_dead",
        "event_dead",
        "event_unmatched",
        "change_too_large",
        "order_facts_lost",
        "history_shortened",
    }
)
"""Kinds whose repetition is a new misfortune; any other one repeats what somebody looks after."""
QUIET_AFTER = timedelta(minutes=30)
STILL_OPEN = MappingProxyType({"state": {"$nin": [AlertState.ACKNOWLEDGED, AlertState.RESOLVED]}})
"""The query; alerts of before there were states have none, and are open."""


async def resolve_quiet(db: Database, now: datetime) -> int:
    """Close alerts of conditions that have not been seen for half an hour; how many."""
    over = {
        "kind": {"$in": sorted(CONDITIONS)},
        "state": {"$ne": AlertState.RESOLVED},
        "lastAt": {"$lt": now - QUIET_AFTER},
    }
    result = await db.alerts.update_many(
        over, {"$set": {"state": AlertState.RESOLVED, "closedAt": now, "updatedAt": now}}
    )
    return result.modified_count


async def acknowledge(db: Database, alert_id: str, by: str, why: str, now: datetime) -> bool:
    """Note that somebody looks after an open alert; False when it is not open (any more)."""
    still_open = {"_id": alert_id, **STILL_OPEN}
    closed = {"state": AlertState.ACKNOWLEDGED, "by": by, "why": why, "closedAt": now, "updatedAt": now}
    result = await db.alerts.update_one(still_open, {"$set": closed})
    return result.matched_count == 1


async def record_alert(
    db: Database,
    kind: str,
    ref: str,
    now: datetime,
    detail: str = "",
    session: AsyncClientSession | None = None,
) -> None:
    """Write the row only; inside a transaction the log line and metric follow after the commit (`announce`)."""
    update: dict[str, Any] = {
        "$inc": {"count": 1},
        "$set": {"lastAt": now, "updatedAt": now, "detail": detail},
        "$setOnInsert": {"kind": kind, "ref": ref, "state": AlertState.OPEN, "firstAt": now, "createdAt": now},
    }
    alert = {"_id": f"{kind}:{ref}"}
    try:
        await db.alerts.update_one(alert, update, upsert=True, session=session)
    except DuplicateKeyError:
        if session is not None:
            raise  # it aborted the transaction; the caller starts again
        await db.alerts.update_one(alert, update)
    ended: list[dict[str, Any]] = [{"state": AlertState.RESOLVED}]
    if kind in ANEW:
        ended.append({"state": AlertState.ACKNOWLEDGED, "closedAt": {"$lt": now - QUIET_AFTER}})
    again = {**alert, "$or": ended}
    opened = {
        "$set": {"state": AlertState.OPEN, "notifiedAt": None},
        "$unset": {"by": "", "why": "", "closedAt": ""},
    }
    await db.alerts.update_one(again, opened, session=session)


def announce(telemetry: Telemetry, kind: str, ref: str, detail: str = "") -> None:
    """The log line and the metric of an alert."""
    telemetry.emit("alert.raised", kind=kind, ref=ref, detail=detail, todo=ADVICE[kind])


async def raise_alert(db: Database, telemetry: Telemetry, kind: str, ref: str, now: datetime, detail: str = "") -> None:
    """Row, log line and metric at once."""
    await record_alert(db, kind, ref, now, detail)
    announce(telemetry, kind, ref, detail)
