"""The cap after a gap: one count for all instances, and a place that belongs to its row."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from models.database import Database
from watcher.cap import admit, impose, in_force, lift

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.asyncio
async def test_without_a_cap_every_row_goes_out(db: Database) -> None:
    assert await admit(db, 1, 0)
    assert await in_force(db) is None
    assert not await lift(db, NOW)


@pytest.mark.asyncio
async def test_of_many_rows_at_once_exactly_so_many_go_out(db: Database) -> None:
    await impose(db, NOW, "history lost")
    rows = [number for number in range(20) for _ in range(3)]  # three instances look at the same rows
    allowed = await asyncio.gather(*(admit(db, number, 7) for number in rows))
    through = {number for number, may in zip(rows, allowed, strict=True) if may}
    assert len(through) == 7
    cap = await in_force(db)
    assert cap is not None
    assert (cap["used"], sorted(cap["rows"]), cap["reason"]) == (7, sorted(through), "history lost")
    assert [await admit(db, number, 7) for number in through] == [True] * 7, "a second try takes no second place"


@pytest.mark.asyncio
async def test_a_second_gap_opens_no_room_for_more_until_somebody_lifted_the_first(db: Database) -> None:
    await impose(db, NOW, "the first")
    assert await admit(db, 1, 1)
    await impose(db, NOW, "the second")
    assert not await admit(db, 2, 1)
    assert await lift(db, NOW)
    assert await admit(db, 2, 1)
    await impose(db, NOW, "the third")
    assert [await admit(db, number, 1) for number in (3, 4)] == [True, False]
