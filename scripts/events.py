"""`paylatch events`: list, show and requeue stored events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from bson import ObjectId
from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import Progress

from models.documents import WebhookEvent
from models.errors import Refused, Unparseable
from models.states import EventStatus
from scripts.asking import age, confirm
from scripts.audit import audit, audit_done
from scripts.options import Positive
from scripts.output import masked, output, print_json, print_table
from scripts.session import Session, session
from webhook.payload import deeper_than, read_object
from webhook.requeue import DEFAULT_STATUSES, refusal, requeue

app = App(name="events", help="List, show and requeue stored events.")


@Parameter(name="*")
@dataclass(frozen=True)
class EventFilter:
    """Which events.

    Parameters
    ----------
    status
        One or more statuses: received, processing, completed, ignored, parked, failed, dead.
    type
        Event type, such as payment.captured.
    order
        The provider's order id or the payment's id.
    newer_than
        Received within this time: 30m, 12h, 7d.
    older_than
        Received before this time ago.
    error
        Text within the stored error, its detail or the outcome.
    """

    status: Annotated[list[EventStatus] | None, Parameter(negative=(), show_choices=False)] = None
    type: str | None = None
    order: str | None = None
    newer_than: str | None = None
    older_than: str | None = None
    error: str | None = None

    def query(self, now: datetime) -> dict[str, Any]:
        """The MongoDB filter. Raises `WrongArgument` for an age that cannot be read."""
        parts: list[dict[str, Any]] = []
        if self.status:
            parts.append({"status": {"$in": [str(status) for status in self.status]}})
        if self.type:
            parts.append({"eventType": self.type})
        if self.order:
            parts.append({"$or": [{"refs.orderId": self.order}, {"refs.paymentId": self.order}]})
        if self.newer_than:
            parts.append({"receivedAt": {"$gte": now - age(self.newer_than)}})
        if self.older_than:
            parts.append({"receivedAt": {"$lt": now - age(self.older_than)}})
        if self.error:
            text = {"$regex": re.escape(self.error), "$options": "i"}
            parts.append({"$or": [{name: text} for name in ("error", "errorDetail", "outcome.code", "outcome.detail")]})
        return {"$and": parts} if parts else {}

    def chosen(self) -> dict[str, Any]:
        """What was asked for, as the audit log keeps it."""
        return {name: value for name, value in vars(self).items() if value}


@app.command(name="list")
async def list_events(
    *,
    which: EventFilter | None = None,
    limit: Positive = 50,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List stored events, newest first.

    Example: `paylatch events list --status failed --status dead --newer-than 24h`

    Parameters
    ----------
    limit
        At most so many.
    as_json
        A JSON array instead of a table.
    """
    async with session() as now_open:
        query = (which or EventFilter()).query(now_open.clock.now())
        events = await WebhookEvent.find(query).sort("-receivedAt").limit(limit).to_list()
    if as_json:
        print_json([_summary(event) for event in events])
        return
    columns = ("event id", "type", "status", "outcome", "attempts", "duplicates", "received", "error")
    rows = [
        (
            e.event_id,
            e.event_type,
            e.status,
            e.outcome and e.outcome.code,
            e.attempts,
            e.duplicates.count,
            e.received_at,
            e.error,
        )
        for e in events
    ]
    print_table(f"{len(rows)} events", columns, rows, output())


def _summary(event: WebhookEvent) -> dict[str, Any]:
    """Everything but the bodies, named as they are stored."""
    summary: dict[str, Any] = event.model_dump(by_alias=True, exclude={"raw_body", "payload", "lease"})
    return summary


