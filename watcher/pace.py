"""How fast messages go out: a token bucket for a channel, and one for each address, so that nobody is flooded.

Own code: the libraries for this can only block, and a message to a busy address must make room for the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_KEPT = 10_000
"""Addresses, and waiting rows, that are remembered at most."""
LOOK_AGAIN = 60.0
"""Seconds that a row waits without a turn of its own while too many others wait."""


class TokenBucket:
    """One message every `interval` seconds, `burst` at once after a rest; all it keeps is when it will be full."""

    __slots__ = ("_burst", "_full_at", "_interval")

    def __init__(self, interval: float, burst: int) -> None:
        self._interval, self._burst, self._full_at = interval, burst, float("-inf")

    def take(self, now: float) -> float:
        """Take the next token; the seconds until it may be used."""
        self._full_at = max(self._full_at, now) + self._interval
        return max(0.0, self._full_at - self._burst * self._interval - now)

    def full(self, now: float) -> bool:
        """Whether it has nothing to remember."""
        return self._full_at <= now


class Turns:
    """Whose turn it is: each row gets its turn under its address once, and waits for it outside of this process."""

    def __init__(self, interval: float, burst: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._interval, self._burst, self._monotonic = interval, burst, monotonic
        self._buckets: dict[str, TokenBucket] = {}
        self._turns: dict[object, float] = {}

    def wait(self, row_id: object, address: str) -> float:
        """Seconds until this row may be sent; 0 uses its turn up."""
        now = self._monotonic()
        turn = self._turns.pop(row_id, None)
        if turn is None:
            if max(len(self._turns), len(self._buckets)) >= MOST_KEPT:
                self._forget(now)
            if len(self._turns) >= MOST_KEPT:
                return LOOK_AGAIN
            bucket = self._buckets.setdefault(address, TokenBucket(self._interval, self._burst))
            turn = now + bucket.take(now)
        if turn <= now:
            return 0.0
        self._turns[row_id] = turn
        return turn - now

    def _forget(self, now: float) -> None:
        """Full buckets and turns that another instance used say nothing more; then the oldest buckets go."""
        self._buckets = {address: bucket for address, bucket in self._buckets.items() if not bucket.full(now)}
        self._turns = {row_id: turn for row_id, turn in self._turns.items() if turn > now - self._interval}
        while len(self._buckets) >= MOST_KEPT:
            self._buckets.pop(next(iter(self._buckets)))
