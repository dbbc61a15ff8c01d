"""`paylatch alerts`: what a person must look at, and that somebody does."""

from __future__ import annotations

import getpass
from typing import Annotated, Any

from cyclopts import App, Parameter

from models.alerts import ADVICE, STILL_OPEN, acknowledge
from models.documents import Alert
from models.errors import Refused
from scripts.audit import audit
from scripts.options import Positive
from scripts.output import output, print_json, print_table
from scripts.session import session

app = App(name="alerts", help="List what a person must look at, and say that somebody does.")


@app.command(name="list")
async def list_alerts(
    *,
    kind: str | None = None,
    everything: Annotated[bool, Parameter(name="--all", negative=())] = False,
    limit: Positive = 50,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List open alerts, newest first, and what to do about each.

    Example: `paylatch alerts list`

    Parameters
    ----------
    kind
        Only this kind, such as event_dead.
    everything
        Acknowledged and resolved ones too.
    limit
        At most so many.
    as_json
        A JSON array instead of a table.
    """
    query: dict[str, Any] = {"kind": kind} if kind else {}
    if not everything:
        query |= STILL_OPEN
    async with session():
        alerts = await Alert.find(query).sort("-lastAt").limit(limit).to_list()
    if as_json:
        print_json([{**alert.model_dump(by_alias=True), "todo": ADVICE.get(alert.kind)} for alert in alerts])
        return
    columns = ("kind", "ref", "state", "count", "first", "last", "detail", "what to do")
    rows = [
        (a.kind, a.ref, _state(a), a.times, a.first_at, a.last_at, a.detail, ADVICE.get(a.kind, "")) for a in alerts
    ]
    print_table(f"{len(rows)} {'' if everything else 'open '}alerts", columns, rows, output())


def _state(alert: Alert) -> str:
    return f"{alert.state} by {alert.by}: {alert.why}" if alert.by else alert.state


@app.command
async def ack(
    kind: str,
    ref: str | None = None,
    *,
    why: str,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Acknowledge open alerts: somebody looks after them, and nobody is told again.

    Example: `paylatch alerts ack event_dead Rp71ZiqdEWusLa --why "requeued after the fix"`

    Parameters
    ----------
    kind
        The kind, such as event_dead.
    ref
        What it is about; without it, every open alert of the kind.
    why
        A sentence for those who look later.
    as_json
        Say the result as JSON.
    """
    chosen: dict[str, Any] = {"kind": kind, **({"ref": ref} if ref is not None else {})}
    by = getpass.getuser()
    async with session() as now_open:
        db, now = now_open.db, now_open.clock.now()
        found = await db.alerts.find({**chosen, **STILL_OPEN}, {"_id": 1}).to_list()
        if not found:
            named = kind if ref is None else f"{kind} {ref}"
            raise Refused(f"no alert {named} is open: see `paylatch alerts list --all`")
        await audit(db, "alerts ack", {**chosen, "why": why}, len(found), now)
        done = sum([await acknowledge(db, alert["_id"], by, why, now) for alert in found])
    if as_json:
        print_json({"found": len(found), "acknowledged": done})
    else:
        output().print(f"acknowledged {done} of {len(found)} alerts")
    return 0 if done else 1
