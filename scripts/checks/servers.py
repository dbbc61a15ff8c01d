"""Servers that are not ours: the mail server, and the provider's API where that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiosmtplib

from models.errors import PayLatchError
from models.settings import Settings
from scripts.checks import Finding
from webhook.providers.razorpay_api import RazorpayApi

SMTP_TIMEOUT = 5.0


async def server_findings(settings: Settings, *, online: bool) -> AsyncIterator[Finding]:
    """Mail where it is configured; the API only when `online`, since that leaves this network."""
    if settings.email.host is not None:
        yield await _mail(settings)
    if online:
        yield await _api(settings)


async def _mail(settings: Settings) -> Finding:
    """Connect and greet; nothing is sent."""
    email = settings.email
    client = aiosmtplib.SMTP(
        hostname=email.host,
        port=email.port,
        timeout=SMTP_TIMEOUT,
        use_tls=email.tls == "tls",
        start_tls={"starttls": True, "auto": None}.get(email.tls, False),
    )
    try:
        async with asyncio.timeout(2 * SMTP_TIMEOUT), client:
            if email.username and email.password:
                await client.login(email.username, email.password.get_secret_value())
    except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
        return Finding("WRONG", "mail server", f"{email.host}:{email.port} cannot be used ({type(error).__name__})")
    return Finding("ok", "mail server", f"{email.host}:{email.port} takes connections")


async def _api(settings: Settings) -> Finding:
    """One request that only reads."""
    try:
        async with RazorpayApi(settings.razorpay) as api:
            await api.answers()
    except PayLatchError as error:
        return Finding("WRONG", "Razorpay's API", str(error))
    return Finding("ok", "Razorpay's API", f"takes the key, of {settings.razorpay.effective_mode} mode")
