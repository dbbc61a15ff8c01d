"""`paylatch alerts`: what a person must look at."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from models.alerts import ADVICE
from models.documents import Alert
from scripts.output import output, print_json, print_table
from scripts.session import session

app = App(name="alerts", help="List what a person must look at.")


@app.command(name="list")
async def list_alerts(
    *,
    limit: int = 50,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List alerts, newest first, and what to do about each.

    Example: `paylatch alerts list`

    Parameters
    ----------
    limit
        At most so many.
    as_json
        A JSON array instead of a table.
    """
    async with session():
        alerts = await Alert.find().sort("-lastAt").limit(limit).to_list()
    if as_json:
        print_json([{**alert.model_dump(by_alias=True), "todo": ADVICE.get(alert.kind)} for alert in alerts])
        return
    columns = ("kind", "ref", "count", "first", "last", "detail", "what to do")
    rows = [
        (alert.kind, alert.ref, alert.times, alert.first_at, alert.last_at, alert.detail, ADVICE.get(alert.kind))
        for alert in alerts
    ]
    print_table(f"{len(rows)} alerts", columns, rows, output())
