"""What the collections promise, whatever the address in the settings says."""

from __future__ import annotations

import bson
import pytest
from pymongo import ReadPreference

from models.database import database
from tests.support import sample


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
