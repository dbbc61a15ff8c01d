"""`paylatch simulate`: signed traffic as Razorpay would send it, copies and forgeries included, and a verdict."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from pymongo.errors import BulkWriteError, PyMongoError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from models.database import DUPLICATE_KEY, database
from models.errors import Refused, SettingsError, Unavailable, WrongArgument
from models.settings import Settings, load_settings, require_webhook_secrets
from scripts.options import AsJson, Count, Flag, Positive, Rate, Seconds, Share
from scripts.simulator.attacks import AttackResult, Target, run_attacks
from scripts.simulator.builders import identifier
from scripts.simulator.sender import Sender, is_loopback
from scripts.simulator.shop import MongoShop
from scripts.simulator.traffic import ALL_SOURCES, Report, Traffic, TrafficOptions, plan, run

POLL = 0.2


@dataclass(frozen=True, slots=True)
class Trial:
    """What one call of the command does; `settle` in seconds."""

    url: str
    traffic: Traffic
    attacks: bool
    insert_orders: bool
    settle: float
    account_id: str


@dataclass(slots=True)
class Outcome:
    """What came of it."""

    report: Report = field(default_factory=Report)
    differing: list[str] | None = None
    """Orders that did not end as the plan says; None when that was not looked at."""
    attacks: list[AttackResult] = field(default_factory=list)


async def simulate(  # noqa: PLR0913 - each is an option of the command
    *,
    url: str = "http://127.0.0.1:8080/webhooks/razorpay",
    orders: Count = 50,
    duplicates: Share = 0.12,
    replays: Share = 0.03,
    reorder: Share = 0.2,
    bad_signatures: Share = 0.04,
    concurrency: Positive = 16,
    rate: Rate | None = None,
    seed: int = 1,
    started_at: int | None = None,
    rotate: Flag = False,
    attacks: Flag = False,
    insert_orders: bool = True,
    settle: Seconds = 60.0,
    allow_remote: Flag = False,
    as_json: AsJson = False,
) -> int:
    """Send signed payment events as Razorpay would, and check every answer and what became of every order.

    Exit code 0 when everything was as expected, else 1.

    Example: `paylatch simulate --orders 200 --seed 7 --attacks`

    Parameters
    ----------
    url
        The webhook address; anything but this very host is refused without `--allow-remote`.
    orders
        Orders to live through; about 3.7 deliveries each.
    duplicates
        Share of events sent twice under their own id.
    replays
        Share of events whose bytes are sent again under a fresh id.
    reorder
        Share of events moved out of order.
    bad_signatures
        Share of forgeries; each must be answered 400.
    concurrency
        Deliveries under way at a time.
    rate
        Deliveries per second; without it as fast as the answers come.
    seed
        The same seed makes the same orders, ids and order of sending.
    started_at
        Unix second at which the first order is placed; by default a little before now.
    rotate
        Sign a tenth of the events with the second webhook secret of the settings, as during a rotation.
    attacks
        Run the ten attacks afterwards.
    insert_orders
        Insert the pending orders first, as the shop does before checkout.
    settle
        Seconds to wait until every inserted order has its final status; 0 does not look.
    allow_remote
        Send to another host.
    as_json
        One JSON object instead of tables.
    """
    _refuse_remote(url, allowed=allow_remote)
    settings = load_settings()
    account_id = _account_id(settings, seed)
    options = TrafficOptions(
        **_secrets(settings, rotate=rotate),
        **ALL_SOURCES,
        orders=orders,
        duplicates=duplicates,
        replays=replays,
        reorder=reorder,
        bad_signatures=bad_signatures,
        concurrency=concurrency,
        rate=rate,
        seed=seed,
        started_at=started_at if started_at is not None else int(time.time()) - orders // 10 - 120,
        account_id=account_id,
    )
    trial = Trial(url, plan(options), attacks, insert_orders, settle, account_id)
    outcome = await _carry_out(trial, settings, quiet=as_json)
    problems = _problems(trial, outcome)
    _print_json(trial, outcome, problems) if as_json else _print_tables(trial, outcome, problems)
    return 1 if problems else 0


async def _carry_out(trial: Trial, settings: Settings, *, quiet: bool) -> Outcome:
    await _reach(trial.url)
    try:
        async with database(settings) as db, Sender(trial.url) as sender:
            shop = MongoShop(db, random.Random())  # noqa: S311 - fresh ids, no secrets
            return await _send(trial, shop, sender, quiet=quiet)
    except PyMongoError as error:  # its text may quote documents
        raise Unavailable(
            f"the database of PAYLATCH_MONGODB__URI cannot be used ({type(error).__name__}): is it running, and is it "
            "the one the webhook process uses?"
        ) from None


async def _send(trial: Trial, shop: MongoShop, sender: Sender, *, quiet: bool) -> Outcome:
    outcome = Outcome()
    if trial.insert_orders:
        await _insert(trial, shop)
    with _progress("sending", len(trial.traffic.deliveries), quiet=quiet) as advance:
        outcome.report = await run(trial.traffic, sender, lambda *_: advance())
    if trial.insert_orders and trial.settle:
        outcome.differing = await _settled(trial, shop)
    if trial.attacks:
        secret = trial.traffic.options.secrets[trial.traffic.options.current]
        target = Target(sender, shop, secret, trial.account_id, random.Random())  # noqa: S311 - fresh ids, not secrets
        with _progress("attacking", 10, quiet=quiet) as advance:
            outcome.attacks = await run_attacks(target, lambda _: advance())
    return outcome


async def _insert(trial: Trial, shop: MongoShop) -> None:
    try:
        await shop.insert(trial.traffic.orders)
    except BulkWriteError as error:
        if any(problem.get("code") != DUPLICATE_KEY for problem in error.details.get("writeErrors", [{}])):
            raise
        raise Refused(
            f"orders of seed {trial.traffic.options.seed} are in this database already: choose another --seed, or send "
            "the same events again with --no-insert-orders"
        ) from None


async def _settled(trial: Trial, shop: MongoShop) -> list[str]:
    differing = await shop.differing(trial.traffic.truth)
    for _ in range(int(trial.settle / POLL)):
        if not differing:
            break
        await asyncio.sleep(POLL)
        differing = await shop.differing({order: trial.traffic.truth[order] for order in differing})
    return differing


def _problems(trial: Trial, outcome: Outcome) -> list[str]:
    """What was not as expected, a sentence each.

    With fresh orders each event is accepted once. A request that was sent again because its answer got lost may find
    its own event there, so that many may be duplicates instead.
    """
    report, counts = outcome.report, trial.traffic.counts
    problems = [f"not answered as expected: {line}" for line in report.unexpected[:5]]
    if len(report.unexpected) > 5:
        problems.append(f"and {len(report.unexpected) - 5} more answers that were not expected")
    if trial.insert_orders and not counts["first"] - report.retried <= report.accepted <= counts["first"]:
        problems.append(f"{counts['first']} different events were sent, but {report.accepted} were accepted")
    if outcome.differing:
        named = ", ".join(outcome.differing[:3])
        problems.append(
            f"{len(outcome.differing)} orders did not end as planned within {trial.settle:g} s, such as {named}"
        )
    problems += [f"attack did not hold: {result.name}" for result in outcome.attacks if not result.holds]
    return problems


def _refuse_remote(url: str, *, allowed: bool) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, an unclosed bracket
        usable = False
    if not usable:
        raise WrongArgument(
            "the url must be an absolute http(s) address, such as http://127.0.0.1:8080/webhooks/razorpay"
        )
    if not allowed and not is_loopback(url):
        host = urlsplit(url).hostname
        raise Refused(f"{host} is not this host: simulated payments go elsewhere only with --allow-remote")


async def _reach(url: str) -> None:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(2):
            _, writer = await asyncio.open_connection(parts.hostname, port)
            writer.close()
            await writer.wait_closed()
    except (TimeoutError, OSError):
        raise Unavailable(f"nothing listens on {parts.hostname}:{port}: start `paylatch serve` first") from None


def _secrets(settings: Settings, *, rotate: bool) -> dict[str, Any]:
    """The signing part of the traffic's options: the first secret is the current one, the second the old one."""
    require_webhook_secrets(settings)
    secrets = {label: secret.get_secret_value() for label, secret in settings.razorpay.webhook_secrets.items()}
    labels = list(secrets)
    if rotate and len(labels) < 2:
        raise SettingsError("--rotate needs two secrets in PAYLATCH_RAZORPAY__WEBHOOK_SECRETS, the current one first")
    return {"secrets": secrets, "current": labels[0], "old": labels[1] if rotate else None}


