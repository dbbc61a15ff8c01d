"""A real SMTP server inside the test's own loop: it keeps every mail, and refuses or hangs when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP as Conversation  # noqa: N811
from aiosmtpd.smtp import Envelope, Session

from scripts.embedded import free_port

HANG = "hang"
"""Say nothing any more after the mail's content has come."""
RESET = "reset"
"""Break the connection off after the mail's content has come."""
OK = "250 OK"

# aiosmtpd 1.4 sets Session.login_data itself, which its own Session declares deprecated.
QUIET = pytest.mark.filterwarnings("ignore:Session.login_data is deprecated:DeprecationWarning")


@dataclass(frozen=True)
class Mail:
    """One mail whose content has come in; `accepted` says whether the sender was told so."""

    recipients: tuple[str, ...]
    content: EmailMessage
    accepted: bool

    @property
    def subject(self) -> str:
        return str(self.content["Subject"])

    @property
    def message_id(self) -> str:
        return str(self.content["Message-ID"])

    @property
    def text(self) -> str:
        part = self.content.get_body(("plain",))
        assert part is not None
        return str(part.get_content())


@dataclass
class Mailbox:
    """Answers recipients by `at_rcpt` and contents by `at_data`, one entry per mail; then everything is fine again."""

    port: int
    at_rcpt: deque[str] = field(default_factory=deque)
    at_data: deque[str] = field(default_factory=deque)
    arrived: list[Mail] = field(default_factory=list)
    connections: int = 0
    most_open: int = 0
    """Connections that were open at the same time."""
    _server: asyncio.Server | None = None
    _open: set[Conversation] = field(default_factory=set)
    _release: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def mails(self) -> list[Mail]:
        """Those that were accepted."""
        return [mail for mail in self.arrived if mail.accepted]

    def to(self, address: str) -> list[Mail]:
        return [mail for mail in self.mails if address in mail.recipients]

    async def handle_RCPT(self, _s: Conversation, _x: Session, envelope: Envelope, address: str, _o: list[str]) -> str:  # noqa: N802
        answer = self.at_rcpt.popleft() if self.at_rcpt else OK
        if answer == OK:
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, conversation: Conversation, _x: Session, envelope: Envelope) -> str:  # noqa: N802
        answer = self.at_data.popleft() if self.at_data else OK
        content = envelope.content
        assert isinstance(content, bytes)
        mail = message_from_bytes(content, policy=default)
        self.arrived.append(Mail(tuple(envelope.rcpt_tos), mail, answer == OK))
        if answer == RESET and isinstance(conversation.transport, asyncio.Transport):
            conversation.transport.abort()
        if answer == HANG:
            await self._release.wait()
            return OK
        return answer

    def release(self) -> None:
        """Let the hanging ones be answered after all."""
        self._release.set()

    async def start(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(self._conversation, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Nobody answers any more; open connections break off."""
        if self._server is None:
            return
        self._server.close()
        for conversation in self._open:
            if isinstance(conversation.transport, asyncio.Transport):
                conversation.transport.abort()
        tasks = [task for each in self._open if (task := each._handler_coroutine)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._open.clear()
        self._server = None

    def _conversation(self) -> Conversation:
        self.connections += 1
        conversation = _Tracked(self, hostname="mail.example.com", ident="test", loop=asyncio.get_running_loop())
        conversation.opened = self._open
        self.most_open = max(self.most_open, len(self._open) + 1)
        return conversation


class _Tracked(Conversation):
    """A conversation that its mailbox can break off."""

    opened: set[Conversation]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.opened.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.opened.discard(self)


@contextlib.asynccontextmanager
async def mailbox(*, started: bool = True) -> AsyncIterator[Mailbox]:
    """A mailbox on a free port; not started, its port refuses connections until `start()`."""
    box = Mailbox(free_port())
    if started:
        await box.start()
    try:
        yield box
    finally:
        await box.stop()


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    """A port that takes connections and never says a word."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


def email(box: Mailbox | int, **more: Any) -> dict[str, Any]:
    """The section `email` of a shop that uses this server."""
    port = box if isinstance(box, int) else box.port
    return {"port": port, "tls": "none", **more}
