"""Tell the administrators of open alerts: a new kind at once, then at most every few minutes, many in one message.

Each message is a row of the notification log with a key of its own, so it goes through the same claims, retries and
channels as any other. What it says is read when it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from pymongo.errors import DuplicateKeyError

from models.alerts import ADVICE, STILL_OPEN, resolve_quiet
from models.clock import ServerClock
from models.database import Database
from models.settings import NotificationSettings
from watcher.notices import AlertNotice
from watcher.outbox import Outbox

TOLD_OTHERWISE = frozenset({"payment_review"})
"""Kinds whose facts have a notice of their own."""
MOST_NAMED = 10
MOST_AT_ONCE = 500


class AlertTeller:
    """Runs in every watcher; the rounds' keys let only one message of each be."""

    def __init__(
        self,
        db: Database,
        clock: ServerClock,
        outbox: Outbox,
        settings: NotificationSettings,
        on_rows: Callable[[], None],
    ) -> None:
        self._db, self._clock, self._outbox, self._on_rows = db, clock, outbox, on_rows
        self._spacing = timedelta(seconds=settings.alert_spacing)
        self._repeat = timedelta(seconds=settings.alert_repeat)

    async def run_once(self) -> dict[str, int]:
        """Resolve what has become quiet and tell what is new, or still goes on after a while."""
        now = self._clock.now()
        resolved = await resolve_quiet(self._db, now)
        told = [await self._tell(kind, ids, now) for kind, ids in (await self._untold(now)).items()]
        if any(told):
            self._on_rows()
        return {"resolved": resolved, "told": sum(told)}

    async def _untold(self, now: datetime) -> dict[str, list[str]]:
        """Ids of the alerts to tell, by kind: never told, or told long ago and seen again since."""
        since = now - self._repeat
        wanted = {
            **STILL_OPEN,
            "kind": {"$nin": sorted(TOLD_OTHERWISE)},
            "$or": [{"notifiedAt": None}, {"notifiedAt": {"$lt": since}, "lastAt": {"$gt": since}}],
        }
        by_kind: dict[str, list[str]] = {}
        async for alert in self._db.alerts.find(wanted, {"kind": 1}).limit(MOST_AT_ONCE):
            by_kind.setdefault(alert["kind"], []).append(alert["_id"])
        return by_kind

    async def _tell(self, kind: str, ids: list[str], now: datetime) -> int:
        """Owe the next message of a kind, unless the last one was a moment ago; how many rows are new.

        Rows first, then the marks: killed in between, the same round is made again, and its rows are there already, and
        perhaps sent. So what is untold by then is told in the round after it.
        """
        state = await self._db.watcher_state.find_one({"_id": _state_id(kind)}) or {"round": 0, "at": None}
        if state["at"] is not None and now - state["at"] < self._spacing:
            return 0
        notice = AlertNotice(kind, state["round"] + 1, now)
        if new := await self._outbox.add([notice], now):
            await self._db.alerts.update_many({"_id": {"$in": ids}}, {"$set": {"notifiedAt": now}})
        await self._advance(kind, notice.round, now)
        return new

    async def _advance(self, kind: str, reached: int, now: datetime) -> None:
        """Remember the round; another instance that made the same one has said so already."""
        state = {"round": reached, "at": now, "updatedAt": now}
        try:
            await self._db.watcher_state.update_one(
                {"_id": _state_id(kind), "round": {"$lt": reached}}, {"$set": state}, upsert=True
            )
        except DuplicateKeyError:
            return


def _state_id(kind: str) -> str:
    return f"alerting:{kind}"


async def subject(db: Database, kind: str) -> dict[str, Any] | None:
    """What a message about a kind is about, in the place of an order; None when nobody need look any more."""
    query = {**STILL_OPEN, "kind": kind}
    found = await db.alerts.find(query).sort("lastAt", -1).limit(MOST_NAMED).to_list()
    if not found:
        return None
    count = await db.alerts.count_documents(query)
    facts = [(alert["ref"], _words(alert)) for alert in found]
    return {"alert": {"kind": kind, "todo": ADVICE.get(kind, ""), "count": count, "facts": facts}}


def _words(alert: Mapping[str, Any]) -> str:
    times = f", {alert['count']} times" if alert["count"] > 1 else ""
    return f"{alert.get('detail') or alert['kind']}{times}, last {alert['lastAt']:%Y-%m-%d %H:%M} UTC"
