"""The circuit breaker, on a clock of the test's own."""

from __future__ import annotations

from watcher.breaker import LONGEST_PAUSE, Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    assert [breaker.failed("row") for _ in range(5)] == [False] * 4 + [True]
    return breaker


def test_it_opens_after_five_failures_in_a_row_and_not_of_all() -> None:
    breaker = Breaker(Clock())
    for _ in range(4):
        breaker.failed("row")
    assert not breaker.succeeded()
    assert [breaker.failed("row") for _ in range(4)] == [False] * 4
    assert (breaker.state, breaker.room(4), breaker.enter("row")) == ("closed", 4, True)
    assert breaker.failed("row")
    assert (breaker.state, breaker.room(4), breaker.enter("row")) == ("open", 0, False)


def test_after_thirty_seconds_one_probe_goes_and_no_second_beside_it() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 29.9
    assert breaker.room(4) == 0
    clock.now = 30.0
    assert (breaker.state, breaker.room(4)) == ("half_open", 1)
    assert breaker.enter("row")
    assert (breaker.room(4), breaker.enter("other")) == (0, False)


def test_a_good_probe_closes_and_a_bad_one_opens_again() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 31.0
    breaker.enter("row")
    assert not breaker.failed("row"), "it was open before"
    clock.now = 60.0
    assert breaker.state == "open"
    clock.now = 61.0
    breaker.enter("row")
    assert breaker.succeeded()
    assert (breaker.state, breaker.room(4)) == ("closed", 4)
    assert [breaker.failed("row") for _ in range(4)] == [False] * 4, "it counts anew"


def test_a_probe_that_says_nothing_about_the_provider_leaves_room_for_another() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 30.0
    breaker.enter("row")
    breaker.leave("an older one")
    assert not breaker.enter("other")
    breaker.leave("row")
    assert (breaker.state, breaker.enter("other")) == ("half_open", True)


def test_late_failures_of_sends_from_before_do_not_prolong_the_pause() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now = 29.0
    assert not breaker.failed("row")
    clock.now = 30.0
    assert breaker.enter("probe")
    assert not breaker.failed("row"), "not the probe's"
    assert (breaker.state, breaker.room(4)) == ("half_open", 0)


def test_it_stays_open_as_long_as_the_provider_asks_within_reason() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(4):
        breaker.failed("row")
    assert breaker.failed("row", retry_after=120)
    clock.now = 119.0
    assert breaker.room(1) == 0
    clock.now = 120.0
    breaker.enter("row")
    breaker.failed("row", retry_after=10**6)
    clock.now += LONGEST_PAUSE
    assert breaker.state == "half_open"
