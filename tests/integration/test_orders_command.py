"""`paylatch orders` and `paylatch alerts`, run as an operator runs them: a real process on a shop's database."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from bson import ObjectId

from models.database import Database
from models.facts import DecisionFact
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.desk import Desk
from tests.support.endpoint import Endpoint, endpoint
from webhook.own_messages import callback_delivery, review_delivery

OID = ObjectId("65f000000000000000000003")
HOSTILE = "[red]<script>alert(1)</script>[/red]"
APPLIED = "completed/applied"
BEHIND = "order_BehindTheLink1"
PERSONAL = ("asha1@example.com", "Asha 1", "asha.nair@example.com", "asha.nair@okbank", "+910000000001", "a***@okbank")


class OrdersDesk(Desk):
    """An operator who asks about orders."""

    async def show(self, order: str, *options: str) -> Any:
        said = await self.run("orders", "show", order, "--json", *options)
        assert said.code == 0, said.err
        return said.json


async def _trade(shop: Endpoint) -> None:
    """Order 1: a failed attempt, a late authorisation, the capture thrice, a second payment. Then money of no order."""
    for body, event_id in (
        (sample.failed(1, letter="F"), "FAILED"),
        (sample.authorized(1), "AUTHORIZED"),
        (sample.captured(1), "CAPTURED"),
        (sample.captured(1), "CAPTURED"),
        (sample.order_paid(1), "ORDER_PAID"),
        (sample.captured(1, letter="B"), "SECOND"),
        (sample.captured(2, amount=49_000), "LESS"),
        (sample.captured(3), "BY_OBJECT_ID"),
        (sample.captured(5), "HOSTILE"),
        (sample.captured(8, order_id=None), "NO_ORDER_ID"),
        (sample.event("payout.processed"), "UNKNOWN_TYPE"),
    ):
        await shop.post(body, event_id)
        await shop.settled(event_id)
    for body, event_id in (
        (sample.captured(7), "PARKED"),
        (sample.authorized(9), "UNMATCHED"),
        (sample.failed(9, letter="F"), "NO_MONEY"),
    ):
        await shop.post(body, event_id)
        await shop.settled(event_id, "parked")


@pytest_asyncio.fixture
async def desk(db: Database, make_settings: SettingsMaker, tmp_path: Path) -> AsyncIterator[OrdersDesk]:
    """A shop after some trade, from an endpoint that has ended."""
    third = {**sample.order(3), "_id": OID}
    fourth = {**sample.order(4), "_id": 4, "orderNumber": 4004}
    fifth = {**sample.order(5), "orderNumber": HOSTILE}
    await db.orders.insert_many([sample.order(1), sample.order(2), third, fourth, fifth])
    async with endpoint(make_settings()) as shop:
        await _trade(shop)
    gone = {"status": "dead", "outcome": {"code": "unmatched", "detail": None}}
    await db.events.update_one({"eventId": "UNMATCHED"}, {"$set": gone, "$unset": {"nextAttemptAt": ""}})
    now = datetime.now(UTC)
    told = {
        "key": "order:ord1:payment_completed:email:customer",
        "notice": "payment_completed",
        "refs": [],
        "orderId": "ord1",
        "channel": "email",
        "to": "customer",
        "status": "sent",
        "attempts": 2,
        "message": {"address": "asha1@example.com"},
        **dict.fromkeys(("factAt", "sentAt", "unknownAt", "createdAt", "updatedAt"), now),
    }
    await db.notification_log.insert_one(told)
    yield OrdersDesk(db, make_settings(), tmp_path)


# --- show -------------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("wanted", "order_id"),
    [
        ("ord1", "ord1"),
        ("TEA-1", "ord1"),
        (sample.provider_order_id(1), "ord1"),
        (sample.payment_id(1), "ord1"),
        (sample.payment_id(1, "F"), "ord1"),
        (str(OID), str(OID)),
        (f"oid~{OID}", str(OID)),
        ("4", 4),
        ("4004", 4),
    ],
)
async def test_an_order_is_found_by_every_id_it_has(desk: OrdersDesk, wanted: str, order_id: object) -> None:
    assert (await desk.show(wanted))["order"]["id"] == order_id


@pytest.mark.asyncio
async def test_the_story_says_what_each_event_changed_and_who_was_told(desk: OrdersDesk) -> None:
    story = await desk.show("ord1")
    assert story["why"].startswith(f"Paid by {sample.payment_id(1)} (upi) on 2026-09-21 14:13:20 UTC: ₹499.00")
    assert f"duplicate_capture of {sample.payment_id(1, 'B')}" in story["why"]
    assert [(e["eventId"], e["outcome"], [f["fact"] for f in e["changed"]]) for e in story["events"]] == [
        ("FAILED", "applied", ["payment_failed"]),
        ("AUTHORIZED", "applied", ["payment_authorized"]),
        ("CAPTURED", "applied", ["payment_completed"]),
        ("ORDER_PAID", "already_applied", []),
        ("SECOND", "applied", ["payment_review"]),
    ]
    assert story["events"][2]["duplicates"] == 1
    assert sorted(entry["ref"] for entry in story["ledger"]) == [sample.payment_id(1), sample.payment_id(1, "B")]
    assert story["fulfilment"]["paymentId"] == sample.payment_id(1)
    (row,) = story["notifications"]
    assert (row["notice"], row["channel"], row["status"], row["attempts"]) == ("payment_completed", "email", "sent", 2)
    assert row["unknownAt"]
    (alert,) = story["alerts"]
    assert (alert["kind"], alert["ref"]) == ("payment_review", f"duplicate_capture:{sample.payment_id(1, 'B')}")


@pytest.mark.asyncio
async def test_the_sentence_comes_first_for_people(desk: OrdersDesk) -> None:
    said = await desk.run("orders", "show", "ord2")
    sentence, todo, *_ = said.out.splitlines()
    assert sentence == (
        f"Not paid: money came but does not fit: ₹499.00 expected, ₹490.00 paid by {sample.payment_id(2)}."
    )
    assert "paylatch events requeue LESS --force" in todo
    waiting = await desk.run("orders", "show", "4")
    assert waiting.out.startswith(f"Waiting: no event has arrived for {sample.provider_order_id(4)}.")


@pytest.mark.asyncio
async def test_a_page_goes_to_a_file_or_to_standard_output(desk: OrdersDesk) -> None:
    said = await desk.run("orders", "show", "ord1", "--html", "story.html")
    assert (said.code, said.out) == (0, "")
    html = (desk.folder / "story.html").read_text("utf-8")
    for word in ("<!doctype html>", "Order TEA-1", "₹499.00", "1 duplicate", "FAILED", "payment declined"):
        assert word in html
    piped = await desk.run("orders", "show", "ord1", "--html", "-")
    assert piped.out.rstrip().endswith("</html>")
    both = await desk.run("orders", "show", "ord1", "--json", "--html", "-")
    nowhere = await desk.run("orders", "show", "ord1", "--html", "no/such/folder.html")
    assert (both.code, both.out, nowhere.code) == (2, "", 1)
    assert "cannot be written" in nowhere.err


@pytest.mark.asyncio
@pytest.mark.parametrize("form", [(), ("--json",), ("--html", "-")], ids=["text", "json", "html"])
async def test_personal_data_is_shown_only_when_told_and_the_audit_log_keeps_who_did(
    desk: OrdersDesk, form: tuple[str, ...]
) -> None:
    hidden = await desk.run("orders", "show", "ord1", *form)
    assert [word for word in PERSONAL if word in hidden.out] == []
    assert await desk.db.audit_log.count_documents({}) == 0
    revealed = await desk.run("orders", "show", "ord1", "--reveal", *form)
    assert "asha1@example.com" in revealed.out
    entry = await desk.db.audit_log.find_one({})
    assert entry is not None
    assert (entry["actor"], entry["command"]) == (getpass.getuser(), "orders show --reveal")
    assert entry["filter"] == {"orderId": "ord1"}


@pytest.mark.asyncio
async def test_hostile_data_stays_data(desk: OrdersDesk) -> None:
    said = await desk.run("orders", "show", HOSTILE)
    assert HOSTILE in said.out
    assert (await desk.show(HOSTILE))["order"]["number"] == HOSTILE
    page = await desk.run("orders", "show", "ord5", "--html", "-")
    assert "<script" not in page.out
    assert "[red]&lt;script&gt;alert(1)" in page.out


@pytest.mark.asyncio
async def test_what_is_not_found_is_one_sentence_and_exit_1(desk: OrdersDesk) -> None:
    said = await desk.run("orders", "show", "nobody")
    assert (said.code, said.out, said.err) == (1, "", "paylatch: there is no order nobody\n")
    for wanted in (sample.payment_id(7), sample.provider_order_id(7)):
        parked = await desk.run("orders", "show", wanted)
        assert (parked.code, "event PARKED names it" in parked.err) == (1, True)


@pytest.mark.asyncio
async def test_an_id_that_fits_two_orders_is_asked_for_again(desk: OrdersDesk) -> None:
    await desk.db.orders.insert_one({**sample.order(6), "_id": "4"})
    said = await desk.run("orders", "show", "4")
    assert said.code == 1
    assert "str~4" in said.err
    assert "int~4" in said.err
    assert (await desk.show("str~4"))["order"]["id"] == "4"
    assert (await desk.show("int~4"))["order"]["id"] == 4


@pytest.mark.asyncio
async def test_a_payment_whose_event_is_not_applied_yet_leads_to_its_order(desk: OrdersDesk) -> None:
    await desk.db.orders.insert_one(sample.order(7))
    story = await desk.show(sample.payment_id(7))
    assert (story["order"]["id"], story["code"]) == ("ord7", "event_parked")
    assert story["events"][0]["nextAttemptAt"]


@pytest.mark.asyncio
async def test_an_order_that_changed_its_provider_order_keeps_its_old_events(desk: OrdersDesk) -> None:
    await desk.db.orders.update_one(
        {"_id": "ord2"}, {"$set": {"payment.razorpayOrderId": "order_Another", "payment.attempts": []}}
    )
    assert [event["eventId"] for event in (await desk.show("ord2"))["events"]] == ["LESS"]


# --- links, refunds and own events ---


@pytest_asyncio.fixture
async def linked(db: Database, make_settings: SettingsMaker, tmp_path: Path) -> AsyncIterator[OrdersDesk]:
    """Order 1 is paid in parts on a link that it was found for by its number, and partly refunded; 2 waits for more."""
    await db.orders.insert_one(sample.order(1, razorpayOrderId=None))
    await db.orders.insert_one(sample.order(2, razorpayOrderId=None, paymentLinkId=sample.link_id(2)))
    parts = [sample.payment(1, amount=20_000, order_id=BEHIND)]
    parts.append(sample.payment(1, letter="B", amount=29_900, order_id=BEHIND, created_at=sample.CREATED + 60))
    async with endpoint(make_settings()) as shop:
        link = sample.link(1, accept_partial=True)
        assert await shop.processed(sample.link_paid(1, parts[0], of=link, order_id=BEHIND), "PART") == APPLIED
        assert await shop.processed(sample.link_paid(1, *parts, of=link, order_id=BEHIND), "WHOLE") == APPLIED
        refund = sample.refunded(1, amount=5_000, beside={"amount": 20_000, "order_id": BEHIND})
        assert await shop.processed(refund, "REFUND") == APPLIED
        callback = {"order_id": BEHIND, "payment_id": sample.payment_id(1), "signature": "5" * 64}
        razorpay = shop.parts.engine.providers["razorpay"]
        await shop.parts.engine.admission.admit(callback_delivery(razorpay, callback))
        await shop.settled(f"callback:{BEHIND}:{sample.payment_id(1)}")
        assert await shop.processed(sample.link_ended(2), "ENDED") == APPLIED
    yield OrdersDesk(db, make_settings(), tmp_path)


@pytest.mark.asyncio
async def test_an_order_is_found_by_the_ids_that_its_events_taught_and_by_its_refunds(linked: OrdersDesk) -> None:
    for wanted in (sample.link_id(1), BEHIND, sample.refund_id(1), sample.payment_id(1, "B")):
        assert (await linked.show(wanted))["order"]["id"] == "ord1"
    assert (await linked.show(sample.link_id(2)))["order"]["id"] == "ord2"


@pytest.mark.asyncio
async def test_the_story_of_a_link_paid_in_parts(linked: OrdersDesk) -> None:
    story = await linked.show("ord1")
    assert (story["code"], story["order"]["parts"]) == ("paid", [sample.payment_id(1), sample.payment_id(1, "B")])
    assert story["why"].endswith("₹499.00 in 2 parts, of which ₹50.00 was refunded.")
    assert [(link["linkId"], link["status"], link["orderId"]) for link in story["links"]] == [
        (sample.link_id(1), "paid", BEHIND)
    ]
    assert {ref["id"] for ref in story["order"]["refs"]} == {BEHIND, sample.link_id(1)}
    assert [(event["eventType"], event["origin"]) for event in story["events"]] == [
        ("payment_link.partially_paid", "webhook"),
        ("payment_link.paid", "webhook"),
        ("refund.processed", "webhook"),
        ("checkout.callback", "callback"),
    ]
    ended = await linked.run("orders", "show", "ord2")
    assert ended.out.startswith(f"Not paid: payment link {sample.link_id(2)} expired before anybody paid.")


@pytest.mark.asyncio
async def test_a_decision_that_is_stuck_is_part_of_the_story(desk: OrdersDesk) -> None:
    ref = sample.payment_id(2)
    fact = DecisionFact("amount_mismatch", ref, "accepted", by="asha", why="agreed", at=sample.CREATED)
    delivery = review_delivery("ord2", fact)
    gone = {"status": "dead", "outcome": {"code": "order_unreadable", "detail": "no list"}, "origin": "operator"}
    row = {**(await desk.event("LESS")), **gone, "rawBody": delivery.raw, "provider": delivery.provider, "refs": {}}
    del row["_id"]
    await desk.db.events.insert_one({**row, "eventId": delivery.event_id, "bodyHash": "another"})
    (event,) = [event for event in (await desk.show("ord2"))["events"] if event["origin"] == "operator"]
    assert event["says"][0]["status"] == "accepted by asha: agreed"


# --- unmatched --------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_money_of_no_order_is_listed_with_where_it_stands(desk: OrdersDesk) -> None:
    said = await desk.run("orders", "unmatched", "--json")
    assert said.code == 0
    found = {each["eventId"]: each for each in said.json}
    assert {name: (each["status"], each["outcome"], each["paymentStatus"]) for name, each in found.items()} == {
        "PARKED": ("parked", "waiting_for_order", "captured"),
        "UNMATCHED": ("dead", "unmatched", "authorized"),
        "NO_ORDER_ID": ("ignored", "no_order_id", "captured"),
    }
    parked = found["PARKED"]
    assert (parked["paymentId"], parked["providerOrderId"]) == (sample.payment_id(7), sample.provider_order_id(7))
    assert (parked["amount"], parked["currency"], parked["eventType"]) == (49_900, "INR", "payment.captured")
    assert parked["nextAttemptAt"]
    assert found["UNMATCHED"]["nextAttemptAt"] is None
    assert found["NO_ORDER_ID"]["providerOrderId"] is None


@pytest.mark.asyncio
async def test_money_of_no_order_is_a_table_for_people(desk: OrdersDesk) -> None:
    said = await desk.run("orders", "unmatched")
    assert said.out.startswith("3 payments of no order, in 3 events")
    for word in ("PARKED", sample.payment_id(7), "₹499.00", "parked (waiting_for_order)"):
        assert word in said.out
    assert len((await desk.run("orders", "unmatched", "--json", "--limit", "1")).json) == 1


# --- alerts -----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_alerts_are_listed_newest_first_with_what_to_do(desk: OrdersDesk) -> None:
    said = await desk.run("alerts", "list", "--json")
    assert said.code == 0
    assert [alert["ref"] for alert in said.json] == [
        f"amount_mismatch:{sample.payment_id(2)}",
        f"duplicate_capture:{sample.payment_id(1, 'B')}",
    ]
    for alert in said.json:
        assert (alert["kind"], alert["count"]) == ("payment_review", 1)
        assert "paylatch orders show PAYMENT" in alert["todo"]
    table = await desk.run("alerts", "list")
    assert table.out.startswith("2 open alerts")
    assert "orders show" in table.out
