"""Every published or observed body that moves money, and what becomes of the order it is about."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from models.database import Database
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import Endpoint, endpoint
from tests.unit.test_samples import VALID
from webhook.providers.razorpay import Razorpay

BY_NAME = {path.name: path for path in VALID}

pytestmark = pytest.mark.skipif(not VALID, reason="no samples beside the repository")


@dataclass(frozen=True)
class End:
    """What becomes of the order. `refs` are the kinds of further ids that it learns."""

    status: str
    outcome: str = "completed/applied"
    ledger: tuple[str, ...] = ()
    refunded: int = 0
    reviews: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A file, and the order as its shop wrote it: by default with the provider's order id and the amount it names."""

    file: str
    end: End
    by: str = "order"
    """order, link or number: what the shop's order says of itself."""
    wrote: dict[str, Any] = field(default_factory=dict)


PAID = End("completed", ledger=("capture",))
PENDING = End("pending")
FAILED = End("failed")
BY_NUMBER = End("completed", ledger=("capture",), refs=("order",))
LINK_PAID = End("completed", ledger=("capture",), refs=("order",))
QUIET = End("pending")
PARTLY = End("partially_refunded", ledger=("capture", "refund"), refunded=50_000)

CASES = (
    *(
        Case(f"order.paid__{name}.json", PAID)
        for name in (
            "card",
            "emandate",
            "json_sample_payload",
            "netbanking",
            "paper_nach",
            "sample_order_paid_payload_with_gst_information",
            "upi",
            "upi__2",
            "wallets",
        )
    ),
    *(
        Case(f"payment.authorized__{name}.json", PENDING)
        for name in (
            "card",
            "card__2",
            "emandate",
            "json_payload_sample",
            "payment_authorized_payload",
            "payment_authorized_payload__2",
            "upi",
            "upi__2",
            "wallets",
        )
    ),
    *(Case(f"payment.captured{name}.json", PAID) for name in ("", "__card", "__emandate", "__paper_nach")),
    *(Case(f"payment.failed__{name}.json", FAILED) for name in ("card", "cards", "paper_nach", "upi")),
    Case("payment.failed__payment_failed_payload.json", End("pending", "ignored/no_order_id")),
    Case("real__payment.authorized__netbanking__signed.json", PENDING),
    Case("real__payment.captured__upi_via_payment_link.json", PAID),
    Case("real__payment.failed__card.json", FAILED),
    Case("real__order.paid__upi_via_payment_link.json", PAID),
    Case("real__order.paid__upi_via_payment_link.json", BY_NUMBER, by="number"),
    Case("order.paid__card.json", BY_NUMBER, by="number"),
    # its snapshot is ahead of its name: captured already
    Case("sdk_fixture__payment.authorized__pretty_trailing_newline.json", PAID),
    Case("payment_link.paid__payment_link_paid_standard.json", LINK_PAID, by="link"),
    Case("payment_link.paid__payment_link_paid_upi.json", LINK_PAID, by="link"),
    Case(
        "payment_link.paid__payment_link_paid_upi.json",
        End("completed", ledger=("capture",), refs=("order", "payment_link")),
        by="number",
    ),
    Case("payment_link.cancelled__payment_link_cancelled_standard.json", QUIET, by="link"),
    Case("payment_link.cancelled__payment_link_cancelled_upi.json", QUIET, by="link"),
    Case("payment_link.expired__payment_link_expired_standard.json", QUIET, by="link"),
    Case("payment_link.expired__payment_link_expired_upi.json", End("pending", refs=("order",)), by="link"),
    Case("refund.created__normal_refunds.json", PARTLY),
    Case("refund.processed__normal_refunds.json", PARTLY),
    Case("refund.failed__normal_refunds.json", PAID),
    Case("refund.speed_changed.json", End("partially_refunded", ledger=("capture", "refund"), refunded=200)),
    Case(
        "payment.captured__card.json",
        End("pending", ledger=("capture",), reviews=("amount_mismatch",)),
        wrote={"amount": 99},
    ),
    Case(
        "payment.captured__card.json",
        End("pending", ledger=("capture",), reviews=("currency_mismatch",)),
        wrote={"currency": "USD"},
    ),
    Case(
        "order.paid__card.json",
        End("cancelled", ledger=("capture",), reviews=("paid_after_cancelled",)),
        wrote={"status": "cancelled"},
    ),
)


