"""`paylatch orders`: why an order is paid or not, and money that belongs to no order."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from cyclopts import App, Parameter

from models.errors import WrongArgument
from models.facts import Event
from scripts.audit import audit
from scripts.options import Positive
from scripts.order_events import parsed
from scripts.order_find import find, gather
from scripts.order_page import page
from scripts.order_parts import Records, counted
from scripts.order_story import tell
from scripts.order_text import print_story
from scripts.order_verdict import verdict
from scripts.output import STDOUT, output, print_json, print_table, write_text
from scripts.session import Session, session
from scripts.unmatched import Parsers, Unmatched, unmatched
from webhook.own_messages import OWN, parse_own
from webhook.providers import PROVIDERS

app = App(name="orders", help="Why is this order not paid? And which money belongs to no order?")
app.command("scripts.review:app", name="review", help="Money that does not fit its order: accept it or reject it.")


@app.command
async def show(
    order: str,
    *,
    reveal: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    html: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
) -> None:
    """Tell the whole story of one order, and why it is paid or not in one sentence.

    Example: `paylatch orders show SH-1001 --html order.html`

    Parameters
    ----------
    order
        The order's `_id` or number, or the provider's id of its order, payment link, a payment or a refund.
    reveal
        Show name, email, phone, vpa and card too; the audit log keeps who did.
    as_json
        JSON instead of text.
    html
        Write one self-contained page to this file (`-`: to standard output) instead of text.
    """
    if as_json and html == STDOUT:
        raise WrongArgument("JSON and a page cannot both go to standard output: give --html a file")
    async with session() as now_open:
        records, now = await _read(now_open, order, reveal=reveal)
        story = tell(records, partial(_parsed, _parsers(now_open)), reveal=reveal)
    why = verdict(story)
    if html is not None:
        write_text(page(story, why, now, revealed=reveal), html)
    if as_json:
        answer = {"why": why.sentence, "code": why.code, "todo": why.todo or None}
        print_json({**answer, **story.document()})
    elif html is None:
        print_story(story, why, output())


async def _read(now_open: Session, wanted: str, *, reveal: bool) -> tuple[Records, datetime]:
    """What is stored about the order, and when; revealing leaves its entry in the audit log first."""
    order = await find(now_open.db, wanted)
    now = now_open.clock.now()
    if reveal:
        await audit(now_open.db, "orders show --reveal", {"orderId": order["_id"]}, 1, now)
    return await gather(now_open.db, order, now_open.settings.orders), now


def _parsers(now_open: Session) -> Parsers:
    return {name: make(now_open.settings).parse for name, make in PROVIDERS.items()} | {OWN: parse_own}


def _parsed(parsers: Parsers, row: Mapping[str, Any]) -> Event | None:
    parse = parsers.get(row.get("provider", ""))
    return parsed(row, parse) if parse else None


@app.command(name="unmatched")
async def list_unmatched(
    *,
    limit: Positive = 200,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List captured and authorised payments of events that belong to no order, newest first.

    Example: `paylatch orders unmatched --json`

    Parameters
    ----------
    limit
        At most so many.
    as_json
        A JSON array instead of a table.
    """
    async with session() as now_open:
        found = await unmatched(now_open.db, _parsers(now_open), limit)
    if as_json:
        print_json([each.document() for each in found])
        return
    columns = (
        "event",
        "type",
        "payment",
        "payment is",
        "provider's order",
        "amount",
        "received",
        "status",
        "looks next",
    )
    payments = counted(len({each.payment.ref for each in found}), "payment")
    title = f"{payments} of no order, in {counted(len(found), 'event')}{', perhaps more' * (len(found) >= limit)}"
    print_table(title, columns, map(_row, found), output())


def _row(each: Unmatched) -> tuple[object, ...]:
    return (
        each.event_id,
        each.event_type,
        each.payment.ref,
        each.payment.status,
        each.order_id,
        each.payment.sum,
        each.received_at,
        f"{each.status} ({each.outcome})",
        each.next_attempt_at,
    )
