from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.support.wait import eventually
from webhook.coalesce import Coalescer


class Store:
    """A flush that waits for its gate; an item named `bad…` gets its own exception, `explode` ends the whole flush."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.in_flight = 0

    async def flush(self, items: Sequence[str]) -> Sequence[str | BaseException]:
        self.batches.append(list(items))
        self.in_flight += 1
        assert self.in_flight == 1, "one flush at a time"
        try:
            await self.gate.wait()
        finally:
            self.in_flight -= 1
        if "explode" in items:
            raise ConnectionError("gone")
        return [ValueError(item) if item.startswith("bad") else item.upper() for item in items]

    async def flushes(self, count: int) -> None:
        async def check() -> bool:
            return len(self.batches) == count

        await eventually(check, f"{count} flushes began", 2)


def submitted(coalescer: Coalescer[str, str], *items: str, size: int = 0) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(coalescer.submit(item, size)) for item in items]


@pytest.mark.asyncio
async def test_a_lone_caller_waits_for_nobody() -> None:
    store = Store()
    store.gate.set()
    assert await asyncio.wait_for(Coalescer(store.flush, 10, 100).submit("a"), 1) == "A"
    assert store.batches == [["a"]]


@pytest.mark.asyncio
async def test_while_one_flush_is_in_flight_the_next_batch_gathers() -> None:
    store = Store()
    coalescer = Coalescer(store.flush, 10, 100)
    callers = submitted(coalescer, "a")
    await store.flushes(1)
    callers += submitted(coalescer, "b", "c", "d")
    await asyncio.sleep(0)
    assert store.batches == [["a"]]
    store.gate.set()
    assert await asyncio.wait_for(asyncio.gather(*callers), 2) == ["A", "B", "C", "D"]
    assert store.batches == [["a"], ["b", "c", "d"]]


@pytest.mark.asyncio
async def test_a_batch_holds_at_most_so_many_items() -> None:
    store = Store()
    coalescer = Coalescer(store.flush, 2, 100)
    callers = submitted(coalescer, "a", "b", "c", "d", "e")
    store.gate.set()
    assert await asyncio.wait_for(asyncio.gather(*callers), 2) == ["A", "B", "C", "D", "E"]
    assert store.batches == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.asyncio
async def test_a_batch_holds_at_most_so_many_bytes_but_always_one_item() -> None:
    store = Store()
    coalescer = Coalescer(store.flush, 10, 100)
    callers = [
        *submitted(coalescer, "a", "b", size=50),
        *submitted(coalescer, "c", size=1),
        *submitted(coalescer, "huge", size=1000),
        *submitted(coalescer, "d", size=100),
    ]
    store.gate.set()
    await asyncio.wait_for(asyncio.gather(*callers), 2)
    assert store.batches == [["a", "b"], ["c"], ["huge"], ["d"]]


@pytest.mark.asyncio
async def test_a_caller_that_leaves_does_not_cancel_the_flush() -> None:
    store = Store()
    coalescer = Coalescer(store.flush, 10, 100)
    leaving, staying = submitted(coalescer, "a", "b")
    await store.flushes(1)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    store.gate.set()
    assert await asyncio.wait_for(staying, 2) == "B"
    assert store.batches == [["a", "b"]]


@pytest.mark.asyncio
async def test_a_caller_that_leaves_before_its_batch_began_is_written_all_the_same() -> None:
    store = Store()
    coalescer = Coalescer(store.flush, 10, 100)
    (first,) = submitted(coalescer, "a")
    await store.flushes(1)
    (leaving,) = submitted(coalescer, "b")
    await asyncio.sleep(0)
    leaving.cancel()
    store.gate.set()
    await asyncio.wait_for(first, 2)
    await asyncio.wait_for(coalescer.settled(), 2)
    assert store.batches == [["a"], ["b"]]


@pytest.mark.asyncio
async def test_a_flush_that_raises_answers_every_caller_of_its_batch_and_only_those() -> None:
    store = Store()
    coalescer = Coalescer(store.flush, 2, 100)
    store.gate.set()
    results = await asyncio.gather(*submitted(coalescer, "a", "explode", "c"), return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionError, ConnectionError, str]
    assert store.batches == [["a", "explode"], ["c"]]
    assert await coalescer.submit("d") == "D"


@pytest.mark.asyncio
async def test_each_caller_gets_its_own_result_or_exception() -> None:
    store = Store()
    store.gate.set()
    callers = submitted(Coalescer(store.flush, 10, 100), "a", "bad1", "b", "bad2")
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert [results[0], results[2]] == ["A", "B"]
    assert [str(results[1]), str(results[3])] == ["bad1", "bad2"]
    assert store.batches == [["a", "bad1", "b", "bad2"]]


@pytest.mark.asyncio
async def test_an_exception_nobody_waits_for_leaves_no_warning_behind() -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    store = Store()
    coalescer = Coalescer(store.flush, 10, 100)
    (leaving,) = submitted(coalescer, "bad")
    await store.flushes(1)
    leaving.cancel()
    store.gate.set()
    await asyncio.wait_for(coalescer.settled(), 2)
    del leaving
    await asyncio.sleep(0)
    assert complaints == []


@pytest.mark.asyncio
async def test_settled_waits_for_what_is_in_flight_and_for_what_waits() -> None:
    store = Store()
    coalescer = Coalescer(store.flush, 1, 100)
    await coalescer.settled()
    callers = submitted(coalescer, "a", "b")
    await store.flushes(1)
    settled = asyncio.create_task(coalescer.settled())
    await asyncio.sleep(0)
    assert not settled.done()
    store.gate.set()
    await asyncio.wait_for(settled, 2)
    assert store.batches == [["a"], ["b"]]
    assert all(caller.done() for caller in callers)


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [0, 10], ids=["rows", "bytes"])
async def test_it_is_full_when_three_batches_wait_and_not_any_more_when_they_are_written(size: int) -> None:
    gate, flushing = asyncio.Event(), asyncio.Event()

    async def flush(items: Sequence[int]) -> Sequence[int]:
        flushing.set()
        await gate.wait()
        return items

    coalescer: Coalescer[int, int] = Coalescer(flush, most_items=2 if size == 0 else 1000, most_bytes=20)
    callers = [asyncio.create_task(coalescer.submit(0, size))]
    await eventually(flushing.wait, "the first batch is under way")
    for item in range(6):
        assert not coalescer.full
        callers.append(asyncio.create_task(coalescer.submit(item, size)))
        await asyncio.sleep(0)  # the caller joins the queue
    assert coalescer.full
    gate.set()
    await asyncio.gather(*callers)
    assert not coalescer.full
