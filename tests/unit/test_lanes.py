from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.support.wait import eventually
from webhook.event_rows import Job
from webhook.lanes import Lanes


class Work:
    """Jobs that run until they are told to end; their names start with their lane."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.done: list[str] = []
        self.most = 0
        self.gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def __call__(self, job: str) -> None:
        self.running.append(job)
        self.most = max(self.most, len(self.running))
        try:
            await self.gates[job].wait()
            self.done.append(job)
        finally:
            self.running.remove(job)

    def end(self, *jobs: str) -> None:
        for job in jobs:
            self.gates[job].set()

    async def runs(self, *jobs: str) -> None:
        async def check() -> bool:
            return sorted(self.running) == sorted(jobs)

        await eventually(check, f"{jobs} run", 2)

    async def ended(self, *jobs: str) -> None:
        async def check() -> bool:
            return self.done == list(jobs)

        await eventually(check, f"{jobs} ended in this order", 2)


MakeLanes = Callable[[int, int, Callable[[Any], Awaitable[None]]], Lanes[Any]]


@pytest_asyncio.fixture
async def make_lanes() -> AsyncIterator[MakeLanes]:
    """Lanes that end with the test."""
    made: list[Lanes[Any]] = []

    def make(workers: int, queue: int, run: Callable[[Any], Awaitable[None]]) -> Lanes[Any]:
        made.append(Lanes(workers, queue, run))
        return made[-1]

    yield make
    for lanes in made:
        await lanes.drain(0)


@pytest.mark.asyncio
async def test_jobs_of_one_lane_run_one_after_another_in_order(make_lanes: MakeLanes) -> None:
    work = Work()
    lanes = make_lanes(4, 10, work)
    assert [lanes.offer("a", job) for job in ("a1", "a2", "a3")] == [True, True, True]
    await work.runs("a1")
    work.end("a3", "a2", "a1")
    await work.ended("a1", "a2", "a3")
    assert work.most == 1


@pytest.mark.asyncio
async def test_lanes_run_side_by_side_but_never_more_than_there_are_workers(make_lanes: MakeLanes) -> None:
    work = Work()
    lanes = make_lanes(2, 10, work)
    for job in ("a1", "b1", "c1", "d1"):
        lanes.offer(job[0], job)
    await work.runs("a1", "b1")
    work.end("b1")
    await work.runs("a1", "c1")
    work.end("a1")
    await work.runs("c1", "d1")
    assert work.most == 2


@pytest.mark.asyncio
async def test_a_busy_lane_does_not_starve_the_others(make_lanes: MakeLanes) -> None:
    work = Work()
    lanes = make_lanes(1, 10, work)
    for job in ("a1", "a2", "a3", "b1"):
        lanes.offer(job[0], job)
    work.end("a1", "a2", "a3", "b1")
    await work.ended("a1", "b1", "a2", "a3")


@pytest.mark.asyncio
async def test_a_job_that_waits_or_runs_is_not_taken_twice_and_later_it_is(make_lanes: MakeLanes) -> None:
    work = Work()
    lanes = make_lanes(1, 10, work)
    assert lanes.offer("a", "a1")
    assert lanes.offer("b", "b1")
    assert not lanes.offer("a", "a1")
    assert not lanes.offer("b", "b1")
    work.end("a1", "b1")
    await work.ended("a1", "b1")
    assert lanes.offer("a", "a1")
    await work.ended("a1", "b1", "a1")


@pytest.mark.asyncio
async def test_the_same_row_is_one_job_with_or_without_a_claim(make_lanes: MakeLanes) -> None:
    running = asyncio.Event()
    gate = asyncio.Event()

    async def run(_: Job) -> None:
        running.set()
        await gate.wait()

    lanes = make_lanes(2, 10, run)
    reservation = lanes.reserve("a")
    assert reservation
    lanes.start(reservation, Job(7, claim=None))
    await running.wait()
    assert not lanes.offer("a", Job(7))
    gate.set()
    assert await lanes.drain(2)


@pytest.mark.asyncio
async def test_there_is_room_for_as_many_waiting_jobs_as_the_queue_holds(make_lanes: MakeLanes) -> None:
    work = Work()
    lanes = make_lanes(1, 2, work)
    assert lanes.room == 2
    assert lanes.offer("a", "a1"), "it runs at once and does not wait"
    assert lanes.room == 2
    assert lanes.offer("a", "a2")
    assert lanes.offer("b", "b1")
    assert lanes.room == 0
    assert not lanes.offer("c", "c1")
    work.end("a1")
    await work.ended("a1")
    assert lanes.room == 1
    assert lanes.offer("c", "c1")


@pytest.mark.asyncio
async def test_a_reserved_worker_is_kept_and_its_lane_is_in_use(make_lanes: MakeLanes) -> None:
    work = Work()
    lanes = make_lanes(2, 10, work)
    first = lanes.reserve("a")
    assert first
    assert lanes.reserve("a") is None, "the lane is in use"
    assert lanes.reserve("b")
    assert lanes.reserve("c") is None, "no worker is left"
    lanes.offer("c", "c1")
    lanes.start(first, "a1")
    await work.runs("a1")
    work.end("a1")
    await work.runs("c1")


@pytest.mark.asyncio
async def test_a_reservation_that_is_released_lets_what_queued_behind_it_run(make_lanes: MakeLanes) -> None:
    work = Work()
    lanes = make_lanes(1, 10, work)
    reservation = lanes.reserve("a")
    assert reservation
    lanes.offer("a", "a1")
    lanes.offer("b", "b1")
    assert work.running == []
    lanes.release(reservation)
    work.end("a1", "b1")
    await work.ended("b1", "a1")
    assert lanes.reserve("a"), "everything is free again"


@pytest.mark.asyncio
async def test_a_job_that_raises_frees_its_worker_and_its_lane(make_lanes: MakeLanes) -> None:
    done = asyncio.Event()

    async def run(job: str) -> None:
        if job == "a1":
            raise RuntimeError(job)
        done.set()

    lanes = make_lanes(1, 10, run)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the failure itself is the caller's to report
    lanes.offer("a", "a1")
    lanes.offer("a", "a2")
    await asyncio.wait_for(done.wait(), 2)
    assert await lanes.drain(1)


@pytest.mark.asyncio
async def test_draining_lets_running_jobs_end_and_drops_what_waits(make_lanes: MakeLanes) -> None:
    work = Work()
    lanes = make_lanes(1, 10, work)
    for job in ("a1", "a2", "b1"):
        lanes.offer(job[0], job)
    await work.runs("a1")
    draining = asyncio.create_task(lanes.drain(5))
    await asyncio.sleep(0)
    assert (lanes.room, lanes.offer("c", "c1"), lanes.reserve("d")) == (0, False, None)
    work.end("a1", "a2", "b1", "c1")
    assert await draining
    assert work.done == ["a1"]


@pytest.mark.asyncio
async def test_a_job_that_does_not_end_in_time_is_cancelled(make_lanes: MakeLanes) -> None:
    work = Work()
    lanes = make_lanes(2, 10, work)
    lanes.offer("a", "a1")
    lanes.offer("b", "b1")
    await work.runs("a1", "b1")
    work.end("a1")
    assert not await lanes.drain(0.05)
    assert (work.running, work.done) == ([], ["a1"])


@pytest.mark.asyncio
async def test_draining_idle_lanes_ends_at_once(make_lanes: MakeLanes) -> None:
    assert await make_lanes(2, 10, Work()).drain(0)
