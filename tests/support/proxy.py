"""A TCP proxy between a process and the database, so that a test decides when the line hangs, goes on, or is cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from pymongo.asynchronous.uri_parser import parse_uri

PIECE = 65536


class Proxy:
    """Passes bytes on in both directions, unless told otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._requests, self._replies = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._refusing = False
        self.resume()

    def hang(self) -> None:
        """From now on nothing gets through; what comes is kept until `resume`."""
        self._requests.clear()
        self._replies.clear()

    def hang_replies(self) -> None:
        """Requests still arrive at the database, but nobody hears its answer."""
        self._replies.clear()

    def resume(self) -> None:
        """Pass on what was kept, and everything after it."""
        self._refusing = False
        self._requests.set()
        self._replies.set()

    def cut(self, *, refuse: bool = False) -> None:
        """Break every connection, with what was kept on it; `refuse` new ones until `resume`."""
        self._refusing = refuse
        for writer in self._writers:
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the driver's."""
        if self._refusing:
            writer.transport.abort()
            return
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        pair = {writer, upstream_writer}
        self._writers |= pair
        directions = (
            asyncio.create_task(self._pass_on(reader, upstream_writer, self._requests)),
            asyncio.create_task(self._pass_on(upstream_reader, writer, self._replies)),
        )
        self._tasks |= {*directions}
        await asyncio.wait(directions)
        self._tasks -= {*directions}
        self._writers -= pair

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        try:
            with contextlib.suppress(OSError):
                while piece := await reader.read(PIECE):
                    await gate.wait()
                    writer.write(piece)
                    await writer.drain()
        finally:
            writer.close()

    def close(self) -> list[asyncio.Task[Any]]:
        """End everything; the tasks to wait for."""
        self.cut(refuse=True)
        ending = list(self._tasks)
        for task in ending:
            task.cancel()
        return ending


@contextlib.asynccontextmanager
async def proxy(uri: str) -> AsyncIterator[tuple[Proxy, str]]:
    """The proxy and the address to use instead of `uri`."""
    host, port = (await parse_uri(uri))["nodelist"][0]
    between = Proxy(host, port)
    server = await asyncio.start_server(between.accept, "127.0.0.1", 0)
    address = uri.replace(f"{host}:{port}", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield between, address
    finally:
        server.close()
        await asyncio.gather(*between.close(), return_exceptions=True)
        await server.wait_closed()
