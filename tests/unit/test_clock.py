from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from models.clock import FRESH_FOR, KEPT_SAMPLES, TAKER_MARGIN, ServerClock
from models.errors import Unavailable
from models.leases import Claim

START = datetime(2031, 5, 1, 12, tzinfo=UTC)


class World:
    """A server's clock and our monotonic one, which move together; `offset` is how far the server is ahead of truth."""

    def __init__(self) -> None:
        self.elapsed = 1000.0
        self.there, self.back = 0.0, 0.0
        self.offset = timedelta()
        self.admin = SimpleNamespace(command=self.command)
        self.commands: list[str] = []

    @property
    def server_time(self) -> datetime:
        return START + timedelta(seconds=self.elapsed) + self.offset

    async def command(self, name: str, *, codec_options: Any) -> dict[str, Any]:
        assert codec_options.tz_aware
        self.commands.append(name)
        self.elapsed += self.there
        seen = self.server_time
        self.elapsed += self.back
        return {"localTime": seen}

    def clock(self) -> ServerClock:
        client: Any = self
        return ServerClock(client, monotonic=lambda: self.elapsed)

    async def sample(self, clock: ServerClock, there: float, back: float) -> dict[str, int]:
        self.there, self.back = there, back
        return await clock.run_once()


@pytest.mark.asyncio
async def test_without_a_sample_nobody_takes_anything() -> None:
    clock = World().clock()
    assert not clock.fresh
    for ask in (clock.now, clock.expired_before, lambda: clock.in_seconds(1), lambda: Claim.of(clock, 1)):
        with pytest.raises(Unavailable):
            ask()


@pytest.mark.asyncio
async def test_the_servers_time_goes_on_with_our_monotonic_clock() -> None:
    world = World()
    clock = world.clock()
    assert await world.sample(clock, 0.05, 0.05) == {"kept": 1}
    assert world.commands == ["hello"]
    world.elapsed += 17
    assert clock.now() == world.server_time
    assert clock.in_seconds(2.5) == world.server_time + timedelta(seconds=2.5)
    assert clock.expired_before() == world.server_time - TAKER_MARGIN


@pytest.mark.asyncio
async def test_a_skewed_clock_of_this_host_does_not_matter() -> None:
    world = World()
    world.offset = timedelta(days=-4000)
    clock = world.clock()
    await world.sample(clock, 0.01, 0.01)
    assert clock.now() == world.server_time
    assert clock.now().utcoffset() == timedelta()


@pytest.mark.asyncio
async def test_a_round_trip_over_half_a_second_is_discarded() -> None:
    world = World()
    clock = world.clock()
    assert await world.sample(clock, 0.501, 0.0) == {"discarded": 1}
    assert not clock.fresh
    assert await world.sample(clock, 0.25, 0.25) == {"kept": 1}
    assert clock.fresh


@pytest.mark.asyncio
@pytest.mark.parametrize("best", [0, 1, 2])
async def test_of_several_samples_the_one_with_the_least_round_trip_counts(best: int) -> None:
    world = World()
    clock = world.clock()
    for number in range(3):
        await world.sample(clock, 0.001 if number == best else 0.4, 0.001)  # lopsided: 0.2 s wrong if it were believed
        world.elapsed += 5
    assert abs(clock.now() - world.server_time) < timedelta(milliseconds=1)


@pytest.mark.asyncio
async def test_a_good_sample_is_forgotten_after_some_newer_ones() -> None:
    world = World()
    clock = world.clock()
    await world.sample(clock, 0.0, 0.0)
    world.offset = timedelta(seconds=3)  # the server's clock was set
    for _ in range(KEPT_SAMPLES):
        assert clock.now() == world.server_time - world.offset
        await world.sample(clock, 0.1, 0.1)
    assert clock.now() == world.server_time


@pytest.mark.asyncio
async def test_after_a_minute_without_a_sample_the_time_is_unknown_again() -> None:
    world = World()
    clock = world.clock()
    await world.sample(clock, 0.0, 0.0)
    world.elapsed += FRESH_FOR - 0.001
    assert clock.fresh
    world.elapsed += 0.001
    assert not clock.fresh
    await world.sample(clock, 0.6, 0.0)
    with pytest.raises(Unavailable, match="clock"):
        clock.now()
    await world.sample(clock, 0.0, 0.0)
    assert clock.now() == world.server_time


@pytest.mark.asyncio
async def test_a_failing_server_leaves_the_known_time_in_place() -> None:
    world = World()
    clock = world.clock()
    await world.sample(clock, 0.0, 0.0)

    async def fail(*_: object, **__: object) -> dict[str, Any]:
        raise ConnectionError

    world.admin.command = fail
    with pytest.raises(ConnectionError):
        await clock.run_once()
    assert clock.now() == world.server_time
