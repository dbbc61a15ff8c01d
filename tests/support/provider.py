"""The provider's API inside the test: real HTTP on a real port, and settings that point at it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from models.private_port import listening
from models.settings import RazorpaySettings
from scripts.simulator.api import KEY_ID, KEY_SECRET, ProviderApi
from tests.support import sample


@dataclass
class Provider:
    """The fake and where it listens."""

    api: ProviderApi = field(default_factory=ProviderApi)
    port: int = 0

    @property
    def section(self) -> dict[str, Any]:
        """The settings' `razorpay` section."""
        return {"api_url": f"http://127.0.0.1:{self.port}", "key_id": KEY_ID, "key_secret": KEY_SECRET}

    def settings(self, **changes: Any) -> RazorpaySettings:
        return RazorpaySettings.model_validate({**self.section, "api_retries": 0, **changes})

    def order(self, number: int, **changes: Any) -> sample.Json:
        """The provider's order behind the shop's order `number`."""
        entity = sample.order_paid(number)["payload"]["order"]["entity"]
        unpaid = {"amount_paid": 0, "amount_due": entity["amount"], "status": "created", "attempts": 0}
        self.api.show("order", {**entity, **unpaid, **changes})
        return self.api.entities["order"][entity["id"]]

    def payment(self, number: int, status: str = "captured", **changes: Any) -> sample.Json:
        """A payment of order `number`, as the API shows it."""
        entity = sample.payment(number, status, **changes)
        self.api.show("payment", entity)
        return entity

    def refund(self, number: int, status: str = "processed", **changes: Any) -> sample.Json:
        entity = sample.refund(number, status, **changes)
        self.api.show("refund", entity)
        return entity


@contextlib.asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    """Start it, stop it."""
    running = Provider()
    async with listening(running.api.application(), "127.0.0.1", 0, shutdown_timeout=0.1) as port:
        running.port = port
        yield running
