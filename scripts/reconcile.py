"""`paylatch reconcile`: compare orders and ledger with what the provider's API says, and put right what differs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from models.errors import WrongArgument
from models.settings import load_settings
from models.telemetry import Telemetry
from scripts.audit import audit, audit_done
from scripts.order_parts import Sum, counted
from scripts.output import output, print_json, print_table
from webhook.differences import Progress as Tell
from webhook.engine import Engine, engine
from webhook.providers import providers
from webhook.providers.razorpay_api import RazorpayApi
from webhook.reconcile import Line, Report, Round, Scope
from webhook.reconcile_duty import days, yesterday

_COLUMNS = ("id", "kind", "order", "amount", "missing", "what", "result")


async def reconcile(
    *,
    apply: Annotated[bool, Parameter(negative=())] = False,
    orders: bool = True,
    first: Annotated[date | None, Parameter(name="--from")] = None,
    last: Annotated[date | None, Parameter(name="--to")] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Compare orders and ledger with Razorpay's API, and with --apply put right what a lost webhook left behind.

    Unpaid orders of the last days are asked for by their id; captures and refunds of whole days, yesterday unless told
    otherwise, are compared with the ledger in both directions. Exit code 1 when a difference remains.

    Example: `paylatch reconcile --apply --from 2026-07-01 --to 2026-07-03`

    Parameters
    ----------
    apply
        Let each difference take effect as an event; without it nothing is changed.
    orders
        Look at unpaid orders too.
    first
        First day of captures and refunds, in the shop's timezone.
    last
        Last day, included.
    as_json
        A JSON object instead of a table.
    """
    settings, telemetry = load_settings(), Telemetry()
    async with (
        RazorpayApi(settings.razorpay) as api,
        engine(settings, providers(settings), telemetry) as running,
    ):
        start, end = _days(first, last, running.clock.now(), settings.shop.timezone)
        scope = Scope(orders, days(start, end, settings.shop.timezone))
        chosen = {"orders": orders, "from": start.isoformat(), "to": end.isoformat()}
        with _progress() as tell:
            report = await _run(running, Round(running, api, telemetry, apply=apply, tell=tell), scope, chosen, apply)
    if as_json:
        print_json({"applied": apply, **chosen, **report.document()})
    else:
        _print(report, f"{start}" if start == end else f"{start} to {end}", applied=apply)
    return 1 if report.remaining else 0


def _days(first: date | None, last: date | None, now: datetime, timezone: str) -> tuple[date, date]:
    """One day given is that day. Raises `WrongArgument` for days that cannot be."""
    given = first or last or yesterday(now, timezone)
    start, end = first or given, last or given
    if start > end:
        raise WrongArgument(f"--from {start} is after --to {end}")
    if start > yesterday(now, timezone) + timedelta(days=1):
        raise WrongArgument(f"{start} is still to come")
    return start, end


async def _run(running: Engine, work: Round, scope: Scope, chosen: dict[str, Any], apply: bool) -> Report:  # noqa: FBT001
    """Audited when something may change; a round that breaks off says in the audit log how far it came."""
    if not apply:
        return await work.run(scope)
    entry = await audit(running.db, "reconcile", chosen, 0, running.clock.now())
    try:
        return await work.run(scope)
    finally:
        await audit_done(running.db, entry, work.report.repaired, running.clock.now())


@contextlib.contextmanager
def _progress() -> Iterator[Tell]:
    """Counts on standard error while it runs, where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<20}"), TextColumn("{task.completed:.0f}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        tasks = {}

        def tell(what: str, count: int) -> None:
            if what not in tasks:
                tasks[what] = shown.add_task(f"{what} looked at", total=None)
            shown.update(tasks[what], completed=count)

        yield tell


def _print(report: Report, period: str, *, applied: bool) -> None:
    console = output()
    if report.lines:
        print_table(counted(len(report.lines), "difference"), _COLUMNS, map(_row, report.lines), console)
    looked = ", ".join(f"{what} {count}" for what, count in report.looked.items() if what != "foreign") or "nothing"
    said = [f"looked at: {looked} ({period})", f"found: {counted(len(report.lines), 'difference')}"]
    said[-1] += f", {report.repaired} repaired" if applied else ""
    if foreign := report.looked["foreign"]:
        said.append(f"not counted: money that names no order and is of something else than this shop: {foreign}")
    if report.lines and not applied:
        said.append("nothing was changed: --apply lets them take effect")
    console.print("\n".join(said), markup=False, highlight=False)


def _row(line: Line) -> tuple[object, ...]:
    found = line.difference
    amount = Sum.of(found.amount, found.currency) if found.amount is not None else None
    return found.ref, found.kind, found.order, amount, found.missing, found.detail, line.result
