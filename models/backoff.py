"""How long to wait before trying again: doubling, bounded, and spread, so that what failed together comes apart."""

from __future__ import annotations

import random

JITTER = 0.2
_MOST_DOUBLINGS = 20  # far beyond any bound here; a power of more than a thousand would overflow


def doubling(attempts: int, first: float, longest: float) -> float:
    """Seconds until the next try after `attempts` failed ones: `first`, doubled each time, at most `longest`, ±20 %."""
    pause = min(first * 2.0 ** min(max(0, attempts - 1), _MOST_DOUBLINGS), longest)
    return jittered(pause, JITTER)


def jittered(seconds: float, share: float) -> float:
    """The time, up to `share` of it more or less."""
    return seconds * random.uniform(1 - share, 1 + share)  # noqa: S311 - spreads load, guards nothing
