"""`paylatch doctor`: is everything in place? One line a check, exit 1 when one of them is wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

import aiosmtplib
import pymongo
from pymongo.errors import OperationFailure

from models.clock import ServerClock
from models.database import Database, database, require_replica_set
from models.errors import PayLatchError, SettingsError
from models.indexes import find_problems
from models.settings import Settings, load_settings, require_webhook_secrets
from models.states import order_status
from scripts.output import output
from webhook.orders import expectation

SAMPLED_ORDERS = 100
LONGEST_TRANSACTION = 60
MOST_SKEW = 2.0
SMTP_TIMEOUT = 5.0
CHECK_TIMEOUT = 5.0

Grade = Literal["ok", "warning", "WRONG"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line."""

    grade: Grade
    what: str
    says: str


class Check(Protocol):
    """One look at the database."""

    __name__: str

    async def __call__(self, db: Database, settings: Settings, /) -> Finding:
        """What it found."""
        ...


async def doctor() -> int:
    """Check settings, database, indexes, secrets, mail, clock and a sample of the orders.

    Example: `paylatch doctor`
    """
    console, wrong = output(), 0
    async for finding in _examine():
        wrong += finding.grade == "WRONG"
        console.print(f"{finding.grade:<8}{finding.what:<22}{finding.says}", markup=False, highlight=False)
    return 1 if wrong else 0


async def _examine() -> AsyncIterator[Finding]:
    try:
        settings = load_settings()
    except SettingsError as error:
        yield Finding("WRONG", "settings", str(error))
        return
    yield Finding("ok", "settings", f"readable; Razorpay mode {settings.razorpay.effective_mode}")
    yield _secrets(settings)
    async with database(settings) as db:
        try:
            await require_replica_set(db)
        except PayLatchError as error:
            yield Finding("WRONG", "database", str(error))
        else:
            yield Finding("ok", "database", "answers, and is a replica set")
            checks: tuple[Check, ...] = (_indexes, _write_concern, _transactions, _clock, _orders)
            for check in checks:
                yield await _guarded(check, db, settings)
    yield await _mail(settings)


async def _guarded(check: Check, db: Database, settings: Settings) -> Finding:
    """A check that the database refuses is a finding too."""
    try:
        with pymongo.timeout(CHECK_TIMEOUT):
            return await check(db, settings)
    except Exception as error:  # noqa: BLE001 - a check that fails is a finding, never a crash
        name = check.__name__.strip("_").replace("_", " ")
        return Finding("WRONG", name, f"it could not be done ({type(error).__name__})")


def _secrets(settings: Settings) -> Finding:
    try:
        require_webhook_secrets(settings)
    except SettingsError as error:
        return Finding("WRONG", "webhook secrets", str(error))
    labels = ", ".join(settings.razorpay.webhook_secrets)
    return Finding("ok", "webhook secrets", f"{len(settings.razorpay.webhook_secrets)} live: {labels}")


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
    clock = ServerClock(db.client)
    await clock.run_once()
    try:
        skew = abs(clock.now().timestamp() - time.time())
    except PayLatchError as error:
        return Finding("WRONG", "clock", str(error))
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
    no_id = sum(not isinstance(payment.get("razorpayOrderId"), str) for payment in payments)
    no_amount = sum(None in _expected({**o, "payment": p}, settings) for o, p in zip(orders, payments, strict=True))
    foreign = sum(order_status(payment.get("status", "pending")) is None for payment in payments)
    says = f"{len(orders)} sampled: {no_id} without payment.razorpayOrderId, {no_amount} without a readable amount and "
    says += f"currency, {foreign} with a status of the shop's own"
    return Finding("warning" if no_id or no_amount or foreign else "ok", "orders", says)


def _expected(order: dict[str, object], settings: Settings) -> tuple[int | None, str | None]:
    expected = expectation(order, settings.orders)
    return expected.amount, expected.currency


async def _mail(settings: Settings) -> Finding:
    """Connect and greet; nothing is sent."""
    email = settings.email
    if email.host is None:
        return Finding("warning", "mail", "PAYLATCH_EMAIL__HOST is not set: the watcher needs it while mail is routed")
    client = aiosmtplib.SMTP(
        hostname=email.host,
        port=email.port,
        timeout=SMTP_TIMEOUT,
        use_tls=email.tls == "tls",
        start_tls={"starttls": True, "auto": None}.get(email.tls, False),
    )
    try:
        async with asyncio.timeout(2 * SMTP_TIMEOUT), client:
            if email.username and email.password:
                await client.login(email.username, email.password.get_secret_value())
    except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
        return Finding("WRONG", "mail", f"{email.host}:{email.port} cannot be used ({type(error).__name__})")
    return Finding("ok", "mail", f"{email.host}:{email.port} takes connections")
