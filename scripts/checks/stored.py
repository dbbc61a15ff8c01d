"""What the database tells: whether it fits, and what waits in it for a person."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Protocol

import pymongo
from pymongo.errors import OperationFailure

from models.clock import ServerClock
from models.database import Database, database, require_replica_set
from models.errors import PayLatchError
from models.indexes import find_problems
from models.settings import Settings
from models.states import EventStatus, RowStatus, order_status
from scripts.checks import Finding
from scripts.overview import open_alerts, place
from webhook.orders import expectation

SAMPLED_ORDERS = 100
LONGEST_TRANSACTION = 60
MOST_SKEW = 2.0
CHECK_TIMEOUT = 5.0


class Check(Protocol):
    """One look at the database."""

    __name__: str

    async def __call__(self, db: Database, settings: Settings, /) -> Finding:
        """What it found."""
        ...


async def stored_findings(settings: Settings) -> AsyncIterator[Finding]:
    """Every check of the database; without one there is only the sentence that says so."""
    try:
        async with database(settings) as db:
            await require_replica_set(db)
            yield Finding("ok", "database", "answers, and is a replica set")
            for check in CHECKS:
                yield await _guarded(check, db, settings)
    except PayLatchError as error:
        yield Finding("WRONG", "database", str(error))


async def _guarded(check: Check, db: Database, settings: Settings) -> Finding:
    """A check that the database refuses is a finding too."""
    try:
        with pymongo.timeout(CHECK_TIMEOUT):
            return await check(db, settings)
    except Exception as error:  # noqa: BLE001 - a check that fails is a finding, never a crash
        name = check.__name__.strip("_").replace("_", " ")
        return Finding("WRONG", name, f"it could not be done ({type(error).__name__})")


async def _indexes(db: Database, settings: Settings) -> Finding:
    problems = await find_problems(db, settings)
    if problems:
        return Finding(
            "WRONG", "indexes", f"{len(problems)} not in place, the first: {problems[0]}; run `paylatch indexes`"
        )
    return Finding("ok", "indexes", "all in place")


async def _write_concern(db: Database, _settings: Settings) -> Finding:
    """A durable write is tried for real; an unreachable majority would make every webhook a 503."""
    started = time.monotonic()
    await db.watcher_state.update_one({"_id": "doctor"}, {"$set": {"probe": True}}, upsert=True)
    await db.watcher_state.delete_one({"_id": "doctor"})
    took = (time.monotonic() - started) * 500
    return Finding("ok" if took < 500 else "warning", "write concern", f"majority + journal, {took:.0f} ms a write")


async def _transactions(db: Database, _settings: Settings) -> Finding:
    """A killed client's transaction locks its order for this long, unless `killSessions` frees it."""
    name = "transactionLifetimeLimitSeconds"
    try:
        limit = (await db.client.admin.command({"getParameter": 1, name: 1}))[name]
    except (OperationFailure, KeyError):
        return Finding("warning", "transaction lifetime", f"{name} cannot be read here; 10 is recommended")
    says = f"{name} is {limit}"
    return Finding(
        "ok" if limit < LONGEST_TRANSACTION else "warning", "transaction lifetime", f"{says}; 10 is recommended"
    )


async def _clock(db: Database, _settings: Settings) -> Finding:
    skew = abs((await _now(db)).timestamp() - time.time())
    says = f"{skew:.1f} s from the database server's (leases use the server's)"
    return Finding("ok" if skew < MOST_SKEW else "warning", "clock", says)


async def _orders(db: Database, settings: Settings) -> Finding:
    """How many of these orders would complete when their money comes."""
    fields = {"payment": 1}
    for path in (settings.orders.amount_path, settings.orders.currency_path):
        if path:
            fields[path.split(".")[0]] = 1
    orders = await db.orders.find({}, fields).sort("_id", -1).limit(SAMPLED_ORDERS).to_list()
    payments = [payment if isinstance(payment := order.get("payment"), dict) else {} for order in orders]
    no_id = sum(not _findable(payment) for payment in payments)
    no_amount = sum(None in _expected({**o, "payment": p}, settings) for o, p in zip(orders, payments, strict=True))
    foreign = sum(order_status(payment.get("status", "pending")) is None for payment in payments)
    says = (
        f"{len(orders)} sampled: {no_id} with neither payment.razorpayOrderId nor payment.paymentLinkId, {no_amount} "
    )
    says += f"without a readable amount and currency, {foreign} with a status of the shop's own"
    return Finding("warning" if no_id or no_amount or foreign else "ok", "orders", says)


def _findable(payment: dict[str, object]) -> bool:
    return any(isinstance(payment.get(name), str) for name in ("razorpayOrderId", "paymentLinkId"))


def _expected(order: dict[str, object], settings: Settings) -> tuple[int | None, str | None]:
    expected = expectation(order, settings.orders)
    return expected.amount, expected.currency


async def _watcher(db: Database, _settings: Settings) -> Finding:
    """Whether anybody reads what happens to orders."""
    stands = await place(db, await _now(db))
    if stands.leading:
        return Finding("ok", "watcher", f"leader of epoch {stands.epoch}, checkpoint {stands.checkpoint_age:.0f} s old")
    says = "nobody reads the change stream"
    if stands.checkpoint_age is None:
        return Finding("warning", "watcher", f"{says}: run `paylatch watch`")
    since = f"{says} for {stands.checkpoint_age:.0f} s"
    return Finding("warning", "watcher", f"{since}: does `paylatch watch` still run? See its log")


async def _events(db: Database, _settings: Settings) -> Finding:
    dead = await db.events.count_documents({"status": EventStatus.DEAD})
    parked = await db.events.count_documents({"status": EventStatus.PARKED})
    says = f"{dead} dead, {parked} waiting for their order"
    if not dead:
        return Finding("ok", "events", says)
    return Finding("warning", "events", f"{says}: see `paylatch events list --status dead`")


async def _messages(db: Database, _settings: Settings) -> Finding:
    held = await db.notification_log.count_documents({"status": RowStatus.HELD})
    dead = await db.notification_log.count_documents({"status": RowStatus.DEAD})
    says = f"{held} held, {dead} dead"
    if not held and not dead:
        return Finding("ok", "messages", says)
    return Finding("warning", "messages", f"{says}: see `paylatch notifications list --status held --status dead`")


async def _alerts(db: Database, _settings: Settings) -> Finding:
    kinds = await open_alerts(db)
    if not kinds:
        return Finding("ok", "open alerts", "none")
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return Finding("warning", "open alerts", f"{named}: see `paylatch alerts list`")


async def _now(db: Database) -> datetime:
    clock = ServerClock(db.client)
    await clock.run_once()
    return clock.now()


CHECKS: tuple[Check, ...] = (
    _indexes,
    _write_concern,
    _transactions,
    _clock,
    _orders,
    _watcher,
    _events,
    _messages,
    _alerts,
)
