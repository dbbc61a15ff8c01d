"""A local SMTP server that keeps what it accepted, so that the demo can compare what was promised with what arrived."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from typing import Any

from models.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Mail:
    """One accepted mail."""

    recipients: tuple[str, ...]
    subject: str
    message_id: str


@dataclass
class Sink:
    """The accepted mails, in order of arrival."""

    port: int = 0
    mails: list[Mail] = field(default_factory=list)
    on_mail: Callable[[Mail], None] | None = None

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: ANN401, N802 - aiosmtpd's name
        """Accept everything."""
        message = message_from_bytes(envelope.content, policy=policy.default)
        mail = Mail(tuple(envelope.rcpt_tos), str(message["Subject"]), str(message["Message-ID"]))
        self.mails.append(mail)
        if self.on_mail:
            self.on_mail(mail)
        return "250 OK"


@contextlib.contextmanager
def mail_sink(port: int, on_mail: Callable[[Mail], None] | None = None) -> Iterator[Sink]:
    """Listen on 127.0.0.1 in a thread. Raises `SettingsError` when the extra `embedded` is not installed."""
    try:
        from aiosmtpd.controller import Controller  # noqa: PLC0415 - comes with the extra `embedded`
    except ImportError:
        raise SettingsError("the mail sink is not installed: run `pip install 'paylatch[embedded]'`") from None
    sink = Sink(port, on_mail=on_mail)
    controller = Controller(sink, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield sink
    finally:
        controller.stop()
