"""The leader lease over the wire; each instance has a monotonic clock of its own that the test moves."""

from __future__ import annotations

import asyncio

import pytest

from models.database import Database
from watcher.leader import LeaderLease

SECONDS = 10.0


class Clock:
    """Stands still until it is moved."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def instance(db: Database, started: float = 0.0) -> tuple[LeaderLease, Clock]:
    clock = Clock(started)
    return LeaderLease(db, SECONDS, clock), clock


@pytest.mark.asyncio
async def test_of_many_first_starts_one_becomes_the_leader(db: Database) -> None:
    instances = [instance(db)[0] for _ in range(8)]
    won = await asyncio.gather(*(lease.acquire() for lease in instances))
    assert sorted(won) == [False] * 7 + [True]
    assert sorted(lease.epoch for lease in instances) == [0] * 7 + [1]


@pytest.mark.asyncio
async def test_a_leader_that_shows_life_is_never_replaced_however_long_it_leads(db: Database) -> None:
    leader, leaders = instance(db)
    standby, standbys = instance(db, 1_000_000.0)
    assert await leader.acquire()
    for _ in range(20):
        leaders.now += leader.renew_every
        standbys.now += SECONDS - 0.1
        assert await leader.renew()
        assert not await standby.acquire()
    assert leader.held
    assert leader.epoch == 1


@pytest.mark.asyncio
async def test_a_leader_without_life_is_replaced_after_the_whole_lease_time_on_the_standbys_clock(db: Database) -> None:
    leader, leaders = instance(db)
    standby, standbys = instance(db)
    assert await leader.acquire()
    standbys.now = 500.0  # however long it had not looked
    assert not await standby.acquire()
    standbys.now += SECONDS - 0.001
    assert not await standby.acquire()
    standbys.now += 0.001
    assert await standby.acquire()
    assert standby.epoch == 2
    leaders.now += SECONDS
    assert not leader.held, "the old one knows it by its own clock"
    assert not await leader.renew()
    assert (leader.epoch, standby.epoch) == (0, 2)
    assert await standby.renew()


@pytest.mark.asyncio
async def test_a_sign_of_life_starts_the_standbys_wait_anew(db: Database) -> None:
    leader, _ = instance(db)
    standby, standbys = instance(db)
    assert await leader.acquire()
    assert not await standby.acquire()
    standbys.now += SECONDS - 1
    assert await leader.renew()
    standbys.now += 2
    assert not await standby.acquire()
    standbys.now += SECONDS - 1
    assert not await standby.acquire()
    standbys.now += 1
    assert await standby.acquire()


@pytest.mark.asyncio
async def test_of_many_standbys_one_takes_over(db: Database) -> None:
    leader, _ = instance(db)
    assert await leader.acquire()
    standbys = [instance(db) for _ in range(8)]
    assert not any(await asyncio.gather(*(lease.acquire() for lease, _ in standbys)))
    for _, clock in standbys:
        clock.now += SECONDS
    won = await asyncio.gather(*(lease.acquire() for lease, _ in standbys))
    assert sorted(won) == [False] * 7 + [True]
    stored = await db.watcher_state.find_one({"_id": "leader"})
    assert stored is not None
    assert stored["epoch"] == 2


@pytest.mark.asyncio
async def test_a_leader_that_beats_in_the_last_moment_keeps_the_lease(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, _ = instance(db)
    standby, standbys = instance(db)
    assert await leader.acquire()
    assert not await standby.acquire()
    standbys.now += SECONDS
    take = standby._take

    async def after_a_beat(epoch: int, beat: int) -> bool:
        assert await leader.renew()
        return await take(epoch, beat)

    monkeypatch.setattr(standby, "_take", after_a_beat)
    assert not await standby.acquire()
    assert await leader.renew()


@pytest.mark.asyncio
async def test_a_released_lease_is_free_at_once(db: Database) -> None:
    leader, _ = instance(db)
    standby, _ = instance(db)
    assert await leader.acquire()
    await leader.release()
    assert not leader.held
    assert await standby.acquire()
    assert standby.epoch == 2
    await leader.release()
    assert await standby.renew(), "a late release of the old leader changes nothing"


@pytest.mark.asyncio
async def test_a_lease_counts_from_before_its_sign_of_life_was_sent(db: Database) -> None:
    leader, clock = instance(db)
    assert not leader.held
    assert await leader.acquire()
    clock.now = SECONDS - 0.001
    assert leader.held
    clock.now = SECONDS
    assert not leader.held
    assert await leader.renew(), "nobody took it in the meantime"
    assert leader.held
