"""`paylatch status`: what the whole system is doing, once or live."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.live import Live
from rich.table import Table
from rich.text import Text

from models.duties import stop_signals
from scripts.output import output, print_json
from scripts.overview import Overview, Process, Work, overview
from scripts.session import session


async def status(
    *,
    follow: Annotated[bool, Parameter(negative=())] = False,
    every: Annotated[float, Parameter(validator=Number(gte=0.2))] = 2.0,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Show events, notifications, the watcher's leader, checkpoint and lag, channel breakers and open alerts.

    Exit code 0 when a leader reads, no process here complains and no alert is open; else 1.

    Example: `paylatch status --follow`

    Parameters
    ----------
    follow
        Keep the table on the screen and up to date until Ctrl-C.
    every
        Seconds between two looks.
    as_json
        One JSON object instead of a table.
    """
    async with session() as now_open:
        seen = await overview(now_open)
        if as_json:
            print_json({**seen.document(), "well": seen.well})
        elif not follow:
            output().print(_table(seen))
        else:
            with stop_signals() as stop, Live(_table(seen), console=output(), auto_refresh=False) as live:
                while not stop.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), every)
                    await now_open.clock.run_once()
                    seen = await overview(now_open)
                    live.update(_table(seen), refresh=True)
    return 0 if seen.well else 1


def _table(seen: Overview) -> Table:
    table = Table(
        "what", "now", title=f"PayLatch at {seen.at:%Y-%m-%d %H:%M:%S} UTC", title_justify="left", show_lines=True
    )
    for name, value in _lines(seen):
        table.add_row(name, Text(value))
    return table


def _lines(seen: Overview) -> Iterator[tuple[str, str]]:
    place = seen.watcher
    yield "events", _work(seen.events)
    yield "notifications", _work(seen.notifications)
    yield "leader", f"epoch {place.epoch}" if place.leading else "none: nobody reads the change stream"
    if place.checkpoint_age is None:
        yield "checkpoint", "none yet"
    else:
        reached = f", read up to {place.read_up_to:%Y-%m-%d %H:%M:%S} UTC" if place.read_up_to else ""
        yield "checkpoint", f"{place.checkpoint_age:.0f} s old{reached}"
    for process in seen.processes:
        yield process.name, _process(process)
    alerts = [f"{count} {kind}" for kind, count in seen.alerts.items()]
    yield "open alerts", f"{', '.join(alerts)}: see `paylatch alerts list`" if alerts else "none"


def _work(work: Work) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in work.by_status.items()) or "nothing left to do"
    return counts if work.overdue is None else f"{counts}; due for {work.overdue:.0f} s"


def _process(process: Process) -> str:
    if process.ready is None:
        return f"nothing answers at {process.address}"
    words = ["ready" if process.ready else f"NOT READY: {', '.join(process.reasons)}"]
    words += [f"{stage} {seconds:.2f} s behind" for stage, seconds in sorted(process.lag.items())]
    words += [f"{channel} breaker {state}" for channel, state in sorted(process.breakers.items())]
    return f"{', '.join(words)} ({process.address})"
