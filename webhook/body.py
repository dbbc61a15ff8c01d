"""Read a request body that anybody may send: bounded in size, time and total memory, and never misread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from models.settings import HttpSettings

DRAINED = 64 * 1024
DRAIN_TIMEOUT = 1.0


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """A request that is answered without being believed."""

    def __init__(self, status: int, outcome: str, sentence: str, *, close: bool = False, retry_after: int = 0) -> None:
        super().__init__(sentence)
        self.status, self.outcome, self.sentence, self.close = status, outcome, sentence, close
        self.retry_after = retry_after
        """Seconds after which another try makes sense; 0 where none does, or nobody knows when."""


class BodyReader:
    """Reads bodies within the settings' limits and counts the bytes that are in flight in this process."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._inflight = 0

    @contextlib.asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """The raw bytes, counted as in flight until the request is answered. Raises `Refusal` (413, 408, 503)."""
        if (request.content_length or 0) > self._settings.max_body_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(self._settings.body_timeout):
                    await self._collect(request, body)
            except TimeoutError:
                raise Refusal(408, "slow_body", "the body did not arrive in time", close=True) from None
            yield bytes(body)
        finally:
            self._inflight -= len(body)

    async def _collect(self, request: web.Request, body: bytearray) -> None:
        async for chunk in request.content.iter_any():
            if len(body) + len(chunk) > self._settings.max_body_bytes:
                raise self._too_large()
            if self._inflight + len(chunk) > self._settings.max_inflight_bytes:
                raise Refusal(503, "overloaded", "too many bodies are in flight; try again", close=True, retry_after=5)
            self._inflight += len(chunk)
            body += chunk

    def _too_large(self) -> Refusal:
        return Refusal(413, "too_large", f"a body has at most {self._settings.max_body_bytes} bytes", close=True)


async def drain(request: web.Request) -> bool:
    """Throw a small body away, so that the connection stays usable; False when it must be closed instead."""
    left = DRAINED
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(DRAIN_TIMEOUT):
            async for chunk in request.content.iter_any():
                left -= len(chunk)
                if left < 0:
                    return False
            return True
    return False
