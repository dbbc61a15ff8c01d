"""Bounded workers in lanes: jobs of one lane run one after another, so events of one order never conflict here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from models.duties import cancelled

Job = TypeVar("Job", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Reservation:
    """A free worker kept for one lane until `start` or `release`."""

    lane: str


class Lanes(Generic[Job]):
    """At most `workers` jobs at once, at most `queue` waiting; a job already waiting or running is not taken twice."""

    def __init__(self, workers: int, queue: int, run: Callable[[Job], Awaitable[None]]) -> None:
        self._run = run
        self._free, self._queue = workers, queue
        self._lanes: dict[str, deque[Job]] = {}
        self._runnable: deque[str] = deque()
        self._known: set[Job] = set()
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = True

    @property
    def room(self) -> int:
        """How many more jobs can be offered."""
        return max(0, self._queue - self._waiting) if self._open else 0

    def reserve(self, lane: str) -> Reservation | None:
        """A worker for a job that will come in a moment; None when all are busy or the lane is in use."""
        if not self._open or self._free == 0 or lane in self._lanes:
            return None
        self._free -= 1
        self._lanes[lane] = deque()
        return Reservation(lane)

    def start(self, reservation: Reservation, job: Job) -> None:
        """Run a job with the worker that was reserved for it."""
        self._known.add(job)
        self._begin(reservation.lane, job)

    def release(self, reservation: Reservation) -> None:
        """Give a reserved worker back; jobs that queued behind it go on."""
        self._leave(reservation.lane)

    def offer(self, lane: str, job: Job) -> bool:
        """Queue a job; False when it is known already or there is no room."""
        if not self.room or job in self._known:
            return False
        self._known.add(job)
        self._waiting += 1
        if lane not in self._lanes:
            self._lanes[lane] = deque()
            self._runnable.append(lane)
        self._lanes[lane].append(job)
        self._pump()
        return True

    async def drain(self, seconds: float) -> bool:
        """Take no more, drop what waits, give running jobs `seconds`; whether all of them ended by themselves."""
        self._open = False
        self._runnable.clear()
        for waiting in self._lanes.values():
            waiting.clear()
        self._waiting = 0
        if not self._tasks:
            return True
        _, unfinished = await asyncio.wait(self._tasks, timeout=seconds)
        await cancelled(*unfinished)
        return not unfinished

    def _pump(self) -> None:
        while self._free and self._runnable:
            lane = self._runnable.popleft()
            self._free -= 1
            self._waiting -= 1
            self._begin(lane, self._lanes[lane].popleft())

    def _begin(self, lane: str, job: Job) -> None:
        task = asyncio.create_task(self._work(lane, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, lane: str, job: Job) -> None:
        try:
            await self._run(job)
        finally:
            self._known.discard(job)
            self._leave(lane)

    def _leave(self, lane: str) -> None:
        self._free += 1
        if self._lanes[lane]:
            self._runnable.append(lane)
        else:
            del self._lanes[lane]
        self._pump()
