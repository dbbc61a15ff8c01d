"""Named points at which a test may kill the process, so that every gap between two writes is tried for real.

Production never arms one: `crash_point` is then a call that does nothing.
"""

from __future__ import annotations

import os
import signal

from models.errors import SettingsError

POINTS = frozenset(
    {
        "webhook.before_insert",
        "webhook.inserted",  # stored, nobody answered yet
        "webhook.answered",
        "webhook.claimed",
        "webhook.in_transaction",  # everything written, nothing committed
        "webhook.committed",
        "webhook.parked",
        "watcher.baseline_stored",
        "watcher.change_received",
        "watcher.rows_inserted",
        "watcher.checkpoint_saved",
        "watcher.sending_written",
        "watcher.provider_accepted",
        "watcher.sent",
    },
)


class _Armed:
    name: str | None = None
    remaining = 0


def crash_point(name: str) -> None:
    """Kill this process here when the point is armed."""
    if _Armed.name != name:
        return
    _Armed.remaining -= 1
    if _Armed.remaining <= 0:
        os.kill(os.getpid(), signal.SIGKILL)


def arm(spec: str | None) -> None:
    """Arm `name` or `name:N` (the N-th time it is reached); None arms nothing.

    Raises `SettingsError` for a name that is no crash point.
    """
    name, _, count = (spec or "").partition(":")
    if name and name not in POINTS:
        msg = f"PAYLATCH_CRASH_POINT names {name!r}, which is no crash point; they are: {', '.join(sorted(POINTS))}"
        raise SettingsError(msg)
    if not (count or "1").isdigit():
        msg = f"PAYLATCH_CRASH_POINT must be `name` or `name:N`, not {spec!r}"
        raise SettingsError(msg)
    _Armed.name, _Armed.remaining = name or None, int(count or 1)
