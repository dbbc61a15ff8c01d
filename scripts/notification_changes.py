"""How an operator's change of notification rows goes: choose, show, ask, audit, change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from bson import ObjectId
from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress

from models.database import Database, RawDocument
from models.errors import Refused
from models.states import RowStatus
from scripts.asking import age, confirm
from scripts.audit import audit, audit_done
from scripts.output import output, print_json, print_table
from scripts.session import Session

REFUSED_SHOWN = 20


@Parameter(name="*")
@dataclass(frozen=True)
class RowFilter:
    """Which notifications.

    Parameters
    ----------
    status
        One or more statuses: pending, sending, sent, retry, unknown, held, dead, expired, suppressed, skipped.
    channel
        Such as email or inapp.
    notice
        Such as payment_completed.
    order
        The order's `_id`.
    reason
        The stored reason, such as rcpt_550 or gap_cap.
    newer_than
        Made within this time: 30m, 12h, 7d.
    older_than
        Made before this time ago.
    """

    status: Annotated[list[RowStatus] | None, Parameter(negative=(), show_choices=False)] = None
    channel: str | None = None
    notice: str | None = None
    order: str | None = None
    reason: str | None = None
    newer_than: str | None = None
    older_than: str | None = None

    def query(self, now: datetime) -> dict[str, Any]:
        """The MongoDB filter. Raises `WrongArgument` for an age that cannot be read."""
        plain = {"channel": self.channel, "notice": self.notice, "reason": self.reason}
        parts: list[dict[str, Any]] = [{name: value} for name, value in plain.items() if value]
        if self.status:
            parts.append({"status": {"$in": [str(status) for status in self.status]}})
        if self.order:
            parts.append({"orderId": {"$in": [self.order, *_object_id(self.order)]}})
        if self.newer_than:
            parts.append({"createdAt": {"$gte": now - age(self.newer_than)}})
        if self.older_than:
            parts.append({"createdAt": {"$lt": now - age(self.older_than)}})
        return {"$and": parts} if parts else {}

    def chosen(self) -> dict[str, Any]:
        """What was asked for, as the audit log keeps it."""
        return {name: value for name, value in vars(self).items() if value}


@Parameter(name="*")
@dataclass(frozen=True)
class How:
    """How to go about it.

    Parameters
    ----------
    dry_run
        Only say what and how many.
    yes
        Do not ask.
    as_json
        Say the result as JSON (needs --yes or --dry-run).
    """

    dry_run: Annotated[bool, Parameter(negative=())] = False
    yes: Annotated[bool, Parameter(negative=())] = False
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False


@dataclass(frozen=True)
class Change:
    """One kind of change; `default` is the query when neither keys nor filters choose."""

    verb: str
    done: str
    default: Mapping[str, Any]
    refusal: Callable[[RawDocument, datetime], str | None]
    deed: Callable[[Database, RawDocument, datetime], Awaitable[bool]]
    limit: int = 0
    """At most so many, the oldest first; 0 = all."""
    first: Callable[[Session], Awaitable[dict[str, Any]]] | None = None
    """Done once before the rows, even when there are none; what it returns becomes part of the result."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Further options, for the audit log."""


def by_key(key: str) -> dict[str, Any]:
    """A row's own key, or its `_id`."""
    return {"$or": [{"key": key}, *({"_id": one} for one in _object_id(key))]}


def _object_id(text: str) -> list[ObjectId]:
    return [ObjectId(text)] if ObjectId.is_valid(text) else []


async def change_rows(now_open: Session, change: Change, keys: Sequence[str], which: RowFilter, how: How) -> int:
    """Carry the change out on the rows that were asked for; the exit code."""
    rows = await _chosen(now_open, change, keys, which)
    now = now_open.clock.now()
    refused = {row["key"]: reason for row in rows if (reason := change.refusal(row, now))}
    ready = [row for row in rows if row["key"] not in refused]
    result: dict[str, Any] = {"chosen": len(rows), "ready": len(ready), "refused": refused, change.done: 0}
    if not how.as_json:
        _preview(change, ready, refused)
    if (ready or change.first) and not how.dry_run:
        confirm(f"{change.verb.capitalize()} {len(ready)} notifications?", yes=how.yes, as_json=how.as_json)
        asked = {"keys": list(keys), **which.chosen(), **change.asked}
        result |= await _carry_out(now_open, change, ready, asked)
    if how.as_json:
        print_json(result)
    elif not how.dry_run:
        output().print(f"{change.done} {result[change.done]} of {len(rows)} notifications")
    complete = how.dry_run or result[change.done] == len(rows)
    return 0 if complete and not (keys and refused) else 1


async def _chosen(now_open: Session, change: Change, keys: Sequence[str], which: RowFilter) -> list[RawDocument]:
    """The rows asked for. Raises `Refused` for a key that does not exist."""
    query = which.query(now_open.clock.now())
    if keys:
        query = {"$and": [{"$or": [by_key(key) for key in keys]}, query]}
    elif not which.status:
        query = {"$and": [change.default, query]}
    found = now_open.db.notification_log.find(query, {"message": 0}).sort("createdAt", 1).limit(change.limit)
    rows = await found.to_list()
    known = {row["key"] for row in rows} | {str(row["_id"]) for row in rows}
    if missing := [key for key in keys if key not in known]:
        raise Refused(f"there is no notification {missing[0]} that fits; nothing was changed")
    return rows


def _preview(change: Change, ready: Sequence[Mapping[str, Any]], refused: Mapping[str, str]) -> None:
    console = output()
    counts = Counter((row["status"], row["channel"], row["notice"], row.get("reason") or "") for row in ready)
    cells = [(*group, count) for group, count in sorted(counts.items())]
    columns = ("status", "channel", "notice", "reason", "notifications")
    print_table(f"{len(ready)} notifications to {change.verb}", columns, cells, console)
    for key, reason in list(refused.items())[:REFUSED_SHOWN]:
        console.print(f"refused {key}: {reason}", markup=False)
    if len(refused) > REFUSED_SHOWN:
        console.print(f"and {len(refused) - REFUSED_SHOWN} more refused")


async def _carry_out(
    now_open: Session, change: Change, rows: Sequence[RawDocument], asked: Mapping[str, Any]
) -> dict[str, Any]:
    db, clock = now_open.db, now_open.clock
    entry = await audit(db, f"notifications {change.verb}", asked, len(rows), clock.now())
    result = await change.first(now_open) if change.first else {}
    done = 0
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for row in progress.track(rows, description=change.verb):
            done += await change.deed(db, row, clock.now())
    await audit_done(db, entry, done, clock.now())
    return {**result, change.done: done}
