"""Gather what arrives while a write is under way, and write it at once: no timer, so a lone caller waits for nobody."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MOST_WAITING_BATCHES = 3
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(slots=True)
class _Waiting(Generic[Item, Result]):
    item: Item
    size: int
    result: asyncio.Future[Result] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Coalescer(Generic[Item, Result]):
    """While one flush is in flight the next batch gathers.

    `flush(items)` answers with one result or exception per item, in order; if it raises, every caller of the batch gets
    that. A caller that goes away never cancels a flush.
    """

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[Sequence[Result | BaseException]]],
        most_items: int,
        most_bytes: int,
    ) -> None:
        self._flush = flush
        self._most_items, self._most_bytes = most_items, most_bytes
        self._waiting: deque[_Waiting[Item, Result]] = deque()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """Whether so much is waiting that a newcomer's time would be over before its batch begins."""
        return len(self._waiting) >= MOST_WAITING_BATCHES * self._most_items or (
            self._waiting_bytes >= MOST_WAITING_BATCHES * self._most_bytes
        )

    async def submit(self, item: Item, size: int = 0) -> Result:
        """Join the next batch and wait for this item's own result; `size` in bytes."""
        waiting: _Waiting[Item, Result] = _Waiting(item, size)
        self._waiting.append(waiting)
        self._waiting_bytes += size
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        return await asyncio.shield(waiting.result)

    async def settled(self) -> None:
        """Wait until nothing is waiting or in flight."""
        while self._task is not None:
            await asyncio.shield(self._task)

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await self._flush_batch(self._next_batch())
        finally:
            self._task = None

    def _next_batch(self) -> list[_Waiting[Item, Result]]:
        batch = [self._waiting.popleft()]
        size = batch[0].size
        while self._waiting and len(batch) < self._most_items and size + self._waiting[0].size <= self._most_bytes:
            size += self._waiting[0].size
            batch.append(self._waiting.popleft())
        self._waiting_bytes -= size
        return batch

    async def _flush_batch(self, batch: list[_Waiting[Item, Result]]) -> None:
        try:
            results: Sequence[Result | BaseException] = await self._flush([waiting.item for waiting in batch])
        except Exception as error:  # noqa: BLE001 - it belongs to the callers, not to this loop
            results = [error] * len(batch)
        if len(results) != len(batch):
            results = [RuntimeError("a flush must answer every item")] * len(batch)
        for waiting, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                waiting.result.set_exception(result)
                waiting.result.exception()  # a caller that left must not leave a warning behind
            else:
                waiting.result.set_result(result)
