from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from models import duties
from models.duties import Repeated, cancelled, repeating, stop_signals
from models.telemetry import Telemetry
from tests.support.wait import eventually


class Rounds:
    """A duty that counts its rounds and may fail in some of them."""

    def __init__(self, *, fails: int = 0, counts: dict[str, int] | None = None) -> None:
        self.begun = 0
        self.fails = fails
        self.counts = counts if counts is not None else {"found": 2}

    async def run_once(self) -> dict[str, int]:
        self.begun += 1
        if self.begun <= self.fails:
            raise ConnectionError("secret text of a driver")
        return self.counts


class Heard:
    """A telemetry and what it emitted."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.telemetry = Telemetry(lambda event, fields: self.events.append((event, fields)))


async def reached(check: Callable[[], bool], what: str) -> None:
    async def ask() -> bool:
        return check()

    await eventually(ask, what, 5)


@pytest.mark.asyncio
async def test_a_duty_is_done_again_and_again_and_says_what_it_did() -> None:
    heard, duty = Heard(), Rounds()
    async with repeating(heard.telemetry, Repeated(duty, 0.001)):
        await reached(lambda: duty.begun >= 3, "three rounds")
    assert heard.events[0] == ("duty.done", {"duty": "Rounds", "found": 2})
    after = duty.begun
    await asyncio.sleep(0)
    assert duty.begun == after


@pytest.mark.asyncio
async def test_a_round_without_any_work_is_not_worth_a_line() -> None:
    heard, duty = Heard(), Rounds(counts={"found": 0})
    async with repeating(heard.telemetry, Repeated(duty, 0.001)):
        await reached(lambda: duty.begun >= 3, "three rounds")
    assert heard.events == []


@pytest.mark.asyncio
async def test_a_failure_is_reported_without_its_text_and_tried_again() -> None:
    heard, duty = Heard(), Rounds(fails=2)
    async with repeating(heard.telemetry, Repeated(duty, 0.001)):
        await reached(lambda: duty.begun >= 3, "the round after the failures")
        await reached(lambda: len(heard.events) >= 3, "its line")
    assert heard.events[:3] == [
        ("duty.failed", {"duty": "Rounds", "error": "ConnectionError", "failures": 1}),
        ("duty.failed", {"duty": "Rounds", "error": "ConnectionError", "failures": 2}),
        ("duty.done", {"duty": "Rounds", "found": 2}),
    ]


@pytest.mark.asyncio
async def test_the_pauses_after_failures_grow_up_to_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float, stop: asyncio.Event, *wakes: asyncio.Event) -> None:
        pauses.append(seconds)
        assert not wakes, "an outage is waited out, whoever wakes the duty"
        if len(pauses) == 8:
            stop.set()

    monkeypatch.setattr(duties, "_pause", pause)
    duty = Rounds(fails=100)
    async with repeating(Heard().telemetry, Repeated(duty, 2.0)):
        await reached(lambda: len(pauses) == 8, "eight pauses")
    assert pauses == [4, 8, 16, 30, 30, 30, 30, 30]


@pytest.mark.asyncio
async def test_a_seldom_duty_does_not_pause_shorter_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float, stop: asyncio.Event, *_: asyncio.Event) -> None:
        pauses.append(seconds)
        stop.set()

    monkeypatch.setattr(duties, "_pause", pause)
    async with repeating(Heard().telemetry, Repeated(Rounds(fails=1), 3600.0)):
        await reached(lambda: bool(pauses), "a pause")
    assert pauses == [3600]


@pytest.mark.asyncio
async def test_waking_starts_the_next_round_at_once() -> None:
    duty, wake = Rounds(), asyncio.Event()
    async with repeating(Heard().telemetry, Repeated(duty, 3600, wake)):
        await reached(lambda: duty.begun == 1, "the first round")
        wake.set()
        await reached(lambda: duty.begun == 2, "the second round")
        wake.set()
        await reached(lambda: duty.begun == 3, "the third round")
    assert duty.begun == 3


@pytest.mark.asyncio
async def test_a_wake_during_a_round_is_not_lost() -> None:
    wake, gate = asyncio.Event(), asyncio.Event()

    class Slow(Rounds):
        async def run_once(self) -> dict[str, int]:
            counts = await super().run_once()
            await gate.wait()
            return counts

    duty = Slow()
    async with repeating(Heard().telemetry, Repeated(duty, 3600, wake)):
        await reached(lambda: duty.begun == 1, "the first round")
        wake.set()
        gate.set()
        await reached(lambda: duty.begun == 2, "the round it was woken for")


@pytest.mark.asyncio
async def test_leaving_lets_a_running_round_end() -> None:
    begun, gate, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow:
        async def run_once(self) -> dict[str, int]:
            begun.set()
            await gate.wait()
            ended.set()
            return {}

    async def leave() -> None:
        async with repeating(Heard().telemetry, Repeated(Slow(), 0.001)):
            await begun.wait()

    leaving = asyncio.create_task(leave())
    await begun.wait()
    await asyncio.sleep(0)
    assert not leaving.done()
    gate.set()
    await asyncio.wait_for(leaving, 2)
    assert ended.is_set()


@pytest.mark.asyncio
async def test_leaving_cancels_a_round_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "ROUND_ENDS_WITHIN", 0.05)
    begun, stopped = asyncio.Event(), asyncio.Event()

    class Stuck:
        async def run_once(self) -> dict[str, int]:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
            return {}

    async with repeating(Heard().telemetry, Repeated(Stuck(), 0.001)):
        await begun.wait()
    assert stopped.is_set()


@pytest.mark.asyncio
async def test_a_failing_duty_does_not_stop_the_others() -> None:
    bad, good = Rounds(fails=1000), Rounds()
    async with repeating(Heard().telemetry, Repeated(bad, 0.001), Repeated(good, 0.001)):
        await reached(lambda: good.begun >= 3, "three good rounds")
    assert bad.begun >= 1


async def _swallows(times: int) -> None:
    """A task that loses some cancellations, as a library may."""
    for _ in range(times):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    await asyncio.Event().wait()


async def _fails_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise RuntimeError("on the way out") from None


@pytest.mark.asyncio
@pytest.mark.parametrize("work", [lambda: _swallows(2), _fails_when_cancelled], ids=["swallows", "fails"])
async def test_cancelled_waits_until_the_task_is_gone(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    monkeypatch.setattr(duties, "CANCEL_AGAIN_AFTER", 0.01)
    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await asyncio.wait_for(cancelled(task), 2)
    assert task.done()


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_sets_the_stop_event_and_the_handlers_are_gone_afterwards(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_signals() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.wait(), 2)
    assert signal.getsignal(number) in (before, signal.SIG_DFL, signal.default_int_handler)
