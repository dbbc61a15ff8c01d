"""Every write of a notification row after its insert, each guarded by the status or the claim it replaces."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from models.backoff import doubling
from models.clock import ServerClock
from models.database import Database, RawDocument
from models.errors import LeaseLost
from models.leases import Claim
from models.states import SENDABLE_ROWS, RowStatus

FIRST_RETRY = 5.0
LONGEST_RETRY = 900.0
LONGEST_WISH = 3600.0
"""What a provider may ask for at most, in seconds: a notice that waits for a day is none any more."""
GAP_CAP = "gap_cap"
"""The reason of rows that wait because enough was sent after a gap."""


def retry_delay(attempts: int, wish: float = 0.0) -> float:
    """Seconds until the next try after `attempts` failed ones: 5 s doubling, at most 15 min, ±20 %.

    Not before the provider's own wish, as far as that is within an hour.
    """
    return max(doubling(attempts, FIRST_RETRY, LONGEST_RETRY), min(wish, LONGEST_WISH))


class NotificationRows:
    """The rows of `notification_log`."""

    def __init__(self, db: Database, clock: ServerClock) -> None:
        self._db, self._clock = db, clock

    async def due(self, channel: str, limit: int, busy: Collection[object]) -> list[RawDocument]:
        """Rows of a channel that are due now and not being sent here, oldest first."""
        wanted = {
            "status": {"$in": list(SENDABLE_ROWS)},
            "nextAttemptAt": {"$lte": self._clock.now()},
            "channel": channel,
            "_id": {"$nin": list(busy)},
        }
        return await self._db.notification_log.find(wanted).sort("nextAttemptAt", 1).limit(limit).to_list()

    async def abandon_dead(self) -> int:
        """Rows whose sender vanished while sending: nobody knows whether the message went out."""
        now = self._clock.now()
        lost = {"status": RowStatus.SENDING, "nextAttemptAt": {"$lte": self._clock.expired_before()}}
        update = {
            "$set": {
                "status": RowStatus.UNKNOWN,
                "reason": "sender_died",
                "unknownAt": now,
                "nextAttemptAt": now,
                "updatedAt": now,
            },
            "$unset": {"lease": ""},
        }
        result = await self._db.notification_log.update_many(lost, update)
        return result.modified_count

    async def claim(self, row: Mapping[str, Any], claim: Claim, message: Mapping[str, Any]) -> bool:
        """Take the row for sending and freeze what will be sent; False when somebody else was faster."""
        guard = {"_id": row["_id"], "status": row["status"], "nextAttemptAt": row["nextAttemptAt"]}
        update = {
            "$set": {
                "status": RowStatus.SENDING,
                "lease": claim.document(),
                "message": message,
                "nextAttemptAt": claim.until,
                "updatedAt": self._clock.now(),
            },
            "$inc": {"attempts": 1},
        }
        result = await self._db.notification_log.update_one(guard, update)
        return result.matched_count == 1

    async def postpone(self, row: Mapping[str, Any], seconds: float) -> None:
        """It is due later and no attempt is used up, unless it moved meanwhile."""
        guard = {"_id": row["_id"], "status": row["status"], "nextAttemptAt": row["nextAttemptAt"]}
        changes = {"nextAttemptAt": self._clock.in_seconds(seconds), "updatedAt": self._clock.now()}
        await self._db.notification_log.update_one(guard, {"$set": changes})

    async def hold_gap(self, admitted: Collection[object]) -> int:
        """Rows of a gap that have no place under the cap wait for an operator; how many there were."""
        waiting = {"status": RowStatus.PENDING, "gap": True, "_id": {"$nin": list(admitted)}}
        changes = {"status": RowStatus.HELD, "reason": GAP_CAP, "nextAttemptAt": None, "updatedAt": self._clock.now()}
        result = await self._db.notification_log.update_many(waiting, {"$set": changes})
        return result.modified_count

    async def release_gap(self) -> None:
        """Rows that were held when the cap was lifted already are due after all."""
        held = {"status": RowStatus.HELD, "gap": True, "reason": GAP_CAP}
        now = self._clock.now()
        changes = {"status": RowStatus.PENDING, "reason": None, "nextAttemptAt": now, "updatedAt": now}
        await self._db.notification_log.update_many(held, {"$set": changes})

    async def close(self, row: Mapping[str, Any], status: RowStatus, reason: str) -> bool:
        """End a row that will not be sent (expired, suppressed, skipped, dead, held), unless it moved meanwhile."""
        guard = {"_id": row["_id"], "status": row["status"], "nextAttemptAt": row["nextAttemptAt"]}
        changes = {"status": status, "reason": reason, "nextAttemptAt": None, "updatedAt": self._clock.now()}
        result = await self._db.notification_log.update_one(guard, {"$set": changes})
        return result.matched_count == 1

    async def sent(self, row_id: object, claim: Claim, provider_message_id: str) -> None:
        """The receiver took it. Raises `LeaseLost`."""
        now = self._clock.now()
        changes = {"status": RowStatus.SENT, "providerMessageId": provider_message_id, "sentAt": now, "reason": None}
        await self._fenced(row_id, claim, {**changes, "nextAttemptAt": None})

    async def dead(self, row_id: object, claim: Claim, reason: str, *, maybe_sent: bool = False) -> None:
        """It is not tried any more; `maybe_sent` when nobody knows how the last try ended. Raises `LeaseLost`."""
        changes: dict[str, Any] = {"status": RowStatus.DEAD, "reason": reason, "nextAttemptAt": None}
        if maybe_sent:
            changes["unknownAt"] = self._clock.now()
        await self._fenced(row_id, claim, changes)

    async def retry(self, row_id: object, claim: Claim, reason: str, delay: float) -> None:
        """Certainly not sent; try again in `delay` seconds. Raises `LeaseLost`."""
        due = self._clock.in_seconds(delay)
        await self._fenced(row_id, claim, {"status": RowStatus.RETRY, "reason": reason, "nextAttemptAt": due})

    async def unknown(self, row_id: object, claim: Claim, reason: str, delay: float) -> None:
        """It may have been sent; `unknownAt` stays on the row for good. Raises `LeaseLost`."""
        changes = {"status": RowStatus.UNKNOWN, "reason": reason, "unknownAt": self._clock.now()}
        await self._fenced(row_id, claim, {**changes, "nextAttemptAt": self._clock.in_seconds(delay)})

    async def held(self, row_id: object, claim: Claim, reason: str) -> None:
        """It may have been sent, and a person decides what then. Raises `LeaseLost`."""
        changes = {"status": RowStatus.HELD, "reason": reason, "unknownAt": self._clock.now(), "nextAttemptAt": None}
        await self._fenced(row_id, claim, changes)

    async def _fenced(self, row_id: object, claim: Claim, changes: Mapping[str, Any]) -> None:
        update = {"$set": {**changes, "updatedAt": self._clock.now()}, "$unset": {"lease": ""}}
        result = await self._db.notification_log.update_one(claim.fence(row_id), update)
        if result.matched_count == 0:
            raise LeaseLost("another instance took this notification over")
