from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from models.database import Database, database
from models.indexes import create_indexes
from models.settings import Settings
from tests.support import sample
from tests.support.endpoint import Endpoint, endpoint
from tests.support.server import configured, server

SettingsMaker = Callable[..., Settings]


@pytest.fixture(scope="session")
def mongodb_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real server over the wire, one per test worker."""
    if address := configured():
        yield address
        return
    with server(tmp_path_factory.mktemp("mongodb")) as address:
        yield address


@pytest.fixture
def make_settings(mongodb_uri: str) -> SettingsMaker:
    """Settings on this test's own fresh database; sections as keywords."""
    name = f"paylatch_test_{uuid.uuid4().hex[:12]}"

    def make(**sections: Any) -> Settings:
        return sample.settings(mongodb_uri, name, **sections)

    return make


@pytest_asyncio.fixture
async def db(make_settings: SettingsMaker) -> AsyncIterator[Database]:
    """A fresh database with all indexes; gone after the test."""
    settings = make_settings()
    async with database(settings) as opened:
        _, problems = await create_indexes(opened, settings)
        assert not problems
        yield opened
        await opened.client.drop_database(settings.mongodb.database)


@pytest_asyncio.fixture
async def shop(db: Database, make_settings: SettingsMaker) -> AsyncIterator[Endpoint]:
    """An endpoint and one pending order, `ord1`."""
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings()) as running:
        yield running
