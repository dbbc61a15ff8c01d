"""A circuit breaker: a provider that fails again and again is left alone for a while, not tried by every row.

Own code: of the libraries that fit, none both speaks asyncio without wrapping the call and lets an outcome count for
neither side (a refused address says nothing about the provider).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

FAILURES = 5
PAUSE = 30.0
LONGEST_PAUSE = 900.0

State = Literal["closed", "open", "half_open"]


class Breaker:
    """Closed until five failures in a row; then open for half a minute; then one send, the probe, decides."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures = 0
        self._until: float | None = None
        self._probe: object = None

    @property
    def state(self) -> State:
        """`half_open` when the pause is over and a probe may go, or is under way."""
        if self._until is None:
            return "closed"
        return "open" if self._monotonic() < self._until else "half_open"

    def room(self, free: int) -> int:
        """How many of `free` places may be used now."""
        if self.state == "closed":
            return free
        return 0 if self.state == "open" or self._probe is not None else min(1, free)

    def enter(self, row_id: object) -> bool:
        """Whether this row may be sent; in `half_open` the first one is the probe."""
        if self.state == "closed":
            return True
        if self.room(1) == 0:
            return False
        self._probe = row_id
        return True

    def leave(self, row_id: object) -> None:
        """The send is over, or did not begin after all; a probe that gave no verdict makes room for another."""
        if self._probe == row_id:
            self._probe = None

    def succeeded(self) -> bool:
        """The provider works; whether that closed the breaker."""
        was_open = self._until is not None
        self._failures, self._until, self._probe = 0, None, None
        return was_open

    def failed(self, row_id: object, retry_after: float = 0.0) -> bool:
        """The provider does not work; whether that opened the breaker. `retry_after` is the provider's own wish."""
        self._failures += 1
        opens = self._until is None and self._failures >= FAILURES
        if opens or self._probe == row_id:
            self._until = self._monotonic() + min(max(PAUSE, retry_after), LONGEST_PAUSE)
        self.leave(row_id)
        return opens
