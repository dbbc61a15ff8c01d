"""The provider's API on this machine: it serves what the signed sender sent, and fails as it is told to.

Only reads. Every body that was sent, or was to be sent and got lost, is a snapshot of its entities; the API shows the
latest of each.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from models.private_port import json_response
from scripts.simulator.builders import Json
from scripts.simulator.checkout import Life

KEY_ID = "rzp_test_Simulator00001"
KEY_SECRET = "simulator-key-secret"  # noqa: S105 - of a provider that does not exist
KINDS = {"payment": "payments", "order": "orders", "refund": "refunds", "payment_link": "payment_links"}
MOST = 100
_RANKS = {
    "payment": ("created", "failed", "authorized", "captured", "refunded"),
    "order": ("created", "attempted", "paid"),
    "refund": ("pending", "processed", "failed"),
    "payment_link": ("created", "partially_paid", "expired", "cancelled", "paid"),
}
_HTML = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"

Age = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong answer; a pause without a status is only a slow one."""

    status: int = 0
    retry_after: str | None = None
    html: bool = False
    body: str | None = None
    """Sent instead of an error of the provider's shape."""
    pause: float = 0.0
    """Seconds before the answer."""


@dataclass
class ProviderApi:
    """Entities by kind and id, and what goes wrong."""

    key_id: str = KEY_ID
    key_secret: str = field(default=KEY_SECRET, repr=False)
    faults: deque[Fault] = field(default_factory=deque)
    """Each is the answer to one request, in turn."""
    always: Fault | None = None
    """The answer to every request, once there are no other faults."""
    lag: int = 0
    """How many of the newest items the lists do not show yet; by id everything is current."""
    most: int = MOST
    """Items of one page, however many were asked for."""
    requests: list[str] = field(default_factory=list)
    """Path and query of everything that was asked."""
    answered: Callable[[str], None] | None = None
    """Told the path after each answer was made, so that something may happen between two pages."""
    entities: dict[str, dict[str, Json]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    _ages: dict[str, Age] = field(default_factory=dict)

    def live(self, lives: Iterable[Life]) -> None:
        """Serve whole lives: orders from the start, and all that became of them."""
        for life in lives:
            self.show("order", life.provider_order)
            for body in life.bodies:
                self.take(body)

    def take(self, body: Json) -> None:
        """Serve what an event's body shows, unless something later is known."""
        for kind, part in body["payload"].items():
            if kind in KINDS:
                self.show(kind, part["entity"], body["created_at"])

    def show(self, kind: str, entity: Json, at: int = 0) -> None:
        """Serve this snapshot; of several the latest counts, and of one moment the furthest."""
        status = entity.get("status")
        age = at, _RANKS[kind].index(status) if status in _RANKS[kind] else 0
        if age >= self._ages.get(entity["id"], age):
            self._ages[entity["id"]] = age
            self.entities[kind][entity["id"]] = entity

    def application(self) -> web.Application:
        """The routes, under `/v1` like the provider's."""
        app = web.Application(middlewares=[self._gate])
        for kind, name in KINDS.items():
            app.router.add_get(f"/v1/{name}", self._lister(kind))
            app.router.add_get(f"/v1/{name}/{{id}}", self._finder(kind))
        app.router.add_get("/v1/orders/{id}/payments", self._of("order", "payment", "order_id"))
        app.router.add_get("/v1/payments/{id}/refunds", self._of("payment", "refund", "payment_id"))
        return app

    @web.middleware
    async def _gate(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Faults first, then the key."""
        self.requests.append(request.path_qs)
        fault = self.faults.popleft() if self.faults else self.always
        if fault is not None:
            await asyncio.sleep(fault.pause)
            if fault.status:
                return _failed(fault)
        if not self._may(request):
            return _error(401, "Authentication failed")
        answer = await handler(request)
        if self.answered is not None:
            self.answered(request.path)
        return answer

    def _may(self, request: web.Request) -> bool:
        expected = "Basic " + base64.b64encode(f"{self.key_id}:{self.key_secret}".encode()).decode()
        return hmac.compare_digest(request.headers.get("Authorization", "").encode(), expected.encode())

    def _finder(self, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def find(request: web.Request) -> web.Response:
            found = self.entities[kind].get(request.match_info["id"])
            return _error(400, "The id provided does not exist") if found is None else json_response(found)

        return find

    def _lister(self, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def listed(request: web.Request) -> web.Response:
            newest = sorted(self.entities[kind].values(), key=lambda item: (item["created_at"], item["id"]))[::-1]
            receipt = request.query.get("receipt")
            wanted = [item for item in newest[self.lag :] if receipt is None or item.get("receipt") == receipt]
            return _page(wanted, request.query, self.most)

        return listed

    def _of(self, kind: str, inner: str, key: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        """The entities that belong to one of another kind; an order's payments come all at once."""

        async def belonging(request: web.Request) -> web.Response:
            owner = request.match_info["id"]
            if owner not in self.entities[kind]:
                return _error(400, "The id provided does not exist")
            items = [item for item in self.entities[inner].values() if item.get(key) == owner]
            return _collection(items) if kind == "order" else _page(items, request.query, self.most)

        return belonging


def _page(items: list[Json], query: Mapping[str, str], most: int) -> web.Response:
    """`from` and `to` (unix seconds, both included), `skip`, `count`: 10 unless told otherwise, at most 100."""
    try:
        since, until = int(query.get("from", "0")), int(query.get("to", str(2**40)))
        skip, count = int(query.get("skip", "0")), int(query.get("count", "10"))
    except ValueError:
        return _error(400, "The parameters must be integers")
    if not 0 < count <= MOST or skip < 0:
        return _error(400, f"The count must be between 1 and {MOST}")
    wanted = [item for item in items if since <= item["created_at"] <= until]
    return _collection(wanted[skip : skip + min(count, most)])


def _collection(items: list[Json]) -> web.Response:
    return json_response({"entity": "collection", "count": len(items), "items": items})


def _failed(fault: Fault) -> web.Response:
    headers = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
    if fault.html or fault.body is not None:
        text, kind = (_HTML, "text/html") if fault.body is None else (fault.body, "application/json")
        return web.Response(status=fault.status, text=text, content_type=kind, headers=headers)
    answer = _error(fault.status, "Something went wrong")
    answer.headers.update(headers)
    return answer


def _error(status: int, description: str) -> web.Response:
    """As the provider shapes its errors."""
    error: dict[str, Any] = {
        "code": "SERVER_ERROR" if status >= 500 else "BAD_REQUEST_ERROR",
        "description": description,
        "source": "business",
        "step": "payment_initiation",
        "reason": "input_validation_failed",
        "metadata": {},
    }
    return json_response({"error": error}, status)
