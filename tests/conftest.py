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


MATRIX_HEAD = ("point", "killed at", "recovered", "events", "ledger", "rows", "mails", "verdict")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what came of every kill, as one table."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    said = [value for report in reports for name, value in report.user_properties if name == "crash_matrix"]
    if not said:
        return
    table = [MATRIX_HEAD, *sorted(said)]
    widths = [max(len(line[column]) for line in table) for column in range(len(MATRIX_HEAD))]
    terminalreporter.write_sep("=", "crash matrix")
    for line in table:
        terminalreporter.write_line(" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
