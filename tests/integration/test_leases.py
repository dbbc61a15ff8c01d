"""Claim, fence and take-over of an event's row, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
import pytest_asyncio
from bson import Binary
from pymongo.errors import OperationFailure, PyMongoError

from models.clock import TAKER_MARGIN, ServerClock
from models.database import Database, database
from models.errors import LeaseLost
from models.leases import Claim, kill_session
from models.states import EventStatus
from models.telemetry import Telemetry
from tests.conftest import SettingsMaker
from tests.support import sample
from webhook.event_rows import EventRows

LEASE = 30.0


@dataclass
class Desk:
    """The rows of one test, and their clock."""

    db: Database
    rows: EventRows
    clock: ServerClock

    async def insert(self, name: str = "E1", status: str = "received", **fields: Any) -> dict[str, Any]:
        now = self.clock.now()
        row = {
            "_id": name,
            "eventId": name,
            "bodyHash": name,
            "idSigned": False,
            "status": status,
            "attempts": 0,
            "nextAttemptAt": now,
            "requeues": 0,
            "refs": {},
            **fields,
        }
        await self.db.events.insert_one(row)
        return row

    async def abandoned(self, name: str = "E1", ago: float = 1.0, **lease: Any) -> dict[str, Any]:
        """A row whose holder died; its lease ended `ago` seconds before a taker may come."""
        until = self.clock.expired_before() - timedelta(seconds=ago)
        held = {"token": "dead", "until": until, "lsid": None, **lease}
        return await self.insert(name, "processing", attempts=1, lease=held, nextAttemptAt=until)

    async def row(self, name: str = "E1") -> dict[str, Any]:
        row = await self.rows.load(name)
        assert row is not None
        return row

    async def take(self, name: str = "E1") -> Claim | None:
        """A claim of the row as it is now."""
        claim = Claim.of(self.clock, LEASE)
        return claim if await self.rows.claim(await self.row(name), claim) else None

    async def taken(self, name: str = "E1") -> Claim:
        claim = await self.take(name)
        assert claim is not None
        return claim

    async def due(self) -> list[str]:
        return [row["_id"] for row in await self.rows.due(10)]


@pytest_asyncio.fixture
async def desk(db: Database, make_settings: SettingsMaker) -> Desk:
    clock = ServerClock(db.client)
    await clock.run_once()
    return Desk(db, EventRows(db, clock, make_settings().processing, Telemetry()), clock)


@pytest_asyncio.fixture
async def other(make_settings: SettingsMaker) -> AsyncIterator[Database]:
    """The same database through a second client, as another process has it."""
    async with database(make_settings()) as opened:
        yield opened


def near(moment: datetime, wanted: datetime) -> bool:
    return abs(moment - wanted) < timedelta(seconds=2)


@pytest.mark.asyncio
@pytest.mark.parametrize("status", ["received", "failed"])
async def test_a_claim_writes_its_token_its_end_and_one_attempt(desk: Desk, status: str) -> None:
    await desk.insert(status=status, attempts=3)
    claim = await desk.taken()
    row = await desk.row()
    assert (row["status"], row["attempts"]) == ("processing", 4)
    assert row["lease"]["token"] == claim.token
    assert row["lease"]["until"] == row["nextAttemptAt"]
    assert near(row["lease"]["until"], desk.clock.in_seconds(LEASE))
    assert LEASE - 5 < claim.remaining < LEASE


@pytest.mark.asyncio
async def test_of_many_takers_of_one_row_exactly_one_gets_it(desk: Desk) -> None:
    row = await desk.insert()
    claims = [Claim.of(desk.clock, LEASE) for _ in range(8)]
    won = await asyncio.gather(*(desk.rows.claim(row, claim) for claim in claims))
    assert sum(map(bool, won)) == 1
    stored = await desk.row()
    assert stored["lease"]["token"] == next(claim.token for claim, mine in zip(claims, won, strict=True) if mine)
    assert stored["attempts"] == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("status", ["completed", "ignored", "dead"])
async def test_a_row_that_moved_since_it_was_read_is_not_taken(desk: Desk, status: str) -> None:
    row = await desk.insert()
    await desk.db.events.update_one({"_id": "E1"}, {"$set": {"status": status}})
    assert not await desk.rows.claim(row, Claim.of(desk.clock, LEASE))
    assert (await desk.row())["status"] == status


@pytest.mark.asyncio
async def test_a_live_lease_is_not_taken_over(desk: Desk) -> None:
    await desk.insert()
    claim = await desk.taken()
    assert await desk.take() is None
    assert (await desk.row())["lease"]["token"] == claim.token


@pytest.mark.asyncio
async def test_a_taker_waits_past_the_leases_end(desk: Desk) -> None:
    lease = {"token": "t", "until": desk.clock.now() - TAKER_MARGIN / 10, "lsid": None}
    await desk.insert(status="processing", lease=lease, nextAttemptAt=lease["until"])
    assert await desk.take() is None
    assert await desk.due() == []


@pytest.mark.asyncio
async def test_an_ended_lease_is_taken_over_exactly_once(desk: Desk) -> None:
    row = await desk.abandoned()
    assert await desk.due() == ["E1"]
    claims = [Claim.of(desk.clock, LEASE) for _ in range(5)]
    won = await asyncio.gather(*(desk.rows.claim(row, claim) for claim in claims))
    assert sum(map(bool, won)) == 1
    assert (await desk.row())["attempts"] == 2
    assert await desk.due() == []


@pytest.mark.asyncio
async def test_whatever_the_old_holder_still_writes_has_no_effect(desk: Desk) -> None:
    await desk.abandoned()
    old = Claim(until=desk.clock.now(), seconds=LEASE, token="dead")
    new = await desk.taken()
    before = await desk.row()
    for write in (
        desk.rows.finish("E1", old, EventStatus.COMPLETED, "applied"),
        desk.rows.park(before, old),
        desk.rows.retry("E1", old, "x", "y", 5),
        desk.rows.postpone("E1", old, "x", 5),
        desk.rows.give_back("E1", old),
    ):
        with pytest.raises(LeaseLost):
            await write
    assert await desk.row() == before
    await desk.rows.finish("E1", new, EventStatus.COMPLETED, "applied")


@pytest.mark.asyncio
async def test_a_finished_row_says_what_came_of_it_and_is_never_due_again(desk: Desk) -> None:
    await desk.insert()
    claim = await desk.taken()
    await desk.rows.finish("E1", claim, EventStatus.IGNORED, "unknown_type", "x.y")
    row = await desk.row()
    assert (row["status"], row["outcome"]) == ("ignored", {"code": "unknown_type", "detail": "x.y"})
    assert near(row["processedAt"], desk.clock.now())
    assert not {"lease", "nextAttemptAt"} & set(row)
    assert await desk.due() == []


@pytest.mark.asyncio
async def test_finishing_twice_by_the_same_claim_is_a_lost_reply_and_no_lost_lease(desk: Desk) -> None:
    await desk.insert()
    claim = await desk.taken()
    await desk.rows.finish("E1", claim, EventStatus.COMPLETED, "applied")
    before = await desk.row()
    await desk.rows.finish("E1", claim, EventStatus.COMPLETED, "applied")
    assert await desk.row() == before
    with pytest.raises(LeaseLost):
        await desk.rows.finish("E1", Claim.of(desk.clock, LEASE), EventStatus.COMPLETED, "applied")


@pytest.mark.asyncio
async def test_inside_a_transaction_a_row_already_finished_is_lost_even_to_its_own_claim(desk: Desk) -> None:
    await desk.insert()
    claim = await desk.taken()
    await desk.rows.finish("E1", claim, EventStatus.COMPLETED, "applied")
    async with desk.db.client.start_session() as session:
        await session.start_transaction()
        with pytest.raises(LeaseLost):
            await desk.rows.finish("E1", claim, EventStatus.COMPLETED, "applied", session=session)
        await session.abort_transaction()


@pytest.mark.asyncio
async def test_a_failed_attempt_counts_and_is_due_after_its_pause(desk: Desk) -> None:
    await desk.insert()
    claim = await desk.taken()
    await desk.rows.retry("E1", claim, "value_error", "unexpected ValueError", 3600)
    row = await desk.row()
    assert (row["status"], row["attempts"], row["error"]) == ("failed", 1, "value_error")
    assert near(row["nextAttemptAt"], desk.clock.in_seconds(3600))
    assert "lease" not in row
    assert await desk.due() == []


@pytest.mark.asyncio
async def test_an_outage_does_not_count_as_an_attempt(desk: Desk) -> None:
    await desk.insert(attempts=2)
    await desk.rows.postpone("E1", await desk.taken(), "AutoReconnect", 0)
    row = await desk.row()
    assert (row["status"], row["attempts"], row["error"]) == ("failed", 2, "AutoReconnect")


@pytest.mark.asyncio
async def test_a_row_given_back_is_due_now_and_its_attempt_does_not_count(desk: Desk) -> None:
    await desk.insert(attempts=2)
    await desk.rows.give_back("E1", await desk.taken())
    row = await desk.row()
    assert (row["status"], row["attempts"], "lease" in row) == ("received", 2, False)
    assert await desk.due() == ["E1"]


@pytest.mark.asyncio
async def test_waking_a_parked_row_is_no_attempt(desk: Desk) -> None:
    await desk.insert()
    await desk.rows.park(await desk.row(), await desk.taken())
    assert (await desk.row())["attempts"] == 1
    for _ in range(3):
        await desk.rows.park(await desk.row(), await desk.taken())
    row = await desk.row()
    assert (row["status"], row["attempts"], row["parks"]) == ("parked", 1, 4)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["postpone", "give_back"])
async def test_an_attempt_that_was_never_counted_is_not_taken_off_either(desk: Desk, how: str) -> None:
    await desk.insert(status="parked", attempts=1)
    claim = await desk.taken()
    await (desk.rows.postpone("E1", claim, "x", 0) if how == "postpone" else desk.rows.give_back("E1", claim))
    assert (await desk.row())["attempts"] == 1


@pytest.mark.asyncio
async def test_parking_again_keeps_the_first_deadline_and_waits_longer(
    desk: Desk, make_settings: SettingsMaker
) -> None:
    await desk.insert()
    await desk.rows.park(await desk.row(), await desk.taken())
    first = await desk.row()
    assert near(first["parkedUntil"], desk.clock.in_seconds(make_settings().processing.parked_for))
    assert near(first["nextAttemptAt"], desk.clock.in_seconds(2))
    assert first["outcome"]["code"] == "waiting_for_order"
    await desk.rows.park(first, await desk.taken())
    second = await desk.row()
    assert second["parkedUntil"] == first["parkedUntil"]
    assert near(second["nextAttemptAt"], desk.clock.in_seconds(10))


@pytest.mark.asyncio
async def test_what_is_due_comes_oldest_first_and_abandoned_rows_before_waiting_ones(desk: Desk) -> None:
    now = desk.clock.now()
    for minutes, (name, status) in enumerate([("W1", "failed"), ("W2", "received"), ("W3", "parked")], start=1):
        await desk.insert(name, status, nextAttemptAt=now - timedelta(minutes=minutes))
    await desk.abandoned("A1", ago=1)
    await desk.abandoned("A2", ago=60)
    await desk.insert("later", "failed", nextAttemptAt=now + timedelta(minutes=1))
    await desk.insert("done", "completed")
    await desk.insert("gone", "dead", nextAttemptAt=None)
    assert await desk.due() == ["A2", "A1", "W3", "W2", "W1"]
    assert [row["_id"] for row in await desk.rows.due(1)] == ["A2"]
    assert [row["_id"] for row in await desk.rows.due(3)] == ["A2", "A1", "W3"]


@pytest.mark.asyncio
async def test_taking_over_frees_the_documents_a_dead_transaction_has_locked(desk: Desk, other: Database) -> None:
    await desk.db.orders.insert_one(sample.order(1))
    async with other.client.start_session() as session:
        await desk.abandoned(lsid=Binary(session.session_id["id"], 4))
        await session.start_transaction()
        await other.orders.update_one({"_id": "ord1"}, {"$set": {"payment.status": "completed"}}, session=session)
        with pymongo.timeout(0.5), pytest.raises(PyMongoError):
            await desk.db.orders.update_one({"_id": "ord1"}, {"$set": {"touched": 1}})

        await desk.taken()

        with pymongo.timeout(3):
            result = await desk.db.orders.update_one({"_id": "ord1"}, {"$set": {"touched": 2}})
        assert result.modified_count == 1
        order = await desk.db.orders.find_one({"_id": "ord1"})
        assert order is not None
        assert order["payment"]["status"] == "pending", "the dead transaction left no effect"
        with pytest.raises(PyMongoError):
            await session.commit_transaction()


@pytest.mark.asyncio
async def test_without_the_right_to_kill_a_session_the_take_over_goes_on_and_says_so() -> None:
    async def refuse(*_: object) -> None:
        raise OperationFailure("not authorized", 13)

    emitted: list[tuple[str, dict[str, Any]]] = []
    telemetry = Telemetry(lambda event, fields: emitted.append((event, fields)))
    db: Any = SimpleNamespace(client=SimpleNamespace(admin=SimpleNamespace(command=refuse)))
    await kill_session(db, {"lsid": None}, telemetry)
    await kill_session(db, None, telemetry)
    assert emitted == []
    await kill_session(db, {"lsid": b"0" * 16}, telemetry)
    assert emitted == [("lease.kill_failed", {"error": "OperationFailure"})]


@pytest.mark.asyncio
async def test_a_claim_by_what_was_read_before_another_worker_failed_takes_nothing(desk: Desk) -> None:
    await desk.insert()
    read_before = await desk.row()
    claim = await desk.taken()
    await desk.rows.retry("E1", claim, "boom", "boom", 60.0)
    failed = await desk.row()
    assert not desk.rows.is_due(failed), "its pause is not over"
    assert await desk.rows.claim({**read_before, "status": "failed"}, Claim.of(desk.clock, LEASE)) is None
    assert (await desk.row())["attempts"] == 1
