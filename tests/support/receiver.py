"""An HTTP server on a real socket that keeps every request, and answers, hangs or resets as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any


@dataclass(frozen=True)
class Request:
    """One request that has come in whole."""

    line: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """What is answered, after `pause` seconds; `cut` hangs up before the body is whole."""

    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()
    pause: float = 0.0
    cut: bool = False

    def encoded(self) -> bytes:
        length = len(self.body) + (1 if self.cut else 0)
        given = [("Content-Type", "application/json"), ("Content-Length", str(length)), *self.headers]
        head = "".join(f"{name}: {value}\r\n" for name, value in given)
        return f"HTTP/1.1 {self.status} Told\r\n{head}\r\n".encode() + self.body


HANG = "hang"
"""Say nothing any more after the request has come."""
RESET = "reset"
"""Break the connection off after the request has come."""
Behaviour = Reply | str


def reply(status: int = 200, document: Any = None, **more: Any) -> Reply:
    return Reply(status, json.dumps({} if document is None else document).encode(), **more)


def retry_at(seconds: int) -> tuple[tuple[str, str], ...]:
    """Headers of a server whose clock is wrong by days, and that asks for another try after so many seconds."""
    now = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    later = now + timedelta(seconds=seconds)
    return (("Date", format_datetime(now, usegmt=True)), ("Retry-After", format_datetime(later, usegmt=True)))


@dataclass
class Receiver:
    """Answers by `behaviours`, one for each request; then by `usual`."""

    usual: Behaviour = field(default_factory=Reply)
    behaviours: deque[Behaviour] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._conversation(reader, writer)
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()

    async def _conversation(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            self.requests.append(await _read(reader))
            behaviour = self.behaviours.popleft() if self.behaviours else self.usual
            if isinstance(behaviour, Reply):
                await asyncio.sleep(behaviour.pause)
                writer.write(behaviour.encoded())
                await writer.drain()
                if behaviour.cut:
                    return
            elif behaviour == RESET:
                own: socket.socket = writer.get_extra_info("socket")
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return
            else:
                await asyncio.Event().wait()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in head[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    return Request(head[0], headers, await reader.readexactly(int(headers.get("content-length", "0"))))


@contextlib.asynccontextmanager
async def receiver(usual: Behaviour | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """A receiver on a free port of loopback."""
    box = Receiver(usual or Reply())
    server = await asyncio.start_server(box.serve, "127.0.0.1", 0, ssl=tls)
    box.port = server.sockets[0].getsockname()[1]
    try:
        yield box
    finally:
        server.close()
        await box.stop()
