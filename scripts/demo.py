"""`paylatch demo`: the main job on a fresh machine, with database, both daemons and a mail server started for it."""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from models.database import Database, database
from models.settings import Settings
from models.states import EventStatus, RowStatus
from scripts.demo_callbacks import Buyers
from scripts.demo_reconcile import repaired
from scripts.embedded import free_port
from scripts.options import Positive, Rate
from scripts.simulator.checkout import OrderTruth
from scripts.simulator.sender import Sender
from scripts.simulator.shop import MongoShop
from scripts.simulator.traffic import ALL_SOURCES, Report, Traffic, TrafficOptions, plan, run
from scripts.sink import Sink, mail_sink
from scripts.stack import KEY_SECRET, SECRETS, Stack, local_stack, settings_of

GIVES_UP_AFTER = 180.0
LOST_SHARE = 0.04
_UNFINISHED_EVENTS = (EventStatus.RECEIVED, EventStatus.PROCESSING, EventStatus.FAILED, EventStatus.PARKED)
_UNFINISHED_ROWS = (RowStatus.PENDING, RowStatus.SENDING, RowStatus.RETRY, RowStatus.UNKNOWN)
_DUPLICATES = re.compile(r'^paylatch_webhook_duplicates_total\{kind="(\w+)"\} ([0-9.]+)$', re.MULTILINE)


@dataclass
class Result:
    """What the demo saw, for the table, and what was wrong with it."""

    traffic: Traffic
    report: Report = field(default_factory=Report)
    duplicates: dict[str, int] = field(default_factory=dict)
    orders: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    captures: int = 0
    refunds: int = 0
    fulfilments: int = 0
    mails: int = 0
    reviews: int = 0
    buyers: Buyers = field(default_factory=Buyers)
    seconds_to_mail: list[float] = field(default_factory=list)
    took: float = 0.0
    repaired: int | None = None
    """What reconciliation brought; None before it ran."""
    problems: list[str] = field(default_factory=list)


async def demo(*, orders: Positive = 200, seed: int = 1, rate: Rate = 14.0) -> int:
    """Run the main job end to end and check that nothing is missing and nothing doubled.

    Starts the embedded database, the webhook process, the watcher and a local mail server in a temporary folder, sends
    signed events with duplicates, replays, forgeries and reordering, leaves some out altogether, which reconciliation
    with a local fake of the provider's API then finds, and compares what should be with what is.

    Example: `paylatch demo --orders 200`

    Parameters
    ----------
    orders
        Pending orders; about 3.7 deliveries each.
    seed
        The same seed sends the same traffic.
    rate
        Webhooks per second; far more than the embedded database can take only makes a queue.
    """
    console, started = Console(), time.monotonic()
    try:
        async with asyncio.timeout(GIVES_UP_AFTER):
            result = await _demo(orders, seed, rate)
    except TimeoutError:
        console.print(f"gave up after {GIVES_UP_AFTER:g} s: the stack did not finish its work in time")
        return 1
    result.took = time.monotonic() - started
    console.print(_table(result))
    for problem in result.problems:
        console.print(f"WRONG  {problem}", markup=False, style="red")
    if not result.problems:
        console.print("Nothing is missing and nothing was doubled.", style="bold green")
    return 1 if result.problems else 0


async def _demo(orders: int, seed: int, rate: float) -> Result:
    mail_port, started_at = free_port(), int(time.time()) - orders // 10 - 120
    options = TrafficOptions(
        secrets=SECRETS,
        current="new",
        old="old",
        orders=orders,
        seed=seed,
        started_at=started_at,
        rate=rate,
        **ALL_SOURCES,
        lost_share=LOST_SHARE,
    )
    result = Result(plan(options))
    with tempfile.TemporaryDirectory(prefix="paylatch-demo-") as folder, mail_sink(mail_port) as sink:
        async with local_stack(Path(folder), mail_port) as stack:
            serve, _ = await asyncio.gather(stack.start("serve"), stack.start("watch"))
            address = f"http://127.0.0.1:{serve.ports['port']}"
            async with database(settings_of(stack.environment)) as db:
                await _play(result, db, address, settings_of(stack.environment))
                await _look(result, db, sink)
            result.duplicates = await _duplicates(serve.ports["private_port"])
            await _stop(result, stack)
    _check(result, sink)
    return result


