"""Rates and pacing, on a clock of the test's own."""

from __future__ import annotations

import pytest

from watcher import pace
from watcher.pace import LOOK_AGAIN, TokenBucket, Turns


class Clock:
    """A monotonic clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_bucket_gives_a_burst_at_once_and_then_one_for_each_interval() -> None:
    bucket = TokenBucket(2.0, 5)
    assert [bucket.take(100.0) for _ in range(8)] == [0, 0, 0, 0, 0, 2.0, 4.0, 6.0]
    assert bucket.take(108.0) == 0.0, "the four that were taken ahead are paid back after eight seconds"


def test_a_rested_bucket_gives_no_more_than_its_burst() -> None:
    bucket = TokenBucket(1.0, 3)
    bucket.take(0.0)
    assert [bucket.take(10_000.0) for _ in range(4)] == [0, 0, 0, 1.0]


def test_seventy_messages_to_one_address_wait_for_their_turns_and_others_do_not() -> None:
    clock = Clock()
    turns = Turns(2.0, 5, clock)
    waits = [turns.wait(number, "asha@example.com") for number in range(70)]
    assert waits == [0.0] * 5 + [2.0 * n for n in range(1, 66)]
    assert turns.wait("other", "ravi@example.com") == 0.0


def test_a_row_that_comes_back_has_kept_its_turn_and_uses_it_once() -> None:
    clock = Clock()
    turns = Turns(2.0, 1, clock)
    assert [turns.wait(row, "a@example.com") for row in "abc"] == [0.0, 2.0, 4.0]
    clock.now += 1
    assert turns.wait("b", "a@example.com") == 1.0, "too early: it keeps its turn"
    clock.now += 1
    assert turns.wait("b", "a@example.com") == 0.0
    assert turns.wait("c", "a@example.com") == 2.0
    assert turns.wait("b", "a@example.com") == 4.0, "a second try is a message like any other"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "MOST_KEPT", 100)
    clock = Clock()
    turns = Turns(2.0, 1, clock)
    for number in range(1000):
        turns.wait(number, f"{number}@example.com")
    assert len(turns._buckets) <= 100


def test_while_too_many_rows_wait_a_further_one_looks_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "MOST_KEPT", 10)
    clock = Clock()
    turns = Turns(2.0, 1, clock)
    waits = [turns.wait(number, "asha@example.com") for number in range(30)]
    assert waits == [2.0 * number for number in range(11)] + [LOOK_AGAIN] * 19
    assert len(turns._turns) == 10
    clock.now += 100  # another instance sent what waited here
    assert turns.wait("new", "asha@example.com") == 0.0
    assert len(turns._turns) == 0
