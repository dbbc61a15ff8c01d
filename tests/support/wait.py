"""Wait for something to become true; never sleep for luck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds for what needs a moment on a busy machine; no test says how long something took."""


def until(check: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """The first true value of `check()`, for tests that have no event loop; fails like `eventually`."""
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what} (last: {value!r})")
        time.sleep(0.01)


async def eventually(check: Callable[[], Awaitable[T]], what: str, seconds: float = 15.0) -> T:
    """The first true value of `check()`; fails, naming `what`, when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = await check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what} (last: {value!r})")
        await asyncio.sleep(0.02)
