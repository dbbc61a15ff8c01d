"""Sending one signed delivery as Razorpay does: its headers, its five seconds, its retries."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self
from urllib.parse import urlsplit

import aiohttp

if TYPE_CHECKING:
    from types import TracebackType

Kind = Literal["first", "duplicate", "replay", "bad_signature"]
Verdict = Literal["accepted", "duplicate"]

TIMEOUT = 5.0
"""Seconds until the provider counts a delivery as failed."""


def sign(secret: str, raw: bytes) -> str:
    """Hex HMAC-SHA256 of exactly these bytes."""
    return hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()


def headers(event_id: str, signature: str) -> dict[str, str]:
    """The headers of a true delivery; `Host` and `Content-Length` are the transport's."""
    return {
        "User-Agent": "Razorpay-Webhook/v1",
        "Content-Type": "application/json",
        "Request-Id": event_id,
        "X-Razorpay-Event-Id": event_id,
        "X-Razorpay-Signature": signature,
        "Accept-Encoding": "gzip",
    }


def is_loopback(url: str) -> bool:
    """Whether the url names this very host by a loopback address or as `localhost`."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Delivery:
    """One POST: exact bytes, event id and the secret (or a given signature) that vouches for them."""

    raw: bytes
    event_id: str
    secret: str = field(repr=False)
    signature: str | None = None
    """Sent instead of the true signature."""
    kind: Kind = "first"
    note: str = ""
    """What a report calls it, such as `payment.captured pay_...`."""
    lane: str = ""
    """Deliveries of one lane are sent one after the other; an empty lane waits for nobody."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers this delivery goes out with."""
        return headers(self.event_id, self.signature or sign(self.secret, self.raw))

    def is_settled_by(self, answer: Answer) -> bool:
        """Whether sending again is pointless: a 2xx, or the refusal that a bad signature deserves."""
        return answer.ok or (self.kind == "bad_signature" and 400 <= answer.status < 500)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; status 0 and an error text when nothing did."""

    status: int
    body: dict[str, Any] | None = None
    error: str | None = None
    tries: int = 1
    """Requests it took, this one included."""

    @property
    def ok(self) -> bool:
        """Whether the provider would count it as delivered: 2xx, and nothing else."""
        return 200 <= self.status < 300

    @property
    def verdict(self) -> Verdict | None:
        """`accepted` or `duplicate`, None for any other answer."""
        said = (self.body or {}).get("status") if self.ok else None
        return said if said in {"accepted", "duplicate"} else None


class Poster(Protocol):
    """Whatever sends a delivery; the real one is `Sender`."""

    async def post(self, delivery: Delivery) -> Answer:
        """Send it and read the answer; never raises for what the network does."""
        ...

    async def abandon(self, delivery: Delivery) -> Answer:
        """Send it and hang up before the answer."""
        ...


class Sender:
    """One HTTP session towards one webhook url; an async context manager."""

    def __init__(self, url: str, *, timeout: float = TIMEOUT, connections: int = 100) -> None:
        self.url = url
        self._timeout = timeout
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the session."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            skip_auto_headers={"Accept"},
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()

    async def post(self, delivery: Delivery) -> Answer:
        """Send once and read the answer; redirects are not followed, as the provider follows none."""
        if self._session is None:
            raise RuntimeError("a Sender is used inside `async with`")
        try:
            async with self._session.post(
                self.url,
                data=delivery.raw,
                headers=delivery.headers,
                allow_redirects=False,
            ) as response:
                return Answer(response.status, _json_object(await response.read()))
        except TimeoutError:
            return Answer(0, error=f"no answer within {self._timeout:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Answer(0, error=f"{type(error).__name__}: {error}")

    async def abandon(self, delivery: Delivery) -> Answer:
        """Send the whole request on a connection of its own and hang up without reading the answer."""
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        try:
            async with asyncio.timeout(self._timeout):
                _, writer = await asyncio.open_connection(
                    parts.hostname, parts.port or (443 if secure else 80), ssl=secure
                )
                try:
                    writer.write(_request(delivery, parts.netloc, parts.path or "/"))
                    await writer.drain()
                finally:
                    writer.close()
                    with suppress(OSError):
                        await writer.wait_closed()
        except (TimeoutError, OSError) as error:
            return Answer(0, error=f"{type(error).__name__}: {error}")
        return Answer(0, error="hung up before the answer")


async def deliver(sender: Poster, delivery: Delivery, *, tries: int = 4, backoff: float = 0.2) -> Answer:
    """Send as the provider does: again after anything but a 2xx, at most `tries` times, `backoff` seconds doubling."""
    answer = await sender.post(delivery)
    for attempt in range(2, tries + 1):
        if delivery.is_settled_by(answer):
            break
        await asyncio.sleep(backoff * 2 ** (attempt - 2))
        answer = replace(await sender.post(delivery), tries=attempt)
    return answer


def _request(delivery: Delivery, host: str, path: str) -> bytes:
    lines = {"Host": host, "Content-Length": str(len(delivery.raw)), **delivery.headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + delivery.raw


def _json_object(raw: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
