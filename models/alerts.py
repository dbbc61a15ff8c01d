"""An alert is one row in `alerts`, one log line that says what to do, one metric."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import DuplicateKeyError

from models.database import Database
from models.telemetry import Telemetry

ADVICE = {
    "event_unparseable": "authentic bytes that are no event: see `paylatch events show REF`",
    "event_dead": "an event gave up: see `paylatch events show REF`, mend the cause, then requeue it",
    "event_unmatched": "money for an order we never saw: see `paylatch events show REF`, insert it, requeue",
    "payment_review": "money that does not fit its order: `paylatch orders show PAYMENT`, then decide",
    "change_unreadable": "a change of an order could not be understood: see watcher_dead_letters",
    "notification_dead": "a notification cannot be delivered: see `paylatch notifications list --status dead`",
    "notifications_delayed": "a channel takes no messages; they are kept and tried again: look at its provider",
    "orders_collection_changed": "the orders collection was dropped or renamed: check what was done to it",
    "stream_gap": "changes may have been missed; a sweep makes up for them: read what held the watcher up so long",
    "stream_stalled": "the change stream brings nothing while the database moves: look at the watcher's log",
    "checkpoint_delayed": "the watcher cannot store its place, so it reads no further: look at the database's writes",
    "change_too_large": "a change over 16 MB was stepped past and its order swept: keep such fields out of orders",
    "order_facts_lost": "an order lost a credited payment to a saved old copy; its events are evaluated again",
    "history_shortened": "an order lost entries of its payment history: somebody saved an old copy over it",
}


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
        "$setOnInsert": {"kind": kind, "ref": ref, "firstAt": now, "createdAt": now},
    }
    try:
        await db.alerts.update_one({"_id": f"{kind}:{ref}"}, update, upsert=True, session=session)
    except DuplicateKeyError:
        if session is not None:
            raise  # it aborted the transaction; the caller starts again
        await db.alerts.update_one({"_id": f"{kind}:{ref}"}, update)


def announce(telemetry: Telemetry, kind: str, ref: str, detail: str = "") -> None:
    """The log line and the metric of an alert."""
    telemetry.emit("alert.raised", kind=kind, ref=ref, detail=detail, todo=ADVICE[kind])


async def raise_alert(db: Database, telemetry: Telemetry, kind: str, ref: str, now: datetime, detail: str = "") -> None:
    """Row, log line and metric at once."""
    await record_alert(db, kind, ref, now, detail)
    announce(telemetry, kind, ref, detail)
