"""The indexes that the rules rest on, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from pymongo.errors import DuplicateKeyError

from models.database import Database, database
from models.documents import DOCUMENTS
from models.errors import DatabaseUnfit
from models.indexes import create_indexes, find_clashes, find_problems, require_indexes
from models.settings import Settings
from tests.conftest import SettingsMaker
from tests.support import sample

ORDER_ID = "payment.razorpayOrderId"
PAYMENT_ID = "payment.razorpayPaymentId"
ALL = sum(len(document.Settings.indexes) for document in DOCUMENTS.values())


@pytest.fixture
def settings(make_settings: SettingsMaker) -> Settings:
    return make_settings()


@pytest_asyncio.fixture
async def bare(settings: Settings) -> AsyncIterator[Database]:
    """A database of its own without any index of ours."""
    async with database(settings) as opened:
        yield opened
        await opened.client.drop_database(settings.mongodb.database)


async def problems(db: Database, settings: Settings) -> list[str]:
    return [str(problem) for problem in await find_problems(db, settings)]


@pytest.mark.asyncio
async def test_what_was_created_passes_the_check_and_is_not_created_again(db: Database, settings: Settings) -> None:
    assert await problems(db, settings) == []
    await require_indexes(db, settings)
    assert await create_indexes(db, settings) == ([], [])


@pytest.mark.asyncio
async def test_an_empty_database_is_refused_with_the_way_out(bare: Database, settings: Settings) -> None:
    assert len(await problems(bare, settings)) == ALL
    with pytest.raises(DatabaseUnfit, match=rf"^{ALL} of the indexes .* run `paylatch indexes` once before starting$"):
        await require_indexes(bare, settings)
    created, failed = await create_indexes(bare, settings)
    assert (len(created), failed) == (ALL, [])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("collection", "key"),
    [("webhook_events", "eventId"), ("webhook_events", "bodyHash"), ("orders", ORDER_ID), ("notification_log", "key")],
)
async def test_a_missing_index_is_refused_by_its_name(
    db: Database, settings: Settings, collection: str, key: str
) -> None:
    await db.handle[collection].drop_index([(key, 1)])
    with pytest.raises(DatabaseUnfit, match=rf"the first: {collection}\.{key}_1 is missing"):
        await require_indexes(db, settings)
    created, _ = await create_indexes(db, settings)
    assert created == [f"{collection}.{key}_1"]


@pytest.mark.asyncio
async def test_an_index_that_is_not_unique_is_refused_by_its_name_and_left_alone(
    db: Database, settings: Settings
) -> None:
    await db.events.drop_index([("eventId", 1)])
    await db.events.create_index([("eventId", 1)], name="the_shops_own")
    with pytest.raises(DatabaseUnfit, match=r"webhook_events\.eventId_1 differs: it must be unique"):
        await require_indexes(db, settings)
    created, failed = await create_indexes(db, settings)
    assert created == []
    assert [str(problem) for problem in failed] == [
        "webhook_events.eventId_1 differs: it must be unique; drop it and run `paylatch indexes`"
    ]
    assert "the_shops_own" in await db.events.index_information()


@pytest.mark.asyncio
async def test_a_unique_index_over_fewer_documents_than_ours_is_refused(db: Database, settings: Settings) -> None:
    await db.events.drop_index([("bodyHash", 1)])
    await db.events.create_index([("bodyHash", 1)], unique=True, partialFilterExpression={"provider": "something else"})
    assert await problems(db, settings) == [
        "webhook_events.bodyHash_1 differs: it must be unique; drop it and run `paylatch indexes`"
    ]


@pytest.mark.asyncio
async def test_an_index_in_the_other_direction_is_not_ours(db: Database, settings: Settings) -> None:
    await db.events.drop_index([("eventId", 1)])
    await db.events.create_index([("eventId", -1)], unique=True)
    assert await problems(db, settings) == ["webhook_events.eventId_1 is missing"]


@pytest.mark.asyncio
async def test_a_plain_unique_index_of_the_shop_is_good_enough(bare: Database, settings: Settings) -> None:
    await bare.orders.create_index([(ORDER_ID, 1)], unique=True, name="the_shops_own")
    await bare.orders.create_index([("payment.status", 1)], name="their_status")
    created, failed = await create_indexes(bare, settings)
    assert failed == []
    assert not {f"orders.{ORDER_ID}_1", "orders.payment.status_1"} & set(created)
    await require_indexes(bare, settings)


@pytest.mark.asyncio
async def test_collections_with_names_of_the_shop_get_the_same_indexes(make_settings: SettingsMaker) -> None:
    settings = make_settings(mongodb={"collections": {"orders": "shop_orders"}})
    async with database(settings) as db:
        created, _ = await create_indexes(db, settings)
        assert f"shop_orders.{ORDER_ID}_1" in created
        assert db.orders.name == "shop_orders"
        await require_indexes(db, settings)
        await db.client.drop_database(settings.mongodb.database)


@pytest.mark.asyncio
async def test_clashes_among_existing_orders_are_listed_and_the_other_indexes_are_created(
    bare: Database, settings: Settings
) -> None:
    shared: list[dict[str, Any]] = [sample.order(number, razorpayOrderId="order_same") for number in (1, 2, 3)]
    alone = [sample.order(4), sample.order(5, razorpayOrderId=None), sample.order(6, razorpayOrderId=None)]
    await bare.orders.insert_many([*shared, *alone, {"_id": "bare"}])

    clashes = [clash async for clash in find_clashes(bare, settings)]
    assert [(clash.collection, clash.path, clash.value) for clash in clashes] == [("orders", ORDER_ID, "order_same")]
    assert sorted(clashes[0].ids) == ["ord1", "ord2", "ord3"]

    created, failed = await create_indexes(bare, settings)
    assert [str(problem) for problem in failed] == [f"orders.{ORDER_ID}_1 cannot be created: documents share a value"]
    assert len(created) == ALL - 1
    with pytest.raises(DatabaseUnfit, match=ORDER_ID):
        await require_indexes(bare, settings)

    for order_id in ("ord2", "ord3"):
        await bare.orders.update_one({"_id": order_id}, {"$unset": {ORDER_ID: ""}})
    assert await create_indexes(bare, settings) == ([f"orders.{ORDER_ID}_1"], [])
    assert [clash async for clash in find_clashes(bare, settings)] == []
    await require_indexes(bare, settings)


@pytest.mark.asyncio
@pytest.mark.parametrize("path", [ORDER_ID, PAYMENT_ID])
async def test_orders_without_a_provider_id_never_clash_and_orders_with_the_same_one_do(
    db: Database, path: str
) -> None:
    field = path.split(".")[1]
    await db.orders.insert_many([sample.order(number, **{field: None}) for number in (1, 2)])
    await db.orders.insert_many([{"_id": "bare1"}, {"_id": "bare2", "payment": {}}])
    await db.orders.insert_one(sample.order(3, **{field: "the_same"}))
    with pytest.raises(DuplicateKeyError):
        await db.orders.insert_one(sample.order(4, **{field: "the_same"}))


@pytest.mark.asyncio
async def test_a_provider_that_signs_its_ids_may_repeat_a_body(db: Database) -> None:
    row = {"bodyHash": "h", "status": "received"}
    await db.events.insert_one({**row, "eventId": "a", "idSigned": False})
    await db.events.insert_many([{**row, "eventId": name, "idSigned": True} for name in ("x", "y")])
    with pytest.raises(DuplicateKeyError):
        await db.events.insert_one({**row, "eventId": "b", "idSigned": False})
    with pytest.raises(DuplicateKeyError):
        await db.events.insert_one({"eventId": "a", "bodyHash": "other", "idSigned": False})
