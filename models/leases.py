"""Row leases: whoever writes a random token into a row holds it until its end; every later write carries the token.

Identity is the token of this very claim, never a host name or pid, so a paused holder that comes back matches nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bson import Binary
from pymongo.errors import PyMongoError

from models.clock import ServerClock
from models.database import Database
from models.telemetry import Telemetry


def new_token() -> str:
    """A token nobody can have by chance."""
    return secrets.token_hex(16)


@dataclass(slots=True)
class Claim:
    """One holder's claim. It counts down from before it was sent, so it never believes longer than a taker waits."""

    until: datetime
    """End in the server's time, as stored."""
    seconds: float
    token: str = field(default_factory=new_token)
    lsid: Binary | None = None
    """Id of the session whose transaction a taker must kill first."""
    counted: bool = True
    """Whether this claim is one of the row's `attempts`; waking a parked row is none."""
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, clock: ServerClock, seconds: float, lsid: Binary | None = None) -> Claim:
        """A claim of `seconds`, starting now. Raises `Unavailable` without a fresh sample of the server's clock."""
        return cls(until=clock.in_seconds(seconds), seconds=seconds, lsid=lsid)

    def document(self) -> dict[str, Any]:
        """As stored in `lease`."""
        return {"token": self.token, "until": self.until, "lsid": self.lsid}

    def fence(self, row_id: object) -> dict[str, Any]:
        """The filter that only matches while this claim holds the row."""
        return {"_id": row_id, "lease.token": self.token}

    @property
    def remaining(self) -> float:
        """Seconds left by our own monotonic clock."""
        return self.seconds - (time.monotonic() - self.started)


async def kill_session(db: Database, lease: Mapping[str, Any] | None, telemetry: Telemetry) -> None:
    """End the dead holder's transaction, which would otherwise lock its documents for up to a minute.

    Failure policy: open. Without the right to do so the take-over goes on and waits for the lock instead.
    """
    lsid = (lease or {}).get("lsid")
    if lsid is None:
        return
    try:
        await db.client.admin.command({"killSessions": [{"id": Binary(bytes(lsid), 4)}]})
    except PyMongoError as error:
        telemetry.emit("lease.kill_failed", error=type(error).__name__)
