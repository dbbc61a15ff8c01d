"""Each process's private port: liveness, readiness and metrics, on 127.0.0.1 unless the settings say otherwise."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from models.errors import SettingsError

Reasons = list[str]
REQUESTS_END_WITHIN = 2.0


@dataclass(frozen=True, slots=True)
class PrivatePort:
    """What the port shows: `not_ready()` says why the process is not ready (empty: it is)."""

    registry: CollectorRegistry
    not_ready: Callable[[], Reasons]
    extra: Mapping[str, Handler] = field(default_factory=dict)

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        for path, handler in self.extra.items():
            app.router.add_get(path, handler)
        return app

    async def _livez(self, _request: web.Request) -> web.Response:
        return json_response({"alive": True})

    async def _readyz(self, _request: web.Request) -> web.Response:
        reasons = self.not_ready()
        return json_response({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def json_response(body: Mapping[str, Any], status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


@contextlib.asynccontextmanager
async def listening(app: web.Application, host: str, port: int, **runner: Any) -> AsyncIterator[int]:  # noqa: ANN401 - AppRunner's options
    """Serve the app and yield the port in use (asked for 0: the one that was free); on leaving, finish what runs.

    Raises `SettingsError` when the port is taken or the address is not ours.
    """
    silent = logging.getLogger("paylatch.http")
    silent.disabled = True  # a traceback with the caller's bytes for all that is no HTTP, and anybody can send that
    options: dict[str, Any] = {"shutdown_timeout": REQUESTS_END_WITHIN, "logger": silent, **runner}
    app_runner = web.AppRunner(app, access_log=None, handle_signals=False, **options)
    await app_runner.setup()
    try:
        site = web.TCPSite(app_runner, host, port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            msg = f"cannot listen on {host}:{port} ({error.strerror}): is another process using the port?"
            raise SettingsError(msg) from None
        yield app_runner.addresses[0][1]
    finally:
        await app_runner.cleanup()