def payload(case: Case) -> dict[str, dict[str, Any]]:
    """The entities by their names."""
    body = json.loads(BY_NAME[case.file].read_bytes())
    return {name: part["entity"] for name, part in body["payload"].items() if isinstance(part, dict)}


def written(case: Case, number: int) -> dict[str, Any]:
    """The order as its shop wrote it before anything came."""
    said = payload(case)
    payment, link, order = said.get("payment", {}), said.get("payment_link", {}), said.get("order", {})
    asked = link or payment
    document = sample.order(number, **{"amount": asked["amount"], "currency": asked["currency"], **case.wrote})
    ids = {"order": {"razorpayOrderId": payment.get("order_id") or "order_OfTheShop"}}
    ids |= {"link": {"paymentLinkId": link.get("id")}, "number": {}}
    del document["payment"]["razorpayOrderId"]
    document["payment"] |= ids[case.by]
    if case.by == "number":
        document["orderNumber"] = link.get("reference_id") or order["receipt"]
    return document


async def end_of(shop: Endpoint, case: Case, number: int) -> End:
    """Deliver the file to an empty shop that has this one order."""
    db = shop.db
    for collection in (db.events, db.orders, db.ledger, db.fulfilments, db.alerts):
        await collection.delete_many({})
    await db.orders.insert_one(written(case, number))
    outcome = await shop.processed(BY_NAME[case.file].read_bytes(), f"E{number}")
    payment = (await shop.order(number))["payment"]
    return End(
        status=payment["status"],
        outcome=outcome,
        ledger=tuple(sorted([row["entryType"] async for row in db.ledger.find({})])),
        refunded=payment.get("amountRefunded", 0),
        reviews=tuple(entry["reason"] for entry in payment.get("review", ())),
        refs=tuple(sorted(ref["kind"] for ref in payment.get("refs", ()))),
    )


def test_every_body_that_moves_money_has_its_end_here() -> None:
    moving = {
        name
        for name in BY_NAME
        if name.removeprefix("real__").removeprefix("sdk_fixture__").startswith(tuple(Razorpay.event_types))
    }
    assert moving == {case.file for case in CASES}


@pytest.mark.asyncio
async def test_every_published_body_ends_as_it_should(db: Database, make_settings: SettingsMaker) -> None:
    async with endpoint(make_settings()) as shop:
        ends = {place: await end_of(shop, case, place) for place, case in enumerate(CASES)}
    wrong = {(CASES[place].file, CASES[place].by): end for place, end in ends.items() if end != CASES[place].end}
    assert not wrong


@pytest.mark.asyncio
async def test_every_other_published_body_is_kept_and_moves_nothing(db: Database, make_settings: SettingsMaker) -> None:
    """Invoices, subscriptions, disputes, downtimes, settlements and whatever else the provider tells."""
    others = sorted(set(BY_NAME) - {case.file for case in CASES})
    async with endpoint(make_settings()) as shop:
        outcomes = set()
        for place, name in enumerate(others):
            status, _ = await shop.post(BY_NAME[name].read_bytes(), f"E{place}")
            assert status == 200
        for row in [await shop.settled(row["eventId"]) async for row in db.events.find({}, {"eventId": 1})]:
            outcomes.add(f"{row['status']}/{row['outcome']['code']}")
    assert outcomes == {"ignored/unknown_type", "dead/unparseable"}
    assert await db.ledger.count_documents({}) == 0
