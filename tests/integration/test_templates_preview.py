"""`paylatch templates preview --order`: a stored order's message, as an operator sees it before it goes out."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from models.database import Database
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.desk import Desk

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PERSONAL = ("Asha 1", "asha1@example.com", "+910000000000")


@dataclasses.dataclass(frozen=True)
class SpeakingDesk(Desk):
    """An operator of a shop whose orders tell the customer's language."""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PAYLATCH_NOTIFICATIONS__LANGUAGE_PATH": "customer_details.language"}

    async def preview(self, notice: str, *options: str) -> Any:
        said = await self.run("templates", "preview", notice, "--order", "ord1", "--json", *options)
        assert said.code == 0, said.err
        return said.json


def refunded() -> dict[str, Any]:
    entries = [{"refundId": f"rfnd_{n}", "amount": n * 100, "currency": "INR", "status": "processed"} for n in (1, 2)]
    facts: list[dict[str, Any]] = [
        {"seq": n, "at": AT, "fact": "refund_processed", "ref": f"rfnd_{n}", "cause": {}} for n in (1, 2)
    ]
    order = sample.order(1, status="partially_refunded", refunds=entries, razorpayPaymentId="pay_1", method="card")
    order["payment"]["methodDetails"] = {"last4": "4242"}
    return {**order, "history": facts, "customer_details": {"language": "hi"}}


@pytest.fixture
def desk(db: Database, make_settings: SettingsMaker, tmp_path: Path) -> SpeakingDesk:
    return SpeakingDesk(db, make_settings(), tmp_path)


@pytest.mark.asyncio
async def test_a_stored_orders_latest_fact_in_its_customers_language(desk: SpeakingDesk) -> None:
    await desk.db.orders.insert_one(refunded())
    shown = await desk.preview("refund_processed")
    assert (shown["language"], shown["recipient"]) == ("hi", "customer")
    for part in ("TEA-1", "₹2.00", "rfnd_2", "1 मार्च 2026, 17:30"):
        assert part in shown["text"]
    assert (await desk.preview("refund_processed", "--language", "en"))["language"] == "en"


@pytest.mark.asyncio
async def test_the_customer_is_masked_unless_asked_for_and_that_is_audited(desk: SpeakingDesk) -> None:
    await desk.db.orders.insert_one(refunded())
    hidden = await desk.preview("refund_processed")
    assert not [each for each in PERSONAL if each in str(hidden)]
    assert "नमस्ते ••• जी" in hidden["text"]
    assert "Paid by: card •••" in (await desk.preview("refund_processed", "--recipient", "admin"))["text"]
    assert await desk.audited() == []
    assert "नमस्ते Asha 1 जी" in (await desk.preview("refund_processed", "--reveal"))["text"]
    assert [(row["command"], row["filter"]) for row in await desk.audited()] == [
        ("templates preview --reveal", {"orderId": "ord1"})
    ]


@pytest.mark.asyncio
async def test_a_fact_that_the_order_does_not_have_is_told(desk: SpeakingDesk) -> None:
    await desk.db.orders.insert_one({**sample.order(1), "history": [{"fact": "payment_failed"}, None, 7]})
    said = await desk.run("templates", "preview", "refund_failed", "--order", "TEA-1")
    assert said.code == 0
    assert "this order has no refund_failed yet" in said.err
    assert "language: en" in said.out
    assert "None" not in said.out


@pytest.mark.asyncio
async def test_an_order_that_does_not_exist_is_refused(desk: SpeakingDesk) -> None:
    said = await desk.run("templates", "preview", "refund_failed", "--order", "nobody")
    assert (said.code, said.out) == (1, "")
    assert "there is no order nobody" in said.err
