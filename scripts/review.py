"""`paylatch orders review`: money that does not fit its order, and what an operator decides about it."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from models.database import RawDocument
from models.errors import WrongArgument
from models.facts import DecisionFact
from scripts.asking import confirm
from scripts.audit import audit, audit_done
from scripts.decide import Decided, decide
from scripts.options import Positive
from scripts.order_find import find
from scripts.order_parts import counted
from scripts.order_text import decided
from scripts.output import output, print_json, print_table
from scripts.review_entries import Entry, chosen, closed, effect, entries_of
from scripts.session import Session, session
from scripts.stored_values import clean, mapping
from webhook.orders import expectation

app = App(name="review", help="Money that does not fit its order: look at it, accept or reject it.")

State = Literal["accepted", "rejected"]

VERBS = {"accepted": "accept", "rejected": "reject"}
_PREVIEW = ("number", "reason", "payment", "amount", "expected", "what it does")
_FIELDS = {"orderNumber": 1, "payment.review": 1, "history": 1}
_REJECTS = (
    "closes the entry and moves nothing, and money that did not fit stays out whatever is corrected later; "
    "refund the payment in the dashboard if it is the customer's"
)


@Parameter(name="*")
@dataclass(frozen=True)
class Decision:
    """How to decide.

    Parameters
    ----------
    why
        The reason, for whoever looks at the order later.
    dry_run
        Only say what it would do.
    yes
        Do not ask.
    as_json
        Say the result as JSON (needs --yes or --dry-run).
    """

    why: str
    dry_run: Annotated[bool, Parameter(negative=())] = False
    yes: Annotated[bool, Parameter(negative=())] = False
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False


@app.command(name="list")
async def list_reviews(
    *,
    every: Annotated[bool, Parameter(name="--all", negative=())] = False,
    limit: Positive = 200,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> None:
    """List the open review entries of all orders, those of the latest changed order first.

    Example: `paylatch orders review list`

    Parameters
    ----------
    every
        Closed entries too.
    limit
        Of at most so many orders.
    as_json
        A JSON array instead of a table.
    """
    wanted: dict[str, Any] = {"payment.review.0": {"$exists": True}} if every else {"payment.review.state": "open"}
    async with session() as now_open:
        cursor = now_open.db.orders.find(wanted, _FIELDS).sort("payment.changedAt", -1).limit(limit)
        orders = await cursor.to_list()
    entries = [entry for order in orders for entry in entries_of(order) if every or entry.review.open]
    if as_json:
        print_json([entry.document() for entry in entries])
        return
    more = ", perhaps more" * (len(orders) >= limit)
    title = f"{counted(len(entries), 'review entry').replace('entrys', 'entries')}{more}"
    columns = ("order", "number", "reason", "payment", "amount", "expected", "since", "state", "closed")
    print_table(title, columns, map(_row, entries), output())


def _row(entry: Entry) -> tuple[object, ...]:
    review = entry.review
    sums = (review.sum, review.expected)
    return (entry.order_id, entry.number, review.reason, review.ref, *sums, entry.since, review.state, decided(review))


def _preview(entry: Entry, does: str | None) -> tuple[object, ...]:
    review = entry.review
    return entry.order_id, entry.number, review.reason, review.ref, review.sum, review.expected, does


@app.command
async def show(order: str, *, as_json: Annotated[bool, Parameter(name="--json", negative=())] = False) -> None:
    """Show one order's review entries, and what accepting each open one would do.

    Example: `paylatch orders review show SH-1001`

    Parameters
    ----------
    order
        The order's `_id` or number, or the provider's id of its order, payment link, a payment or a refund.
    as_json
        A JSON array instead of a table.
    """
    async with session() as now_open:
        stored = await find(now_open.db, order)
        told = [(entry, _effect(now_open, stored, entry)) for entry in entries_of(stored)]
    if as_json:
        print_json([{**entry.document(), "accepting": says} for entry, says in told])
        return
    columns = ("reason", "payment", "amount", "expected", "since", "state", "accepting it, or how it was closed")
    rows = [(*_row(entry)[2:8], says or decided(entry.review)) for entry, says in told]
    print_table(f"review of order {clean(stored['_id'])}", columns, rows, output())


def _effect(now_open: Session, order: RawDocument, entry: Entry) -> str | None:
    """None for what is closed."""
    if not entry.review.open:
        return None
    return effect(order["payment"], entry.review, expectation(order, now_open.settings.orders), now_open.clock.now())


@app.command
async def accept(order: str, reason: str | None = None, ref: str | None = None, /, *, how: Decision) -> int:
    """Accept money that does not fit: it completes the order where it can; `review show` says what it does.

    The first decision about an entry counts. Reason and payment may be left out where one entry is open.

    Example: `paylatch orders review accept SH-1001 --why "rounding, agreed with the customer"`

    Parameters
    ----------
    order
        The order's `_id` or number, or the provider's id of its order, payment link, a payment or a refund.
    reason
        The entry's reason.
    ref
        The entry's payment.
    """
    return await _decide((order, reason, ref), "accepted", how)


@app.command
async def reject(order: str, reason: str | None = None, ref: str | None = None, /, *, how: Decision) -> int:
    """Reject money that does not fit: the entry is closed and nothing else moves.

    The first decision about an entry counts. Reason and payment may be left out where one entry is open.

    Example: `paylatch orders review reject SH-1001 amount_mismatch --why "refunded in the dashboard"`

    Parameters
    ----------
    order
        The order's `_id` or number, or the provider's id of its order, payment link, a payment or a refund.
    reason
        The entry's reason.
    ref
        The entry's payment.
    """
    return await _decide((order, reason, ref), "rejected", how)


async def _decide(meant: tuple[str, str | None, str | None], state: State, how: Decision) -> int:
    """Preview, ask, decide, say what happened; 1 when it did not count."""
    if not how.why.strip():
        raise WrongArgument("say why: --why is for whoever looks at the order later")
    wanted, reason, ref = meant
    async with session() as now_open:
        order = await find(now_open.db, wanted)
        entry = chosen(entries_of(order), f"order {clean(order['_id'])}", reason, ref)
        does = _effect(now_open, order, entry) if state == "accepted" else _REJECTS
        result: dict[str, Any] = {**entry.document(), "decision": state, "does": does, "applied": False, "says": ""}
        if not how.as_json:
            print_table(f"{VERBS[state]} {entry}", ("order", *_PREVIEW), [_preview(entry, does)], output())
        if not how.dry_run:
            confirm(f"{VERBS[state].capitalize()} it?", yes=how.yes, as_json=how.as_json)
            result["applied"], result["says"] = await _apply(now_open, entry, state, how.why.strip())
    if how.as_json:
        print_json(result)
    elif not how.dry_run:
        output().print(result["says"], markup=False, highlight=False, soft_wrap=True)
    return 0 if how.dry_run or result["applied"] else 1


async def _apply(now_open: Session, entry: Entry, state: State, why: str) -> tuple[bool, str]:
    """Decide, with its trace in the audit log; whether it counted, and what to say."""
    review, now = entry.review, now_open.clock.now()
    fact = DecisionFact(review.reason, review.ref, state, getpass.getuser(), why, int(now.timestamp()))
    about = {"orderId": entry.order_id, "reason": review.reason, "ref": review.ref, "why": why}
    trace = await audit(now_open.db, f"orders review {VERBS[state]}", about, 1, now)
    decided_now = await decide(now_open.settings, entry.order_id, fact)
    applied, says = await _outcome(now_open, entry, decided_now)
    await audit_done(now_open.db, trace, int(applied), now_open.clock.now())
    return applied, says


async def _outcome(now_open: Session, entry: Entry, made: Decided) -> tuple[bool, str]:
    """What the order says now."""
    if made.trouble:
        return False, made.trouble
    order = await now_open.db.orders.find_one({"_id": entry.order_id}) or {"_id": entry.order_id}
    review = entry.review
    same = [each for each in entries_of(order) if (each.review.reason, each.review.ref) == (review.reason, review.ref)]
    if not same or same[0].review.open:
        return False, made.lost
    stands = same[0].review
    ours = made.first and (stands.by, stands.state) == (clean(made.counts.by), made.counts.state)
    if not ours:
        return False, f"{closed(same[0])}; the first decision counts"
    status = clean(mapping(order.get("payment")).get("status"))
    return True, f"{made.counts.state} {entry}; the order is {status}"
