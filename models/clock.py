"""The database server's time, so that leases and due times mean the same on every host.

Local clocks may be wrong by minutes; a lease taken by one and judged by another would then have two holders. Each
process samples `hello.localTime`, keeps the best recent sample and adds a monotonic clock to it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient

from models.errors import Unavailable

LONGEST_ROUND_TRIP = 0.5
KEPT_SAMPLES = 12
FRESH_FOR = 60.0
_AWARE: CodecOptions[dict[str, Any]] = CodecOptions(tz_aware=True)
TAKER_MARGIN = timedelta(milliseconds=500)
"""A taker waits this long past a lease's end: as much as two samples can differ."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the server's clock; `uncertainty` is half the round trip in seconds."""

    server: datetime
    monotonic: float
    uncertainty: float


class ServerClock:
    """Time as the database server sees it.

    Failure policy: without a fresh sample `now()` raises `Unavailable`, so nobody takes a lease on a guess.
    """

    def __init__(
        self,
        client: AsyncMongoClient[dict[str, Any]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._monotonic = monotonic
        self._samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)

    async def run_once(self) -> dict[str, int]:
        """Take one sample; a round trip over 500 ms says too little and is discarded."""
        before = self._monotonic()
        reply = await self._client.admin.command("hello", codec_options=_AWARE)
        after = self._monotonic()
        if after - before > LONGEST_ROUND_TRIP:
            return {"discarded": 1}
        self._samples.append(Sample(reply["localTime"], (before + after) / 2, (after - before) / 2))
        return {"kept": 1}

    @property
    def fresh(self) -> bool:
        """Whether a sample of the last minute is at hand."""
        return bool(self._samples) and self._monotonic() - self._samples[-1].monotonic < FRESH_FOR

    def now(self) -> datetime:
        """The server's time, in UTC.

        Raises `Unavailable` when no sample of the last minute is at hand.
        """
        if not self.fresh:
            raise Unavailable("the database server's clock has not been read for a minute")
        best = min(self._samples, key=lambda sample: sample.uncertainty)
        return best.server + timedelta(seconds=self._monotonic() - best.monotonic)

    def in_seconds(self, seconds: float) -> datetime:
        """The server's time `seconds` from now."""
        return self.now() + timedelta(seconds=seconds)

    def expired_before(self) -> datetime:
        """A lease that ended before this moment may be taken over."""
        return self.now() - TAKER_MARGIN
