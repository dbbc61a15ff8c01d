"""`paylatch notifications`: what was told to whom, what was not, and what a person does about it."""

from __future__ import annotations

import getpass
from functools import partial
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from models.documents import NotificationRow
from models.errors import Refused
from models.states import RowStatus
from scripts.audit import audit
from scripts.notification_changes import Change, How, RowFilter, by_key, change_rows
from scripts.options import Count, Positive
from scripts.output import MASK, output, print_json, print_table
from scripts.session import Session, session
from watcher import interventions
from watcher.cap import in_force, lift
from watcher.rows import GAP_CAP, NotificationRows

app = App(name="notifications", help="List, show, retry, release and resolve notifications.")


@app.command(name="list")
async def list_notifications(
    *,
    which: RowFilter | None = None,
    limit: Positive = 50,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List notification rows, newest first. Messages and addresses are not shown.

    Example: `paylatch notifications list --status dead --status unknown`

    Parameters
    ----------
    limit
        At most so many.
    as_json
        A JSON array instead of a table.
    """
    async with session() as now_open:
        query = (which or RowFilter()).query(now_open.clock.now())
        rows = await NotificationRow.find(query).sort("-createdAt").limit(limit).to_list()
    if as_json:
        print_json([_summary(row) for row in rows])
        return
    columns = ("key", "status", "attempts", "reason", "fact", "sent")
    cells = [(row.key, row.status, row.attempts, row.reason, row.fact_at, row.sent_at) for row in rows]
    print_table(f"{len(rows)} notifications", columns, cells, output())


def _summary(row: NotificationRow) -> dict[str, Any]:
    """Everything but the message, named as it is stored."""
    summary: dict[str, Any] = row.model_dump(by_alias=True, exclude={"message", "lease"}, mode="python")
    return summary


@app.command
async def show(
    key: str,
    *,
    reveal: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Show one notification and the message that was frozen at its first sending; the address is masked.

    Example: `paylatch notifications show order:1001:payment_completed:email:customer`

    Parameters
    ----------
    key
        The notification's key, or its `_id`.
    reveal
        Show the address too; the audit log keeps who did.
    as_json
        JSON instead of text.
    """
    async with session() as now_open:
        row = await NotificationRow.find_one(by_key(key))
        if row is None:
            raise Refused(f"there is no notification {key}")
        if reveal:
            await audit(now_open.db, "notifications show --reveal", {"key": row.key}, 1, now_open.clock.now())
    shown = {**_summary(row), "message": _message(row, reveal=reveal)}
    if as_json:
        print_json(shown)
        return 0
    cells = [(name, value) for name, value in shown.items() if name != "message" and value not in (None, [], {})]
    print_table(f"notification {row.key}", ("field", "value"), cells, output())
    print_json(shown["message"])
    return 0


def _message(row: NotificationRow, *, reveal: bool) -> dict[str, Any] | None:
    if row.message is None or reveal:
        return row.message
    return {**row.message, "address": MASK}


@app.command
async def retry(
    *keys: str,
    which: RowFilter | None = None,
    how: How | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Let notifications be sent again: by key, or all dead ones that fit the filters.

    Dead, held, unknown and skipped ones; always the same row. It is worded anew unless a copy may be out already.

    Example: `paylatch notifications retry --status dead --reason rcpt_550 --newer-than 12h`

    Parameters
    ----------
    keys
        Keys of notifications; without any, the filters choose.
    force
        Expired ones too, and whatever tells of a fact that is too old.
    """
    async with session() as now_open:
        expire_after = now_open.settings.notifications.expire_after
        change = Change(
            "retry",
            "retried",
            {"status": RowStatus.DEAD},
            partial(interventions.retry_refusal, expire_after=expire_after, force=force),
            partial(interventions.retry, force=force),
            asked={"force": True} if force else {},
        )
        return await change_rows(now_open, change, keys, which or RowFilter(), how or How())


@app.command
async def resolve(
    *keys: str,
    sent: Annotated[bool, Parameter(negative="--not-sent")],
    which: RowFilter | None = None,
    how: How | None = None,
) -> int:
    """Close notifications whose end a person found out: unknown, held and dead ones. Nothing is sent.

    Example: `paylatch notifications resolve order:1001:payment_completed:sms:customer --sent`

    Parameters
    ----------
    keys
        Keys of notifications; without any, the filters choose among the unknown and held ones.
    sent
        The person was told (status sent), or --not-sent: was not and need not be (status suppressed).
    """
    async with session() as now_open:
        change = Change(
            "resolve",
            "resolved",
            {"status": {"$in": [RowStatus.UNKNOWN, RowStatus.HELD]}},
            lambda row, _: interventions.resolve_refusal(row),
            partial(interventions.resolve, actor=getpass.getuser(), sent=sent),
            asked={"sent": sent},
        )
        return await change_rows(now_open, change, keys, which or RowFilter(), how or How())


@app.command
async def release(
    *keys: str,
    which: RowFilter | None = None,
    how: How | None = None,
    limit: Count = 0,
) -> int:
    """Send held notifications: by key or filters; without either those held after a gap, whose cap is lifted.

    A message that is held because it may have been sent is only released by its key or a filter.

    Example: `paylatch notifications release --limit 500`

    Parameters
    ----------
    keys
        Keys of notifications; without any, the filters choose.
    limit
        At most so many, the oldest first, and the cap stays for the rest; 0 releases all.
    """
    which, how = which or RowFilter(), how or How()
    async with session() as now_open:
        cap = None if keys or limit or which.chosen() else await in_force(now_open.db)
        if cap and not how.as_json:
            output().print(f"{cap['used']} were let through after the gap; the cap will be lifted", markup=False)
        change = Change(
            "release",
            "released",
            {"status": RowStatus.HELD} if which.chosen() else {"status": RowStatus.HELD, "reason": GAP_CAP},
            lambda row, _: interventions.release_refusal(row),
            interventions.release,
            limit,
            _lift if cap else None,
            {"limit": limit} if limit else {},
        )
        code = await change_rows(now_open, change, keys, which, how)
        if cap and not how.dry_run:  # and what was held while the operator read
            await NotificationRows(now_open.db, now_open.clock).release_gap()
        return code


async def _lift(now_open: Session) -> dict[str, Literal["lifted", "none"]]:
    """First the cap and then the rows, so that what is due in between goes out as well."""
    return {"cap": "lifted" if await lift(now_open.db, now_open.clock.now()) else "none"}
