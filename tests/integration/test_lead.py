"""Leading and standing by, with a reader that fails or hangs."""

from __future__ import annotations

import asyncio

import pytest
from pymongo.errors import AutoReconnect

from models.database import Database
from models.errors import HistoryLost
from models.telemetry import Telemetry
from tests.support.wait import eventually
from watcher.lead import Leadership
from watcher.leader import LeaderLease

FAR_LONGER_THAN_THE_TEST = 600.0


class Reader:
    """Does what it is told each time it is run; the last thing again and again. None: hang, whatever stop says."""

    def __init__(self, *ends: Exception | None) -> None:
        self._ends = list(ends)
        self.last_reply: float | None = None
        self.epochs: list[int] = []

    async def run(self, epoch: int, _stop: asyncio.Event) -> None:
        self.epochs.append(epoch)
        end = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        if end is not None:
            raise end
        await asyncio.Event().wait()


def leadership(db: Database, reader: Reader) -> Leadership:
    lease = LeaderLease(db, FAR_LONGER_THAN_THE_TEST)
    return Leadership(lease, reader, 0.2, Telemetry())  # type: ignore[arg-type]  # the two things it needs of a reader


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [AutoReconnect("gone"), ValueError("broken text")], ids=["outage", "anything"])
async def test_after_a_failure_the_leader_reads_on_without_waiting_out_its_own_lease(
    db: Database, error: Exception
) -> None:
    reader, stop = Reader(error, None), asyncio.Event()
    running = asyncio.create_task(leadership(db, reader).run(stop))

    async def reads_again() -> bool:
        return len(reader.epochs) == 2

    await eventually(reads_again, "it reads again")
    stop.set()
    async with asyncio.timeout(10):
        await running
    assert reader.epochs == [1, 2], "under a new epoch"


@pytest.mark.asyncio
async def test_a_reader_that_hangs_does_not_hold_up_a_stop_and_the_lease_is_released(db: Database) -> None:
    reader, stop = Reader(None), asyncio.Event()
    running = asyncio.create_task(leadership(db, reader).run(stop))

    async def reads() -> list[int]:
        return reader.epochs

    await eventually(reads, "it reads")
    stop.set()
    async with asyncio.timeout(10):
        await running
    leader = await db.watcher_state.find_one({"_id": "leader"})
    assert leader is not None
    assert leader["holder"] is None


@pytest.mark.asyncio
async def test_a_server_that_gives_no_stream_ends_the_process(db: Database) -> None:
    with pytest.raises(HistoryLost):
        await leadership(db, Reader(HistoryLost("gone"))).run(asyncio.Event())
