"""`paylatch notifications`: what was told to whom, and what was not."""

from __future__ import annotations

from typing import Annotated, Any

from bson import ObjectId
from cyclopts import App, Parameter

from models.documents import NotificationRow
from models.states import RowStatus
from scripts.output import output, print_json, print_table
from scripts.session import session

app = App(name="notifications", help="List notifications and what became of them.")


@app.command(name="list")
async def list_notifications(
    *,
    status: list[RowStatus] | None = None,
    channel: str | None = None,
    notice: str | None = None,
    order: str | None = None,
    limit: int = 50,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List notification rows, newest first. Messages and addresses are not shown.

    Example: `paylatch notifications list --status dead --status unknown`

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
    limit
        At most so many.
    as_json
        A JSON array instead of a table.
    """
    query: dict[str, Any] = {"channel": channel, "notice": notice}
    query = {name: value for name, value in query.items() if value}
    if status:
        query["status"] = {"$in": [str(one) for one in status]}
    if order:
        query["orderId"] = {"$in": [order, *([ObjectId(order)] if ObjectId.is_valid(order) else [])]}
    async with session():
        rows = await NotificationRow.find(query).sort("-createdAt").limit(limit).to_list()
    if as_json:
        print_json([row.model_dump(by_alias=True, exclude={"message", "lease"}, mode="python") for row in rows])
        return
    columns = ("key", "status", "attempts", "reason", "fact", "sent")
    cells = [(row.key, row.status, row.attempts, row.reason, row.fact_at, row.sent_at) for row in rows]
    print_table(f"{len(rows)} notifications", columns, cells, output())
