"""What a message passes before it is sent: its channel's breaker and rate, and its recipient's own pace."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

from models.settings import NotificationSettings
from models.telemetry import Telemetry
from watcher.breaker import Breaker
from watcher.channels import NotSent, SendError
from watcher.pace import TokenBucket, Turns

UNPACED = frozenset({"inapp", "webhook"})
"""Channels that reach programs, which no number of messages annoys."""
_ABOUT_THE_ADDRESS = re.compile(r"rcpt_\d{3}")
"""A mail server's answer to a recipient (greylisting, a full mailbox) says nothing about the server."""


class Gate:
    """One channel's limits in this process."""

    def __init__(self, channel: str, settings: NotificationSettings, telemetry: Telemetry) -> None:
        self._channel, self._telemetry = channel, telemetry
        self._breaker = Breaker()
        rate = settings.rate(channel)
        self._bucket = TokenBucket(1 / rate, 1) if rate else None
        paced = channel not in UNPACED and settings.recipient_interval > 0
        self._turns = Turns(settings.recipient_interval, settings.recipient_burst) if paced else None

    def room(self, free: int) -> int:
        """How many of the free places may be used now."""
        return self._breaker.room(free)

    def wait(self, row: Mapping[str, Any], address: str) -> float:
        """Seconds until this recipient may get this message; 0 uses the turn up."""
        return self._turns.wait(row["_id"], address) if self._turns else 0.0

    async def enter(self, row_id: object) -> bool:
        """Wait for the channel's rate; False when the provider is to be left alone. `leave` must follow True."""
        if self._breaker.room(1) and self._bucket:
            await asyncio.sleep(self._bucket.take(time.monotonic()))
        return self._breaker.enter(row_id)

    def leave(self, row_id: object) -> None:
        """The row's send is over, or did not begin."""
        self._breaker.leave(row_id)

    def succeeded(self) -> None:
        """The provider gave a proper answer, be it that it refuses this message."""
        if self._breaker.succeeded():
            self._telemetry.emit("channel.breaker_closed", channel=self._channel)

    def failed(self, row_id: object, error: SendError) -> bool:
        """Whether this failure opened the breaker."""
        if isinstance(error, NotSent) and _ABOUT_THE_ADDRESS.fullmatch(error.reason):
            return False
        retry_after = error.retry_after if isinstance(error, NotSent) else None
        opened = self._breaker.failed(row_id, retry_after or 0.0)
        if opened:
            self._telemetry.emit("channel.breaker_opened", channel=self._channel, reason=error.reason)
        return opened
