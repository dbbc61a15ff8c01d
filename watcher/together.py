"""Run the parts of one job side by side, so that none of them can end unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from models.duties import cancelled


class TaskCancelled(Exception):  # noqa: N818 - a finding, to be started again
    """A part of the job was cancelled from outside."""


def settle(task: asyncio.Task[Any]) -> None:
    """Raise what an ended task ended with; a cancelled one is a failure like any other.

    `asyncio.TaskGroup` would ignore a cancelled child and wait for the others for ever.
    """
    if task.cancelled():
        raise TaskCancelled
    task.result()


async def together(*parts: Coroutine[Any, Any, None]) -> None:
    """Wait until all parts have ended; the first failure ends the others and is raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                settle(task)
    finally:
        await cancelled(*tasks)
