"""A webhook process on a thread of its own that stops dead at a crash point, as kill -9 stops it: nothing is undone.

Unlike a killed one it can be thawed later, and is then the worst of all processes: one that believes it still holds
its leases.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from models import crash
from models.duties import cancelled
from models.settings import Settings
from tests.support.wait import PATIENCE
from webhook.app import Webhook, webhook

T = TypeVar("T")


class Freezable:
    """The parts of `webhook(settings)`, running in the background."""

    _by_thread: dict[int, Freezable] = {}  # noqa: RUF012 - one per interpreter, like the crash points

    def __init__(self, settings: Settings) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._reached, self._thaw = threading.Event(), threading.Event()
        self._context = contextlib.AsyncExitStack()
        self._started: list[concurrent.futures.Future[Any]] = []
        self._thread.start()
        assert self._thread.ident is not None
        self._by_thread[self._thread.ident] = self
        self.parts: Webhook = self.run(self._context.enter_async_context(webhook(settings)))

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Do it in the process and do not wait."""
        self._started.append(future := asyncio.run_coroutine_threadsafe(work, self._loop))
        return future

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it in the process."""
        return self.start(work).result(PATIENCE)

    @property
    def frozen(self) -> bool:
        return self._reached.is_set()

    def stop(self) -> None:
        """Thaw it if need be, let it end as SIGTERM does, and wait for it."""
        self._thaw.set()
        concurrent.futures.wait(self._started, PATIENCE)
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        assert self._thread.ident is not None
        del self._by_thread[self._thread.ident]

    async def _end(self) -> None:
        """As a process ends: whatever its parts left running ends too."""
        await self._context.aclose()
        await cancelled(*(asyncio.all_tasks() - {asyncio.current_task()}))

    @classmethod
    def freeze(cls, *_: object) -> None:
        """Stand still where the process that reached the armed point would have been killed."""
        crash.arm(None)
        here = cls._by_thread[threading.get_ident()]
        here._reached.set()
        here._thaw.wait()


@contextlib.contextmanager
def freezing() -> Any:
    """Crash points freeze the process that reaches them instead of killing this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash, "os", SimpleNamespace(kill=Freezable.freeze, getpid=threading.get_ident))
        yield
    crash.arm(None)
