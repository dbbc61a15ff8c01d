"""The demo's reconciliation: orders whose webhooks were lost are found through a local fake of the provider's API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pydantic import SecretStr

from models.errors import Refused
from models.private_port import listening
from models.settings import Settings
from models.telemetry import Telemetry
from scripts.simulator.api import ProviderApi
from scripts.simulator.traffic import Traffic
from webhook.differences import Period
from webhook.engine import engine
from webhook.providers import providers
from webhook.providers.razorpay_api import RazorpayApi
from webhook.reconcile import Round, Scope


async def repaired(settings: Settings, traffic: Traffic) -> int:
    """How many payments and refunds a round brought. Raises `Refused` when a difference remains."""
    fake, telemetry, now = ProviderApi(), Telemetry(), datetime.now(UTC)
    fake.live(traffic.lives)
    period = Period(now - timedelta(days=1), now + timedelta(days=1))
    async with listening(fake.application(), "127.0.0.1", 0) as port:
        own = settings.razorpay.model_copy(
            update={
                "api_url": f"http://127.0.0.1:{port}",
                "key_id": fake.key_id,
                "key_secret": SecretStr(fake.key_secret),
            }
        )
        async with RazorpayApi(own) as api, engine(settings, providers(settings), telemetry) as running:
            report = await Round(running, api, telemetry, apply=True).run(Scope(period=period))
    if report.remaining:
        raise Refused(f"reconciliation left {report.remaining} differences")
    return report.repaired
