"""The optional list of the addresses that webhooks may come from; the signature decides in any case."""

from __future__ import annotations

from aiohttp import web

from models.settings import HttpSettings
from models.telemetry import Telemetry
from webhook.body import Refusal
from webhook.callers import Networks, caller_of


class AllowList:
    """Off, report or enforce.

    Failure policy: off by default, since a list that is out of date refuses money for 24 h and then the provider stops
    sending; `report` shows whether `enforce` would.
    """

    def __init__(self, settings: HttpSettings, telemetry: Telemetry) -> None:
        self._mode, self._telemetry = settings.source_allow_list, telemetry
        self._allowed, self._proxies = Networks(settings.allowed_sources), Networks(settings.trusted_proxies)

    def require(self, request: web.Request) -> None:
        """Raises `Refusal` (403) before anything of the request is read."""
        if self._mode == "enforce" and caller_of(request, self._proxies) not in self._allowed:
            raise Refusal(403, "unlisted_source", "webhooks are taken from listed addresses only", close=True)

    def report(self, request: web.Request, *, authentic: bool) -> None:
        """Say that `enforce` would have refused this one; the address only if it is a provider's or a proxy's."""
        if self._mode != "report" or (address := caller_of(request, self._proxies)) in self._allowed:
            return
        source = {"source": str(address)} if authentic else {}
        self._telemetry.emit("webhook.unlisted_source", authentic=authentic, **source)