async def _play(result: Result, db: Database, address: str, settings: Settings) -> None:
    """Insert the orders, send everything, let buyers come back, wait until nobody has work left; with live progress."""
    shop = MongoShop(db, _ids())
    columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    total, deliveries, lost = len(result.traffic.orders), result.traffic.deliveries, result.traffic.lost
    with progress:
        sent = progress.add_task("webhooks sent", total=len(deliveries))
        done = progress.add_task("orders as they should be", total=total)
        told = progress.add_task("notifications delivered", total=None)
        await shop.insert(result.traffic.orders)
        async with Sender(f"{address}/webhooks/razorpay") as sender, asyncio.TaskGroup() as group:
            sending = group.create_task(run(result.traffic, sender, lambda *_: progress.advance(sent)))
            buying = group.create_task(result.buyers.come_back(address, KEY_SECRET, result.traffic))
            while True:
                differing = await shop.differing(result.traffic.truth)
                owed = await db.notification_log.count_documents({})
                open_rows = await db.notification_log.count_documents({"status": {"$in": list(_UNFINISHED_ROWS)}})
                progress.update(done, completed=total - len(differing))
                progress.update(told, completed=owed - open_rows, total=owed or None)
                arrived = sending.done() and buying.done()
                if arrived and result.repaired is None and set(differing) <= lost and await _quiet(db):
                    result.repaired = await repaired(settings, result.traffic)
                elif arrived and not differing and not open_rows and await _quiet(db):
                    break
                await asyncio.sleep(0.2)
            result.report = await sending


def _ids() -> random.Random:
    return random.Random()  # noqa: S311 - ids of orders, no secrets


async def _quiet(db: Database) -> bool:
    """Whether every event is finished and the watcher has seen the last change (it had two checkpoints' time)."""
    if await db.events.count_documents({"status": {"$in": list(_UNFINISHED_EVENTS)}}):
        return False
    before = await db.notification_log.count_documents({})
    await asyncio.sleep(1.5)
    return before == await db.notification_log.count_documents({})


async def _look(result: Result, db: Database, sink: Sink) -> None:
    """Count what is there now."""
    result.orders = Counter([order["payment"]["status"] async for order in db.orders.find({}, {"payment.status": 1})])
    result.captures = await db.ledger.count_documents({"entryType": "capture"})
    result.refunds = await db.ledger.count_documents({"entryType": "refund"})
    result.reviews = await db.orders.count_documents({"payment.review.state": "open"})
    result.fulfilments = await db.fulfilments.count_documents({})
    result.rows = Counter([row["status"] async for row in db.notification_log.find({}, {"status": 1})])
    result.mails = len(sink.mails)
    result.problems += await result.buyers.problems(db)
    await _check_ground_truth(result, db)
    result.seconds_to_mail = await _seconds_to_mail(db)


async def _seconds_to_mail(db: Database) -> list[float]:
    """From the arrival of the webhook that completed an order to the customer's mail, by the server's clock."""
    received = {e["eventId"]: e["receivedAt"] async for e in db.events.find({}, {"eventId": 1, "receivedAt": 1})}
    caused: dict[object, str] = {}
    async for order in db.orders.find({}, {"history": 1}):
        for entry in order.get("history") or ():
            if entry["fact"] == "payment_completed":
                caused[order["_id"]] = entry["cause"]["eventId"]
    wanted = {"notice": "payment_completed", "channel": "email", "status": RowStatus.SENT}
    return [
        (row["sentAt"] - received[caused[row["orderId"]]]).total_seconds()
        async for row in db.notification_log.find(wanted, {"orderId": 1, "sentAt": 1})
    ]


async def _check_ground_truth(result: Result, db: Database) -> None:
    """Hold ledger, fulfilments and notification rows against the traffic's own truth."""
    truth = result.traffic.truth
    paid = {order_id for order_id, known in truth.items() if known.captured}
    ledger = {entry["_id"] async for entry in db.ledger.find({}, {"_id": 1})}
    moved = {entry for known in truth.values() for entry in known.ledger}
    result.problems += _difference("ledger entry", moved, ledger)
    fulfilled = {entry["_id"] async for entry in db.fulfilments.find({}, {"_id": 1})}
    result.problems += _difference("fulfilment", paid, fulfilled)
    owed = {key for order_id, known in truth.items() for key in _owed(order_id, known)}
    rows = {row["key"]: row["status"] async for row in db.notification_log.find({}, {"key": 1, "status": 1})}
    result.problems += _difference("notification", owed, set(rows))
    result.problems += [
        f"notification {key} ended as {status}"
        for key, status in rows.items()
        if status != RowStatus.SENT and not (status == RowStatus.SUPPRESSED and ":payment_failed:" in key)
    ]