def _account_id(settings: Settings, seed: int) -> str:
    known = settings.razorpay.account_ids
    return known[0] if known else identifier(random.Random(seed), "acc_")  # noqa: S311 - the same seed, the same traffic


@contextmanager
def _progress(what: str, total: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def _print_tables(trial: Trial, outcome: Outcome, problems: list[str]) -> None:
    console = Console(markup=False)
    report, table = outcome.report, Table(title=f"{len(trial.traffic.orders)} orders to {trial.url}")
    columns = ("sent", "accepted", "duplicates", "rejected", "retried", "errors")
    for name in columns:
        table.add_column(name, justify="right")
    table.add_row(*(str(getattr(report, name)) for name in columns))
    console.print(table)
    if outcome.differing is not None:
        ended = len(trial.traffic.truth) - len(outcome.differing)
        console.print(f"{ended} of {len(trial.traffic.truth)} orders ended as planned")
    if outcome.attacks:
        console.print(_attack_table(outcome.attacks))
    for problem in problems:
        console.print(problem, soft_wrap=True)


def _attack_table(results: list[AttackResult]) -> Table:
    table = Table("attack", "expected", "got", "holds", title="Attacks", show_lines=True)
    for result in results:
        got = "as expected" if result.holds else result.got
        table.add_row(result.name, result.expected, got, "yes" if result.holds else "NO")
    return table


def _print_json(trial: Trial, outcome: Outcome, problems: list[str]) -> None:
    options = trial.traffic.options
    said = {
        "url": trial.url,
        "seed": options.seed,
        "startedAt": options.started_at,
        "planned": dict(trial.traffic.counts),
        "report": {each.name: getattr(outcome.report, each.name) for each in fields(outcome.report)},
        "ordersDiffering": outcome.differing,
        "attacks": [asdict(result) for result in outcome.attacks],
        "problems": problems,
    }
    print(json.dumps(said, ensure_ascii=False))
