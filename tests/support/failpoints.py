"""A server that can be told to fail, and to be itself again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from models.database import Database
from tests.support.server import server


@contextlib.contextmanager
def failing_server(folder: Path) -> Iterator[str]:
    """An embedded server with fail points; drivers look often whether it is itself again."""
    with server(folder, extra=("--enable-test-commands",)) as address:
        yield f"{address}&heartbeatFrequencyMS=500"


@contextlib.asynccontextmanager
async def failing(
    db: Database, commands: str | tuple[str, ...], mode: Any = "alwaysOn", **how: Any
) -> AsyncIterator[None]:
    """The server fails these commands, so often, in this way."""
    names = [commands] if isinstance(commands, str) else list(commands)
    point = {"configureFailPoint": "failCommand"}
    await db.client.admin.command({**point, "mode": mode, "data": {"failCommands": names, **how}})
    try:
        yield
    finally:
        await db.client.admin.command({**point, "mode": "off"})
