"""The demo's buyers: some of their browsers come back with Razorpay's signature while the webhooks arrive."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp

from scripts.simulator.browser import Browser, Shown
from scripts.simulator.callbacks import checkout_fields, link_query

if TYPE_CHECKING:
    from models.database import Database
    from scripts.simulator.checkout import Life
    from scripts.simulator.traffic import Traffic

EVERY = 10
"""Of so many paid orders one buyer's browser comes back."""
PAUSE = 0.2


@dataclass
class Buyers:
    """Who came back, and how they were answered."""

    answers: Counter[str] = field(default_factory=Counter)
    """`verified`, `redirected`, `refused` (the forged ones) or `wrong`."""
    orders: list[str] = field(default_factory=list)
    """`_id` of the orders whose browsers brought a true signature."""

    async def come_back(self, address: str, key_secret: str, traffic: Traffic) -> None:
        """One after the other; each tries with a forged signature first."""
        paid = [life for life in traffic.lives if life.truth.captured and life.order["_id"] not in traffic.lost]
        async with aiohttp.ClientSession() as http:
            browser = Browser(address, http)
            for life in paid[::EVERY]:
                forged = await _come_back(browser, "not-the-key-secret", life)
                self.answers["refused" if forged.status == 400 else "wrong"] += 1
                shown = await _come_back(browser, key_secret, life)
                self.answers[{200: "verified", 303: "redirected"}.get(shown.status, "wrong")] += 1
                self.orders.append(life.order["_id"])
                await asyncio.sleep(PAUSE)

    async def problems(self, db: Database) -> list[str]:
        """What is not as it should be, a sentence each."""
        found = [f"{self.answers['wrong']} callbacks were answered wrongly"] if self.answers["wrong"] else []
        signed = {"_id": {"$in": self.orders}, "payment.razorpaySignature": {"$type": "string"}}
        missing = len(self.orders) - await db.orders.count_documents(signed)
        return [*found, *([f"{missing} orders lack the signature of their callback"] if missing else [])]


async def _come_back(browser: Browser, key_secret: str, life: Life) -> Shown:
    """From checkout, or from a payment link."""
    captured, payment = str(life.truth.captured), life.order["payment"]
    if "paymentLinkId" in payment:
        query = link_query(key_secret, payment["paymentLinkId"], captured, reference=life.order["orderNumber"])
        return await browser.come_back(query)
    return await browser.verify(checkout_fields(key_secret, life.provider_order["id"], captured))