def _owed(order_id: str, truth: OrderTruth) -> Iterator[str]:
    """The keys of the rows that the default routes make of what is true of an order."""
    told: dict[str, tuple[str, ...]] = {"payment_completed": _COMPLETED_TO} if truth.captured else {}
    told |= {f"payment_failed:{payment}": _FAILED_TO for payment in truth.failed}
    told |= {f"refund_processed:{refund}": _REFUND_TO for refund in truth.refunds_processed}
    told |= {f"refund_failed:{refund}": _REFUND_TO for refund in truth.refunds_failed}
    told |= {f"payment_review:{reason}:{ref}": _REVIEW_TO for reason, ref in truth.reviews}
    return (f"order:{order_id}:{notice}:{to}" for notice, recipients in told.items() for to in recipients)


_COMPLETED_TO = ("email:customer", "inapp:admin", "inapp:user")
_FAILED_TO = ("email:customer",)
_REFUND_TO = ("email:customer", "inapp:admin")
_REVIEW_TO = ("email:admin", "inapp:admin")


def _difference(what: str, expected: set[Any], found: set[Any]) -> list[str]:
    missing = [f"{what} {key} is missing" for key in sorted(expected - found)]
    return missing + [f"{what} {key} should not exist" for key in sorted(found - expected)]


async def _duplicates(private_port: int) -> dict[str, int]:
    """Duplicates by kind, from the process's own metrics."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{private_port}/metrics") as response,
    ):
        return {kind: int(float(count)) for kind, count in _DUPLICATES.findall(await response.text())}


async def _stop(result: Result, stack: Stack) -> None:
    """SIGTERM must drain and end with 0."""
    await stack.stop()
    result.problems += [
        f"`paylatch {daemon.command}` ended with {daemon.process.returncode}"
        for daemon in stack.daemons
        if daemon.process.returncode != 0
    ]


def _check(result: Result, sink: Sink) -> None:
    """Answers as expected, and each mail exactly once."""
    counts = result.traffic.counts
    result.problems += result.report.unexpected[:5]
    if result.report.accepted != counts["first"]:
        result.problems.append(f"{counts['first']} different events were sent, {result.report.accepted} were accepted")
    if result.report.rejected != counts["bad_signature"]:
        result.problems.append(f"{counts['bad_signature']} forgeries were sent, {result.report.rejected} were refused")
    ids = Counter(mail.message_id for mail in sink.mails)
    result.problems += [f"mail {message_id} came {times} times" for message_id, times in ids.items() if times > 1]
    wrong = [mail for mail in sink.mails if len(mail.recipients) != 1]
    result.problems += [f"mail {mail.message_id} has {len(mail.recipients)} recipients" for mail in wrong]


def _table(result: Result) -> RenderableType:
    report, counts = result.report, result.traffic.counts
    table = Table("what", "count", title="PayLatch demo", title_justify="left")
    table.columns[1].justify = "right"
    owed = sum(result.rows.values())
    rows: list[tuple[str, object]] = [
        ("webhooks sent", report.sent),
        ("accepted (different events)", report.accepted),
        ("duplicates: redelivery", result.duplicates.get("redelivery", 0)),
        ("duplicates: replay under a fresh id", result.duplicates.get("suspected_replay", 0)),
        (f"rejected (of {counts['bad_signature']} forgeries)", report.rejected),
        ("browsers that came back with a true signature", len(result.buyers.orders)),
        ("callbacks refused (one forged for each of them)", result.buyers.answers["refused"]),
        ("orders whose webhooks were all lost", len(result.traffic.lost)),
        ("what reconciliation brought of them", result.repaired),
        *((f"orders {status}", count) for status, count in sorted(result.orders.items())),
        ("captures booked (one per captured payment)", result.captures),
        ("refunds booked (one per processed refund)", result.refunds),
        ("fulfilments (one per paid order)", result.fulfilments),
        ("orders in review (paid twice, or after their link expired)", result.reviews),
        ("notifications owed", owed),
        ("notifications delivered", result.rows.get(RowStatus.SENT, 0)),
        ("notifications suppressed (paid meanwhile)", result.rows.get(RowStatus.SUPPRESSED, 0)),
        ("mails that arrived", result.mails),
    ]
    if result.seconds_to_mail:
        rows += [
            ("webhook to mail, median", f"{statistics.median(result.seconds_to_mail):.2f} s"),
            ("webhook to mail, slowest", f"{max(result.seconds_to_mail):.2f} s"),
        ]
    rows.append(("whole run", f"{result.took:.1f} s"))
    for name, value in rows:
        table.add_row(name, str(value))
    return table
