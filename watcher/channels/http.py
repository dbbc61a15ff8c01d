"""One HTTP request per message, and what its end says about the message; nothing else here knows aiohttp's errors.

Before the first byte of the request is written nothing can have been sent; from then on only an answer tells.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver
from aiohttp.connector import AddrInfoType

from watcher.channels import NotSent, Rejected, SendError, Unknown
from watcher.channels.causes import cause

MOST_ANSWER = 64 * 1024
MOST_RETRY_AFTER = 24 * 3600.0
_LATER = frozenset({408, 425, 429})
_SECONDS = re.compile(r"[0-9]{1,9}")
_HEADERS = {"User-Agent": "PayLatch", "Accept-Encoding": "identity"}

SocketMaker = Callable[[AddrInfoType], socket.socket]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the receiver said; only its status shows in logs."""

    status: int
    retry_after: float | None = None
    """Seconds, where the receiver named them or a moment; at most a day."""
    body: bytes = field(default=b"", repr=False)
    """Empty where it did not arrive whole or is larger than 64 KiB."""

    @property
    def accepted(self) -> bool:
        """Whether the receiver has taken the message over."""
        return 200 <= self.status <= 299

    @property
    def document(self) -> Mapping[str, Any]:
        """The JSON object in the body; empty for anything else."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def refusal(self) -> SendError:
        """What a status beyond 2xx means where nothing else in the answer says more.

        A redirect is a wrong address in our settings and no fault of the message, so it is worth another try.
        """
        reason = f"http_{self.status}"
        if self.status in _LATER or not 400 <= self.status <= 499:
            return NotSent(reason, self.retry_after)
        return Rejected(reason)


class Http:
    """Sends requests, each over a connection of its own: whether an idle one still lived is never in question."""

    def __init__(
        self, timeout: float, resolver: AbstractResolver | None = None, socket_maker: SocketMaker | None = None
    ) -> None:
        """`resolver` and `socket_maker` may refuse a host or an address with an `OSError`."""
        self._timeout, self._resolver, self._socket_maker = timeout, resolver, socket_maker
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """The answer within the timeout, whatever its status; raises `NotSent` or `Unknown` where none came."""
        if self._session is None:
            raise NotSent("not_open")
        progress = _Progress()
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._session.post(
                    url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=progress
                ) as response,
            ):
                progress.answer = Answer(response.status, retry_after(response.headers))
                return Answer(response.status, progress.answer.retry_after, await _body(response))
        except Exception as error:  # noqa: BLE001 - a library's fault, too, must leave the message with a known end
            if progress.answer is not None:  # the status says enough
                return progress.answer
            raise progress.broken(error) from None

    async def __aenter__(self) -> Self:
        """Prepare for sending; nothing is connected yet."""
        connector = aiohttp.TCPConnector(
            force_close=True,
            limit=0,  # the dispatcher limits
            use_dns_cache=False,
            resolver=self._resolver,
            socket_factory=self._socket_maker,
        )
        written = aiohttp.TraceConfig()
        written.on_request_headers_sent.append(_note_writing)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            trace_configs=[written],
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close what is open."""
        if self._session is not None:
            await self._session.close()


class OverHttp:
    """What channels over HTTP have in common: their connections are opened and closed with them."""

    _http: Http

    async def __aenter__(self) -> Self:
        """Connections are opened when there is something to send."""
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self._http.__aexit__(kind, error, traceback)


@dataclass(slots=True)
class _Progress:
    """How far a request has come, and so what a failure means."""

    written: bool = False
    answer: Answer | None = None

    def broken(self, error: Exception) -> SendError:
        """What a failure without an answer means."""
        if self.written:
            return Unknown(f"answer_{cause(error)}")
        return NotSent(f"connect_{cause(error)}")


async def _note_writing(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _sent: aiohttp.TraceRequestHeadersSentParams
) -> None:
    """Called immediately before the first byte is written."""
    context.trace_request_ctx.written = True


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MOST_ANSWER:
            response.close()
            return b""
    return bytes(body)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds until the moment that `Retry-After` names, between 0 and a day; None for what is neither form.

    A date is measured against the answer's own `Date`, since the two clocks may differ.
    """
    value = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(value):
        seconds = float(value)
    else:
        moment = _moment(value)
        if moment is None:
            return None
        seconds = (moment - (_moment(headers.get("Date", "")) or datetime.now(UTC))).total_seconds()
    return min(max(0.0, seconds), MOST_RETRY_AFTER)


def _moment(value: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def encoded(document: Mapping[str, Any]) -> bytes:
    """The document as JSON; raises `Rejected` for half a surrogate pair, which no JSON text can carry."""
    try:
        return orjson.dumps(document)
    except TypeError:
        raise Rejected("not_encodable") from None
