"""Which pages of other origins may read an answer (CORS): the configured ones, by their exact name, without cookies."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

PREFLIGHT_KEPT = "600"
"""Seconds for which a browser need not ask again."""


class Origins:
    """The configured origins; never `*`, and never with credentials."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)

    def mark(self, request: web.Request, response: web.Response) -> None:
        """Let the asking page read the answer if it is one of ours; caches must keep the answers apart either way."""
        response.headers["Vary"] = "Origin"
        if (origin := self._allowed(request)) is not None:
            response.headers["Access-Control-Allow-Origin"] = origin

    async def preflight(self, request: web.Request) -> web.Response:
        """Answer a browser's question whether it may POST JSON."""
        allowed = self._allowed(request) is not None
        response = web.Response(status=204 if allowed else 403)
        self.mark(request, response)
        if allowed:
            response.headers["Access-Control-Allow-Methods"] = "POST"
            response.headers["Access-Control-Allow-Headers"] = "Content-Type"
            response.headers["Access-Control-Max-Age"] = PREFLIGHT_KEPT
        return response

    def _allowed(self, request: web.Request) -> str | None:
        asked = request.headers.getall("Origin", [])
        return asked[0] if len(asked) == 1 and asked[0] in self._origins else None
