import pytest

from models.database import Database
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import endpoint


@pytest.mark.asyncio
async def test_one_event(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings()) as shop:
        assert await shop.post(sample.captured(1), "E1") == (200, {"status": "accepted", "eventId": "E1"})
        row = await shop.settled("E1")
        assert row["outcome"]["code"] == "applied"
        assert (await shop.order(1))["payment"]["status"] == "completed"
