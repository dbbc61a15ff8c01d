"""SMTP conversations, one step at a time, so that every failure says whether the mail can have been sent."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from typing import TYPE_CHECKING, Literal, cast

from aiosmtplib import SMTP, SMTPException, SMTPHeloError, SMTPResponseException, SMTPServerDisconnected
from aiosmtplib.protocol import normalize_message_line_endings

from watcher.channels import NotSent, Rejected, SendError, Unknown
from watcher.channels.causes import cause

if TYPE_CHECKING:
    from models.settings import EmailSettings

Stage = Literal["connect", "login", "mail", "rcpt", "data", "content"]

_AUTH_CODES = frozenset({530, 534, 535, 538})  # RFC 4954: credentials are missing, too weak or wrong
_LEADING_DOT = re.compile(rb"(?m)^\.")
_CHECK_SECONDS = 5.0  # how long an idle connection may take to show that it is alive
_QUIT_SECONDS = 1.0
_STARTTLS: dict[str, bool | None] = {"auto": None, "starttls": True, "tls": False, "none": False}


class Pool:
    """At most `concurrency` connections; one is reused only after a mail that went well and if it still answers."""

    def __init__(self, settings: EmailSettings, greeting: str) -> None:
        self._settings = settings
        self._greeting = greeting
        """Our name in EHLO: the sender's domain, since looking up the host's own name can hang in DNS."""
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._idle: list[SMTP] = []
        self._tls: ssl.SSLContext | None = None

    async def deliver(self, sender: str, recipient: str, content: bytes) -> None:
        """Hand one mail over within the configured timeout; raises `SendError`."""
        progress = _Progress()
        try:
            async with asyncio.timeout(self._settings.timeout), self._slots:
                await self._deliver(progress, sender, recipient, content)
        except SMTPResponseException as error:
            raise progress.refused(error.code) from None
        except (SMTPException, OSError, ValueError, RuntimeError) as error:
            raise progress.broken(error) from None

    async def _deliver(self, progress: _Progress, sender: str, recipient: str, content: bytes) -> None:
        smtp = await self._reusable() or await self._connected(progress)
        try:
            await _converse(smtp, progress, sender, recipient, content)
        except BaseException:  # cancellation too: what the connection would say next is not for the next mail
            _abort(smtp)
            raise
        self._idle.append(smtp)

    async def _reusable(self) -> SMTP | None:
        """A live idle connection; when one turns out dead the others are as old, so all are given up."""
        while self._idle:
            smtp = self._idle.pop()
            try:
                if smtp.is_connected:
                    await smtp.rset(timeout=min(_CHECK_SECONDS, self._settings.timeout / 4))
                    return smtp
            except (SMTPException, OSError):
                self._abort_idle()
                _abort(smtp)
            except BaseException:
                _abort(smtp)
                raise
        return None

    async def _connected(self, progress: _Progress) -> SMTP:
        settings = self._settings
        if self._tls is None and settings.tls != "none":
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        smtp = SMTP(
            hostname=settings.host,
            port=settings.port,
            local_hostname=self._greeting,
            use_tls=settings.tls == "tls",
            start_tls=_STARTTLS[settings.tls],
            tls_context=self._tls,
            timeout=None,  # one deadline for all steps together, in `deliver`
        )
        try:
            await smtp.connect()
            await self._introduce(smtp, progress)
        except BaseException:
            _abort(smtp)
            raise
        return smtp

    async def _introduce(self, smtp: SMTP, progress: _Progress) -> None:
        if smtp.is_ehlo_or_helo_needed:
            try:
                await smtp.ehlo()
            except SMTPHeloError:
                await smtp.helo()
        if self._settings.username is not None:
            progress.stage = "login"
            password = self._settings.password
            await smtp.login(self._settings.username, password.get_secret_value() if password else "", timeout=None)

    def _abort_idle(self) -> None:
        while self._idle:
            _abort(self._idle.pop())

    async def close(self) -> None:
        """Say goodbye on the idle connections, briefly, and close them."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(_quit(smtp) for smtp in idle))


_TOO_LARGE = 552


class _Progress:
    """How far a mail has come, and so what a failure means."""

    stage: Stage = "connect"

    def refused(self, code: int) -> SendError:
        """What a reply other than the expected one means; only a refusal of *this mail* is for good."""
        reason = f"{self.stage}_{code}" if 100 <= code <= 599 else f"{self.stage}_unreadable"
        if code in _AUTH_CODES or (self.stage == "login" and code >= 500):
            return NotSent("auth_failed")
        if 400 <= code <= 499 or self.stage in {"connect", "login"}:
            return NotSent(reason)
        if self.stage == "mail" and code != _TOO_LARGE:  # a refused sender is the configuration's fault, not the mail's
            return NotSent(reason)
        if 500 <= code <= 599:
            return Rejected(reason)
        return self._lost(reason)

    def broken(self, error: Exception) -> SendError:
        """What a timeout, a disconnect or a client-side failure means."""
        return self._lost(f"{self.stage}_{_cause(error)}")

    def _lost(self, reason: str) -> SendError:
        return Unknown(reason) if self.stage == "content" else NotSent(reason)


async def _converse(smtp: SMTP, progress: _Progress, sender: str, recipient: str, content: bytes) -> None:
    """MAIL, RCPT, DATA and the content; `data()` of the library would hide whether the content was begun."""
    progress.stage = "mail"
    await smtp.mail(sender)
    progress.stage = "rcpt"
    await smtp.rcpt(recipient)
    progress.stage = "data"
    reply = await smtp.execute_command(b"DATA")
    if reply.code != 354:
        raise SMTPResponseException(reply.code, "")
    protocol = smtp.protocol
    if protocol is None:
        raise SMTPServerDisconnected("")
    progress.stage = "content"
    protocol.write(_LEADING_DOT.sub(b"..", normalize_message_line_endings(content)) + b".\r\n")
    reply = await protocol.read_response()
    if not 200 <= reply.code <= 299:
        raise SMTPResponseException(reply.code, "")


def _cause(error: Exception) -> str:
    word = cause(error)
    return "unsupported" if word == "failed" and isinstance(error, SMTPException) else word


def _abort(smtp: SMTP) -> None:
    """Close at once: a graceful close would wait for a peer that may never read."""
    transport = smtp.transport
    if transport is not None:
        cast("asyncio.WriteTransport", transport).abort()
    smtp.close()


async def _quit(smtp: SMTP) -> None:
    with contextlib.suppress(SMTPException, OSError):
        await smtp.quit(timeout=_QUIT_SECONDS)
    _abort(smtp)
