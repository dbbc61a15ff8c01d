"""Find events that are due and have no worker here: failed, parked, queued elsewhere, or left by a dead process."""

from __future__ import annotations

from webhook.event_rows import EventRows, Job, lane_of
from webhook.lanes import Lanes

MOST_AT_ONCE = 200


class Recovery:
    """Hands due rows to the lanes; the claim at dequeue decides which process gets each."""

    def __init__(self, rows: EventRows, lanes: Lanes[Job]) -> None:
        self._rows, self._lanes = rows, lanes

    async def run_once(self) -> dict[str, int]:
        """Offer as many due rows as there is room for."""
        room = min(self._lanes.room, MOST_AT_ONCE)
        if not room:
            return {}
        due = await self._rows.due(room)
        return {"offered": sum(self._lanes.offer(lane_of(row), Job(row["_id"])) for row in due)}
