"""One payment, told by every channel at once through the real watcher."""

from __future__ import annotations

import json
from typing import Any

import pytest
from standardwebhooks import Webhook

from models.database import Database
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import PAID, daemon, entry, record, until_status, until_told
from tests.support.mailbox import QUIET, email, mailbox
from tests.support.receiver import receiver, reply
from tests.support.stages import AUTH_KEY, PHONE, SIGNING, TOKEN, sections_of

# Apprise 2.3 imports it on Python before 3.13, inside a try.
pytestmark = [QUIET, pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")]


async def paid(db: Database, **shipping: Any) -> None:
    order = sample.order(1, amountPaid=sample.AMOUNT, razorpayPaymentId=sample.payment_id(1))
    order["shippingAddress"] |= shipping
    await db.orders.insert_one(order)
    await record(db, 1, entry(1))


@pytest.mark.asyncio
async def test_whatsapp_is_used_as_soon_as_it_is_configured(db: Database, make_settings: SettingsMaker) -> None:
    answer = reply(200, {"messages": [{"id": "wamid.7"}]})
    async with mailbox() as box, receiver(answer) as meta:
        settings = make_settings(email=email(box), **sections_of("whatsapp", f"127.0.0.1:{meta.port}"))
        async with daemon(settings, db) as running:
            assert [off["channel"] for off in running.events("channel.off")] == ["apprise"]
            await paid(db, phone="98765 43210")
            await until_told(db, "ord1", *PAID, "payment_completed:whatsapp:customer")
            row = await until_status(db, {"orderId": "ord1", "channel": "whatsapp"}, "sent")
            assert PHONE not in json.dumps(running.emitted, default=str)
    assert row["providerMessageId"] == "wamid.7"
    (request,) = meta.requests
    assert request.document["to"] == PHONE
    values = [each["text"] for each in request.document["template"]["components"][0]["parameters"]]
    assert values == ["Asha 1", "TEA-1", "₹499.00", "Our shop"]


@pytest.mark.asyncio
async def test_the_language_of_a_messages_words_is_the_one_that_the_provider_is_told(
    db: Database, make_settings: SettingsMaker
) -> None:
    routes = {"payment_completed": {"customer": ["whatsapp"]}}
    notifications = {"routes": routes, "language_path": "language"}
    async with receiver(reply(200, {"messages": [{"id": "wamid.7"}]})) as meta:
        whatsapp = sections_of("whatsapp", f"127.0.0.1:{meta.port}", languages={"hi": "hi_approved"})
        async with daemon(make_settings(notifications=notifications, **whatsapp), db):
            await db.orders.insert_one({**sample.order(1), "language": "hi-IN"})
            await db.orders.update_one({"_id": "ord1"}, {"$set": {"shippingAddress.phone": PHONE}})
            await record(db, 1)
            await until_status(db, {"orderId": "ord1"}, "sent")
    (request,) = meta.requests
    assert request.document["template"]["language"] == {"code": "hi_approved"}


@pytest.mark.asyncio
async def test_one_payment_is_told_by_every_channel(db: Database, make_settings: SettingsMaker) -> None:
    answers = {"whatsapp": {"messages": [{"id": "w"}]}, "sms": {"type": "success", "message": "s"}}
    routes = {"payment_completed": {"customer": ["whatsapp", "sms"], "admin": ["webhook", "apprise"]}}
    async with (
        receiver(reply(200, answers["whatsapp"])) as meta,
        receiver(reply(200, answers["sms"])) as msg91,
        receiver() as erp,
        receiver() as chat,
    ):
        sections = {"notifications": {"routes": routes}}
        for name, box in {"whatsapp": meta, "sms": msg91, "webhook": erp, "apprise": chat}.items():
            sections |= sections_of(name, f"127.0.0.1:{box.port}")
        async with daemon(make_settings(**sections), db) as running:
            await paid(db, phone=9876543210)
            for name in ("whatsapp", "sms", "webhook", "apprise"):
                await until_status(db, {"orderId": "ord1", "channel": name}, "sent")
            emitted = json.dumps(running.emitted, default=str)
    assert [secret for secret in (PHONE[1:], TOKEN, AUTH_KEY, SIGNING) if secret in emitted] == []
    assert [len(box.requests) for box in (meta, msg91, erp, chat)] == [1, 1, 1, 1]
    assert msg91.requests[0].document["recipients"] == [
        {"mobiles": PHONE[1:], "var1": "TEA-1", "var2": "Rs 499.00", "var3": "Our shop"}
    ]
    told = Webhook(SIGNING).verify(erp.requests[0].body, dict(erp.requests[0].headers))
    assert (told["type"], told["data"]["orderId"]) == ("payment.completed", "ord1")
    assert (told["data"]["amount"], told["data"]["currency"]) == (sample.AMOUNT, "INR")
    assert chat.requests[0].document["title"] == "Paid: order TEA-1, ₹499.00"


@pytest.mark.asyncio
async def test_a_number_that_is_none_leaves_its_row_skipped_and_the_others_sent(
    db: Database, make_settings: SettingsMaker
) -> None:
    async with mailbox() as box, receiver() as meta:
        settings = make_settings(email=email(box), **sections_of("whatsapp", f"127.0.0.1:{meta.port}"))
        async with daemon(settings, db):
            await paid(db)  # +910000000000
            row = await until_status(db, {"orderId": "ord1", "channel": "whatsapp"}, "skipped")
            await until_status(db, {"orderId": "ord1", "channel": "email"}, "sent")
    assert row["reason"] == "bad_phone"
    assert meta.requests == []