@app.command
async def show(
    event_id: str,
    *,
    reveal: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Show one event and its body; contact, email, vpa and card are masked.

    Example: `paylatch events show Rp71ZiqdEWusLa`

    Parameters
    ----------
    event_id
        The event's id, or its `_id`.
    reveal
        Show the personal data too; the audit log keeps who did.
    as_json
        JSON instead of text.
    """
    async with session() as now_open:
        event = await WebhookEvent.find_one(_by_id(event_id))
        if event is None:
            raise Refused(f"there is no event {event_id}")
        if reveal:
            await audit(now_open.db, "events show --reveal", {"eventId": event.event_id}, 1, now_open.clock.now())
    shown = {**_summary(event), "body": _body(event, reveal=reveal)}
    if as_json:
        print_json(shown)
        return 0
    console = output()
    rows = [(name, value) for name, value in shown.items() if name != "body" and value not in (None, [], {})]
    print_table(f"event {event.event_id}", ("field", "value"), rows, console)
    print_json(shown["body"])
    return 0


def _by_id(event_id: str) -> dict[str, Any]:
    if ObjectId.is_valid(event_id):
        return {"$or": [{"eventId": event_id}, {"_id": ObjectId(event_id)}]}
    return {"eventId": event_id}


def _body(event: WebhookEvent, *, reveal: bool) -> object:
    """The body as JSON; bytes that are no JSON are shown only when revealed: nothing in them can be masked."""
    try:
        body, reason = read_object(event.raw_body), "the body is nested too deeply to be shown as JSON"
    except Unparseable as error:
        body, reason = None, str(error)
    if body is not None and not deeper_than(body):
        return body if reveal else masked(body)
    return event.raw_body.decode("utf-8", "backslashreplace") if reveal else f"({reason}; --reveal shows the bytes)"


@app.command(name="requeue")
async def requeue_events(
    *event_ids: str,
    which: EventFilter | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    yes: Annotated[bool, Parameter(negative=())] = False,
    force: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Let events be processed again: by id, or all failed and dead ones that fit the filters.

    Always the same rows, never copies; what already took effect changes nothing a second time.

    Example: `paylatch events requeue --status dead --error unmatched --newer-than 7d`

    Parameters
    ----------
    event_ids
        Ids of events; without any, the filters choose.
    dry_run
        Only say what and how many.
    yes
        Do not ask.
    force
        Completed events too.
    as_json
        Say the result as JSON (needs --yes or --dry-run).
    """
    which = which or EventFilter()
    async with session() as now_open:
        rows = await _chosen(now_open, event_ids, which)
        now = now_open.clock.now()
        refused = {row["eventId"]: reason for row in rows if (reason := refusal(row, now, force=force))}
        ready = [row for row in rows if row["eventId"] not in refused]
        result: dict[str, Any] = {"chosen": len(rows), "ready": len(ready), "refused": refused, "requeued": 0}
        if not as_json:
            _preview(ready, refused)
        if ready and not dry_run:
            confirm(f"Requeue {len(ready)} events?", yes=yes, as_json=as_json)
            result["requeued"] = await _requeue(now_open, ready, {"ids": list(event_ids), **which.chosen()})
    if as_json:
        print_json(result)
    elif not dry_run:
        output().print(f"requeued {result['requeued']} of {len(rows)} events")
    complete = dry_run or result["requeued"] == len(rows)
    return 0 if complete and not (event_ids and refused) else 1


async def _chosen(now_open: Session, event_ids: Sequence[str], which: EventFilter) -> list[dict[str, Any]]:
    """The rows asked for. Raises `Refused` for an id that does not exist."""
    query = which.query(now_open.clock.now())
    if event_ids:
        query = {"$and": [{"$or": [_by_id(event_id) for event_id in event_ids]}, query]}
    elif not which.status:
        query = {"$and": [{"status": {"$in": list(DEFAULT_STATUSES)}}, query]}
    fields = {"eventId": 1, "eventType": 1, "status": 1, "lease": 1, "requeues": 1}
    rows = await now_open.db.events.find(query, fields).sort("receivedAt", 1).to_list()
    known = {row["eventId"] for row in rows} | {str(row["_id"]) for row in rows}
    if missing := [event_id for event_id in event_ids if event_id not in known]:
        raise Refused(f"there is no event {missing[0]} that fits; nothing was changed")
    return rows


def _preview(ready: Sequence[Mapping[str, Any]], refused: Mapping[str, str]) -> None:
    console = output()
    counts = Counter((row["status"], row["eventType"]) for row in ready)
    rows = [(status, event_type, count) for (status, event_type), count in sorted(counts.items())]
    print_table(f"{len(ready)} events to requeue", ("status", "type", "events"), rows, console)
    for event_id, reason in list(refused.items())[:20]:
        console.print(f"refused {event_id}: {reason}", markup=False)
    if len(refused) > 20:
        console.print(f"and {len(refused) - 20} more refused")


async def _requeue(now_open: Session, rows: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> int:
    entry = await audit(now_open.db, "events requeue", chosen, len(rows), now_open.clock.now())
    done = 0
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for row in progress.track(rows, description="requeue"):
            now = now_open.clock.now()
            done += await requeue(now_open.db, row, now, now_open.settings.processing.parked_for)
    await audit_done(now_open.db, entry, done, now_open.clock.now())
    return done
