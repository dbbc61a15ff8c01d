"""The one shape of every background duty, `run_once() -> counts`; a shared loop supplies stop, interval and jitter."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from models.telemetry import Telemetry

JITTER = 0.1
LONGEST_PAUSE = 30.0


class Duty(Protocol):
    """Something to do again and again."""

    async def run_once(self) -> dict[str, int]:
        """Do it once and say how many of what."""
        ...


async def repeat(
    duty: Duty,
    every: Callable[[], float] | float,
    telemetry: Telemetry,
    wake: asyncio.Event | None = None,
) -> None:
    """Run the duty until cancelled; a failure is reported, waited out with growing pauses, and tried again."""
    name, failures = type(duty).__name__, 0
    while True:
        if wake is not None:
            wake.clear()
        try:
            counts = await duty.run_once()
            failures = 0
            if any(counts.values()):
                telemetry.emit("duty.done", duty=name, **counts)
        except Exception as error:  # noqa: BLE001 - an outage must not end the daemon
            failures += 1
            telemetry.emit("duty.failed", duty=name, error=type(error).__name__, failures=failures)
        pause = every() if callable(every) else every
        await _pause(min(pause * 2 ** min(failures, 6), max(pause, LONGEST_PAUSE)), wake if not failures else None)


async def _pause(seconds: float, wake: asyncio.Event | None) -> None:
    jittered = seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - spreads load, guards nothing
    if wake is None:
        await asyncio.sleep(jittered)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(jittered):
            await wake.wait()


@contextlib.asynccontextmanager
async def background(*loops: asyncio.Task[None]) -> AsyncIterator[None]:
    """Own running tasks: on leaving, cancel them and wait until they are gone."""
    try:
        yield
    finally:
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


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
