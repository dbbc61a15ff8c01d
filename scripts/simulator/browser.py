"""A buyer's browser after paying: it posts what the checkout gave it, or follows a payment link back to the shop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDictProxy

from scripts.simulator.callbacks import Fields


@dataclass(frozen=True, slots=True)
class Shown:
    """An answer, byte for byte."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def location(self) -> str | None:
        """Where a redirect leads."""
        return self.headers.get("Location")


class Browser:
    """Calls the routes of one PayLatch, such as `http://127.0.0.1:8080`; follows no redirect."""

    def __init__(self, address: str, http: aiohttp.ClientSession) -> None:
        self._address, self._http = address, http

    async def verify(self, fields: Fields, *, form: bool = False, headers: Mapping[str, str] | None = None) -> Shown:
        """Post what the checkout's handler received, as JSON or as a form."""
        body = {"data": fields} if form else {"json": fields}
        return await self._call("POST", "/checkout/verify", headers=headers, **body)

    async def post(self, raw: bytes, content_type: str = "application/json") -> Shown:
        """Post exactly these bytes."""
        return await self._call("POST", "/checkout/verify", headers={"Content-Type": content_type}, data=raw)

    async def come_back(self, query: Mapping[str, str] | list[tuple[str, str]]) -> Shown:
        """Arrive from a payment link's page."""
        return await self._call("GET", "/checkout/payment-link", params=query)

    async def may_post(self, origin: str) -> Shown:
        """Ask, as a browser does before a page of another origin posts JSON."""
        asked = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type",
        }
        return await self._call("OPTIONS", "/checkout/verify", headers=asked)

    async def _call(self, method: str, path: str, **options: object) -> Shown:
        async with self._http.request(method, self._address + path, allow_redirects=False, **options) as response:  # type: ignore[arg-type]  # handed through
            return Shown(response.status, response.headers, await response.read())
