"""Reconciliation as a duty of long-lived hosts: of several, one does each round."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pymongo.errors import DuplicateKeyError

from models.alerts import raise_alert
from models.clock import ServerClock
from models.database import Database, database
from models.duties import Repeated, repeating
from models.errors import PayLatchError, SettingsError
from models.leases import new_token
from models.settings import Settings
from models.telemetry import Telemetry
from webhook.differences import Period
from webhook.engine import engine
from webhook.providers import providers
from webhook.providers.razorpay_api import RazorpayApi, require_key
from webhook.reconcile import Report, Round, Scope

STATE = "reconcile"
LOOKS_EVERY = 60.0
AGAIN_AFTER = 900.0
"""A round that failed, or whose host died, is due again after this many seconds, for whichever host looks first."""


class ReconcileDuty:
    """Does a round when one is due and no other host has taken it.

    Failure policy: open. A round that fails or whose host dies leaves what it repaired; the next one finds the rest.
    """

    def __init__(self, settings: Settings, db: Database, clock: ServerClock, telemetry: Telemetry) -> None:
        self._settings, self._db, self._clock, self._telemetry = settings, db, clock, telemetry

    async def run_once(self) -> dict[str, int]:
        """How many differences were found and repaired; nothing when no round is due."""
        await self._clock.run_once()
        started, token = self._clock.now(), new_token()
        if not await self._take(started, token):
            return {}
        try:
            report = await self._round(started)
        except Exception as error:  # noqa: BLE001 - the watcher on this host must go on, whatever the provider does
            await self._failed(error)
            return {"failed": 1}
        await self._done(started, token)
        return {"differences": len(report.lines), "repaired": report.repaired, **report.looked}

    async def _take(self, now: datetime, token: str) -> bool:
        """Move the time on at which a round is due: who does that, does this round."""
        again = now + timedelta(seconds=min(self._settings.reconcile.every, AGAIN_AFTER))
        due = {"_id": STATE, "nextAt": {"$lte": now}}
        changes = {"$set": {"nextAt": again, "token": token, "updatedAt": now}, "$setOnInsert": {"createdAt": now}}
        try:
            await self._db.watcher_state.update_one(due, changes, upsert=True)
        except DuplicateKeyError:  # it is there, and not due
            return False
        return True

    async def _done(self, started: datetime, token: str) -> None:
        """The next one is due in its time, unless another host has taken over meanwhile."""
        following = started + timedelta(seconds=self._settings.reconcile.every)
        await self._clock.run_once()  # a round may take longer than a sample is fresh
        changes = {"nextAt": following, "updatedAt": self._clock.now()}
        await self._db.watcher_state.update_one({"_id": STATE, "token": token}, {"$set": changes})

    async def _round(self, now: datetime) -> Report:
        settings, telemetry = self._settings, self._telemetry
        async with (
            RazorpayApi(settings.razorpay) as api,
            engine(settings, providers(settings), telemetry) as running,
        ):
            day, timezone = yesterday(now, settings.shop.timezone), settings.shop.timezone
            period = days(day, day, timezone)
            return await Round(running, api, telemetry, apply=True).run(Scope(period=period))

    async def _failed(self, error: Exception) -> None:
        """The alert holds our own words only."""
        await self._clock.run_once()
        now = self._clock.now()
        detail = f"{error.code}: {error}" if isinstance(error, PayLatchError) else type(error).__name__
        await raise_alert(self._db, self._telemetry, "reconcile_failed", "razorpay", now, detail[:300])


def yesterday(now: datetime, timezone: str) -> date:
    """The last whole day in the shop's timezone."""
    return now.astimezone(_zone(timezone)).date() - timedelta(days=1)


def days(first: date, last: date, timezone: str) -> Period:
    """Whole days of the shop's timezone, both included."""
    zone = _zone(timezone)
    since, until = (datetime.combine(day, time(), zone).astimezone(UTC) for day in (first, last + timedelta(days=1)))
    return Period(since, until)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingsError(
            f"PAYLATCH_SHOP__TIMEZONE is wrong: {name!r} is no name of a time zone such as Asia/Kolkata"
        ) from None


@contextlib.asynccontextmanager
async def reconciling(settings: Settings, telemetry: Telemetry) -> AsyncIterator[None]:
    """Run the duty beside something else, where the settings ask for it.

    Raises `SettingsError` when they do and there is no API key.
    """
    every = settings.reconcile.every
    if not every:
        yield
        return
    require_key(settings.razorpay)
    async with database(settings) as db:
        duty = ReconcileDuty(settings, db, ServerClock(db.client), telemetry)
        async with repeating(telemetry, Repeated(duty, min(every, LOOKS_EVERY))):
            yield
