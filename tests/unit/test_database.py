"""What the collections promise, whatever the address in the settings says."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Iterator

import bson
import pytest
from pymongo import ReadPreference

from models.database import database
from tests.support import sample
from tests.support.wait import eventually


@pytest.mark.asyncio
async def test_reads_are_primary_and_writes_durable_whatever_the_address_says() -> None:
    settings = sample.settings("mongodb://127.0.0.1:1/?w=1&readPreference=secondaryPreferred", "paylatch")
    async with database(settings) as db:
        for collection in (db.events, db.orders, db.ledger, db.notification_log, db.watcher_state):
            assert collection.write_concern.document == {"w": "majority", "j": True}
            assert collection.read_preference == ReadPreference.PRIMARY


@pytest.mark.asyncio
async def test_broken_text_of_the_shop_is_read_instead_of_ending_a_daemon() -> None:
    broken = bson.encode({"note": "xy"}).replace(b"xy", b"x\xff")
    async with database(sample.settings("mongodb://127.0.0.1:1", "paylatch")) as db:
        assert bson.decode(broken, codec_options=db.handle.codec_options) == {"note": "x�"}


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port whose queue is full: connecting to it neither succeeds nor fails."""
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        yield deaf.getsockname()[1]


@pytest.mark.asyncio
async def test_a_client_that_is_closed_while_it_connects_leaves_no_socket_open(
    deaf_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, connects = asyncio.Event(), asyncio.get_running_loop().sock_connect

    async def noticed(*arguments: object) -> None:
        connecting.set()
        await connects(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", noticed)
    settings = sample.settings(f"mongodb://127.0.0.1:{deaf_port}/?directConnection=true", "nowhere")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        async with database(settings) as db:
            asked = asyncio.create_task(db.orders.find_one({}))
            await connecting.wait()
            asked.cancel()
            await asyncio.wait([asked])

        async def quiet() -> bool:
            return asyncio.all_tasks() == {asyncio.current_task()}

        await eventually(quiet, "the driver's tasks have ended")
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
