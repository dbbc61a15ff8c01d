from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio
from beanie import Document, init_beanie
from bson import ObjectId
from mongomock_motor import AsyncMongoMockClient
from pymongo.errors import DuplicateKeyError

from models.documents import DOCUMENTS, Alert, Fulfilment, LedgerRow, NotificationRow, Order, WebhookEvent
from models.settings import CollectionNames
from models.states import EventStatus, Origin, RowStatus
from tests.support import sample
from tests.support.mongomock import mongomock

NOW = datetime(2026, 10, 1, 12, tzinfo=UTC)


@pytest_asyncio.fixture
async def memory(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """An in-memory database with all indexes, under the default names."""
    for field, name in CollectionNames().model_dump().items():
        monkeypatch.setattr(
            DOCUMENTS[field], "Settings", type("Settings", (DOCUMENTS[field].Settings,), {"name": name})
        )
    with mongomock() as client:
        database = client["shop"]
        await init_beanie(database, document_models=list(DOCUMENTS.values()))
        yield database


def event(**changes: Any) -> WebhookEvent:
    known: dict[str, Any] = {
        "event_id": "E1",
        "body_hash": "h1",
        "id_signed": False,
        "provider": "razorpay",
        "event_type": "payment.captured",
        "origin": Origin.WEBHOOK,
        "status": EventStatus.RECEIVED,
        "raw_body": b'{"a": 1}\xff',
        "received_at": NOW,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return WebhookEvent(**{**known, **changes})


def row(**changes: Any) -> NotificationRow:
    known: dict[str, Any] = {
        "key": "order:1:payment_completed:email:customer",
        "notice": "payment_completed",
        "order_id": ObjectId(),
        "channel": "email",
        "to": "customer",
        "status": RowStatus.PENDING,
        "fact_at": NOW,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return NotificationRow(**{**known, **changes})


def snake_case(document: Any) -> list[str]:
    """Names with an underscore, at any depth; `_id` is the database's own."""
    if isinstance(document, list):
        return [name for item in document for name in snake_case(item)]
    if not isinstance(document, dict):
        return []
    inner = [name for value in document.values() for name in snake_case(value)]
    return [name for name in document if "_" in name.removeprefix("_")] + inner


def plain(value: Any) -> Any:
    """The in-memory database keeps `Binary` where a server's answer has bytes."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return bytes(value) if isinstance(value, bytes) else value


@pytest.mark.asyncio
async def test_an_event_is_stored_in_camel_case_and_read_back_the_same(memory: Any) -> None:
    lease = {"token": "t", "until": NOW, "lsid": b"\x01" * 16}
    made = event(lease=lease, next_attempt_at=NOW, refs={"order_id": "order_A"}, payload={"keep_as_it_is": {"a_b": 1}})
    await made.insert()
    stored = await memory["webhook_events"].find_one({"eventId": "E1"})
    assert snake_case({name: value for name, value in stored.items() if name != "payload"}) == []
    assert stored["payload"] == {"keep_as_it_is": {"a_b": 1}}
    assert (stored["bodyHash"], bytes(stored["rawBody"]), stored["nextAttemptAt"]) == ("h1", b'{"a": 1}\xff', NOW)
    assert stored["refs"]["orderId"] == "order_A"
    assert stored["status"] == "received"
    read = await WebhookEvent.find_one(WebhookEvent.event_id == "E1")
    assert read is not None
    assert plain(read.model_dump()) == made.model_dump()


@pytest.mark.asyncio
async def test_a_row_written_by_a_newer_release_keeps_its_unknown_fields(memory: Any) -> None:
    await event().insert()
    await memory["webhook_events"].update_one({"eventId": "E1"}, {"$set": {"later": {"a": 1}, "lease": None}})
    read = await WebhookEvent.find_one(WebhookEvent.event_id == "E1")
    assert read is not None
    await read.save()
    stored = await memory["webhook_events"].find_one({"eventId": "E1"})
    assert stored["later"] == {"a": 1}


@pytest.mark.asyncio
async def test_unknown_fields_of_an_order_survive(memory: Any) -> None:
    given = sample.order(1, gift_wrap=True) | {"couponCode": "DIWALI", "shop_notes": {"a_b": [1, None]}, "total": 499.0}
    await memory["orders"].insert_one(given)
    read = await Order.get("ord1")
    assert read is not None
    assert (read.order_number, read.payment) == ("TEA-1", given["payment"])
    await read.save()
    stored = await memory["orders"].find_one({"_id": "ord1"})
    assert {name: stored[name] for name in given} == given


@pytest.mark.asyncio
@pytest.mark.parametrize("order_id", ["ord1", 7, ObjectId("a" * 24), {"shop": 1, "no": 2}])
async def test_an_orders_id_may_be_of_any_type(memory: Any, order_id: object) -> None:
    await memory["orders"].insert_one({**sample.order(1), "_id": order_id})
    read = await Order.get(order_id)
    assert read is not None
    assert read.id == order_id


@pytest.mark.asyncio
async def test_an_order_without_anything_of_ours_can_be_read(memory: Any) -> None:
    await memory["orders"].insert_one({"_id": 1, "status": "new"})
    read = await Order.get(1)
    assert read is not None
    assert (read.payment, read.history, read.version) == (None, None, None)


@pytest.mark.asyncio
async def test_rows_with_a_business_key_are_stored_under_it(memory: Any) -> None:
    stamps = {"created_at": NOW, "updated_at": NOW}
    await LedgerRow(
        id="capture:pay_A", entry_type="capture", ref_id="pay_A", amount=49_900, currency="INR", **stamps
    ).insert()
    await Fulfilment(id="ord1", payment_id="pay_A", **stamps).insert()
    await Alert(
        id="payment_review:x", kind="payment_review", ref="x", times=3, first_at=NOW, last_at=NOW, **stamps
    ).insert()
    ledger = await memory["ledger_entries"].find_one({"_id": "capture:pay_A"})
    assert (ledger["entryType"], ledger["refId"], ledger["amount"]) == ("capture", "pay_A", 49_900)
    assert (await memory["fulfilments"].find_one({"_id": "ord1"}))["paymentId"] == "pay_A"
    assert (await memory["alerts"].find_one({"_id": "payment_review:x"}))["count"] == 3
    with pytest.raises(DuplicateKeyError):
        await LedgerRow(id="capture:pay_A", entry_type="capture", ref_id="pay_A", amount=1, **stamps).insert()


@pytest.mark.asyncio
async def test_two_orders_may_lack_a_provider_order_id_but_never_share_one(memory: Any) -> None:
    await memory["orders"].insert_many([sample.order(number, razorpayOrderId=None) for number in (1, 2)])
    await memory["orders"].insert_many([{"_id": "bare1"}, {"_id": "bare2", "payment": {}}])
    await memory["orders"].insert_one(sample.order(3, razorpayOrderId="order_same"))
    with pytest.raises(DuplicateKeyError):
        await memory["orders"].insert_one(sample.order(4, razorpayOrderId="order_same"))
    assert await memory["orders"].count_documents({}) == 5


@pytest.mark.asyncio
async def test_one_body_is_one_event_unless_its_provider_signs_the_id(memory: Any) -> None:
    await event().insert()
    with pytest.raises(DuplicateKeyError):
        await event(event_id="E2").insert()
    with pytest.raises(DuplicateKeyError):
        await event(body_hash="h2").insert()
    await event(event_id="stripe:E1", id_signed=True, body_hash="h3").insert()
    await event(event_id="stripe:E2", id_signed=True, body_hash="h3").insert()


@pytest.mark.asyncio
async def test_one_notice_for_one_recipient_by_one_channel_is_one_row(memory: Any) -> None:
    await row().insert()
    with pytest.raises(DuplicateKeyError):
        await row().insert()
    await row(key="order:1:payment_completed:inapp:admin").insert()


def unmended() -> Any:
    return AsyncMongoMockClient(tz_aware=True)


@pytest.mark.asyncio
async def test_without_the_shim_beanie_cannot_be_started_at_all() -> None:
    with pytest.raises(TypeError, match="authorizedCollections"):
        await init_beanie(unmended()["shop"], document_models=[Order])


@pytest.mark.asyncio
async def test_without_the_shim_a_partial_index_would_refuse_valid_orders() -> None:
    orders = unmended()["shop"]["orders"]
    await orders.create_indexes(list(Order.Settings.indexes))
    await orders.insert_one(sample.order(1, razorpayOrderId=None))
    with pytest.raises(DuplicateKeyError):
        await orders.insert_one(sample.order(2, razorpayOrderId=None))


def test_every_collection_name_in_the_settings_has_its_document() -> None:
    assert set(DOCUMENTS) == set(CollectionNames.model_fields)


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=lambda document: document.__name__)
def test_every_indexed_path_is_a_field_in_camel_case(document: type[Document]) -> None:
    aliases = {field.alias or name for name, field in document.model_fields.items()}
    for index in document.Settings.indexes:
        for path in index.document["key"]:
            assert path.split(".")[0] in aliases
