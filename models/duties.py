"""The one shape of every background duty, `run_once() -> counts`; a shared loop supplies stop, interval and jitter."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from models.backoff import jittered
from models.telemetry import Telemetry

JITTER = 0.1
LONGEST_PAUSE = 30.0
ROUND_ENDS_WITHIN = 3.0
CANCEL_AGAIN_AFTER = 0.5


class Duty(Protocol):
    """Something to do again and again."""

    async def run_once(self) -> dict[str, int]:
        """Do it once and say how many of what."""
        ...


@dataclass(frozen=True, slots=True)
class Repeated:
    """A duty and its interval in seconds; setting `wake` starts the next round at once."""

    duty: Duty
    every: float
    wake: asyncio.Event = field(default_factory=asyncio.Event)


@contextlib.asynccontextmanager
async def repeating(telemetry: Telemetry, *duties: Repeated) -> AsyncIterator[None]:
    """Run the duties in the background; on leaving, let running rounds end for a moment, then cancel them."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(_repeat(repeated, telemetry, stop)) for repeated in duties]
    try:
        yield
    finally:
        stop.set()
        if tasks:
            await asyncio.wait(tasks, timeout=ROUND_ENDS_WITHIN)
        await cancelled(*tasks)


async def _repeat(repeated: Repeated, telemetry: Telemetry, stop: asyncio.Event) -> None:
    """A failure is reported, waited out with growing pauses, and tried again."""
    name, failures = type(repeated.duty).__name__, 0
    while not stop.is_set():
        repeated.wake.clear()
        try:
            counts = await repeated.duty.run_once()
            failures = 0
            if any(counts.values()):
                telemetry.emit("duty.done", duty=name, **counts)
        except Exception as error:  # noqa: BLE001 - an outage must not end the daemon
            failures += 1
            telemetry.emit("duty.failed", duty=name, error=type(error).__name__, failures=failures)
        pause = min(repeated.every * 2 ** min(failures, 6), max(repeated.every, LONGEST_PAUSE))
        await _pause(pause, stop, *(() if failures else (repeated.wake,)))


async def _pause(seconds: float, *events: asyncio.Event) -> None:
    """Until the time (with jitter) is over or one of the events is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=jittered(seconds, JITTER), return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they are gone: a library may lose a cancellation that comes while it opens a connection."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_AFTER)
        for task in done:
            if not task.cancelled():
                task.exception()  # it was reported where it happened; asyncio need not say it again


@contextlib.contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets; the handlers are removed on leaving."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
