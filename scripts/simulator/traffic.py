"""A seeded plan of webhook traffic with its ground truth, and the worker pool that sends it.

The same options give the same orders and the same bytes. The events of an order are woven among those of its
neighbours, some are then moved out of order, and copies and forgeries are put in between.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from scripts.simulator import builders
from scripts.simulator.builders import Json, digits, identifier
from scripts.simulator.checkout import Life, OrderTruth, Story, attempt, live
from scripts.simulator.links import LINK_STORIES, LinkStory, link_life
from scripts.simulator.sender import Answer, Delivery, Kind, Poster, deliver, sign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Placed = tuple[float, Delivery]
ALL_SOURCES: Mapping[str, Any] = MappingProxyType(
    {
        "paid_twice_share": 0.01,
        "link_share": 0.03,
        "link_parts_share": 0.02,
        "link_expired_share": 0.01,
        "link_late_share": 0.01,
    }
)
"""Shares that add payment links and second payments to the ordinary checkouts."""
STEP = 3.0
"""Places between the first events of two neighbouring orders."""


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """What to plan; shares are fractions of 1."""

    secrets: Mapping[str, str] = field(repr=False)
    """Label -> webhook secret."""
    current: str
    """Label of the secret that signs."""
    old: str | None = None
    """Label of the secret that still signs `old_share` of the events, as during a rotation."""
    old_share: float = 0.1
    orders: int = 200
    duplicates: float = 0.12
    """Events sent twice under their own id."""
    replays: float = 0.03
    """Captured bodies sent again under a fresh event id."""
    reorder: float = 0.2
    """Events moved by up to `window` places; with 0 every order's events arrive in the order of their making."""
    window: int = 30
    bad_signatures: float = 0.04
    """Forgeries, half of them changed bodies under an old signature, half signed with a wrong secret."""
    failed_share: float = 0.06
    """Orders whose only attempt fails."""
    failed_first_share: float = 0.17
    """Orders paid by a second attempt."""
    late_share: float = 0.05
    """Orders whose failed payment is authorised and captured later."""
    authorized_only_share: float = 0.04
    """Orders whose payment is authorised and never captured."""
    partial_refund_share: float = 0.03
    """Orders of which a part is refunded after the capture."""
    full_refund_share: float = 0.02
    """Orders that are refunded wholly, in two parts."""
    failed_refund_share: float = 0.02
    """Orders whose refund fails, so that they stay completed."""
    paid_twice_share: float = 0.0
    """Orders that are paid a second time; somebody must look at that."""
    link_share: float = 0.0
    """Orders paid by a payment link; `link_parts_share` by one that takes parts, in two of them."""
    link_parts_share: float = 0.0
    link_expired_share: float = 0.0
    """Orders whose link expires unpaid; `link_late_share` those whose money comes after that."""
    link_late_share: float = 0.0
    authorized_share: float = 0.9
    """Captured payments whose `payment.authorized` is sent as well."""
    lost_share: float = 0.0
    """Orders none of whose events are sent: only the provider's API knows what became of them."""
    seed: int = 1
    account_id: str | None = None
    started_at: int = 1_767_225_600
    """Unix second of the first order."""
    concurrency: int = 16
    rate: float | None = None
    """Deliveries per second, None for as fast as the answers come."""

    def __post_init__(self) -> None:
        """Refuse what cannot be planned."""
        shares = _shares(self).values()
        if self.current not in self.secrets or (self.old is not None and self.old not in self.secrets):
            raise ValueError("the current and the old label must name one of the secrets")
        least = min(self.duplicates, self.replays, self.reorder, self.bad_signatures, self.lost_share, *shares)
        if self.orders < 0 or sum(shares) > 1 or least < 0:
            raise ValueError(
                "orders and shares must not be negative, and the lives of orders must not exceed 1 together"
            )
        if self.concurrency < 1 or (self.rate is not None and self.rate <= 0):
            raise ValueError("concurrency and rate must be positive")


@dataclass(frozen=True, slots=True)
class Traffic:
    """A plan: the shop's orders, the deliveries in sending order, and the truth by the shop's `_id`."""

    options: TrafficOptions
    orders: list[Json]
    deliveries: list[Delivery]
    truth: dict[str, OrderTruth]
    lives: list[Life] = field(default_factory=list)
    """What the provider's API serves (`api.py`)."""
    lost: frozenset[str] = frozenset()
    """The shop's `_id`s of the orders none of whose events are sent."""

    @property
    def counts(self) -> Counter[Kind]:
        """Deliveries by kind."""
        return Counter(delivery.kind for delivery in self.deliveries)


@dataclass(slots=True)
class Report:
    """What came of a run; `sent` counts deliveries, `retried` the further requests they took."""

    sent: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    """Last answers by HTTP status, 0 for none."""
    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0
    """4xx."""
    retried: int = 0
    errors: int = 0
    """No answer, 5xx, or a 2xx without a verdict."""
    unexpected: list[str] = field(default_factory=list)
    """A line for each delivery that was not answered as its kind deserves."""

    def add(self, delivery: Delivery, answer: Answer) -> None:
        """Count one delivery by its last answer."""
        self.sent += 1
        self.retried += answer.tries - 1
        self.answers[answer.status] += 1
        refused = 400 <= answer.status < 500
        self.accepted += answer.verdict == "accepted"
        self.duplicates += answer.verdict == "duplicate"
        self.rejected += refused
        self.errors += answer.verdict is None and not refused
        as_deserved = answer.status == 400 if delivery.kind == "bad_signature" else answer.verdict is not None
        if not as_deserved:
            self.unexpected.append(f"{delivery.kind} {delivery.note}: {answer.error or answer.status}")


def plan(options: TrafficOptions) -> Traffic:
    """Orders, deliveries and truth of these options; the same options give the same bytes."""
    rng = random.Random(options.seed)
    account_id = options.account_id or identifier(rng, "acc_")
    lives = [_life(rng, options, n, account_id, story) for n, story in enumerate(_stories(rng, options))]
    lost = _lost(rng, options, lives)
    sent = [life for life in lives if life.order["_id"] not in lost]
    firsts = _moved(rng, options, _woven(rng, options, sent))
    placed = [*firsts, *_copies(rng, options, firsts), *_forgeries(rng, options, account_id, lives, firsts)]
    placed.sort(key=lambda place: place[0])
    return Traffic(
        options=options,
        orders=[life.order for life in lives],
        deliveries=[delivery for _, delivery in placed],
        truth={life.order["_id"]: life.truth for life in lives},
        lives=lives,
        lost=lost,
    )


async def run(
    traffic: Traffic,
    sender: Poster,
    progress: Callable[[Delivery, Answer], None] | None = None,
    *,
    concurrency: int | None = None,
    rate: float | None = None,
    tries: int = 4,
    backoff: float = 0.2,
) -> Report:
    """Send the plan through a bounded pool of workers and count the answers.

    Workers take deliveries in the plan's order, and a delivery waits for the one before it in its lane: the order in
    which an order's events arrive is the plan's, however many workers there are. `concurrency` and `rate` default to
    the options'.
    """
    report, pace = Report(), _Pace(rate or traffic.options.rate)
    lanes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def send(delivery: Delivery) -> None:
        await pace.turn()
        answer = await deliver(sender, delivery, tries=tries, backoff=backoff)
        report.add(delivery, answer)
        if progress:
            progress(delivery, answer)

    async def work(pending: Iterator[Delivery]) -> None:
        for delivery in pending:  # one iterator for all workers; no await between taking and queueing for the lane
            async with lanes[delivery.lane] if delivery.lane else asyncio.Lock():
                await send(delivery)

    pending = iter(traffic.deliveries)
    async with asyncio.TaskGroup() as workers:
        for _ in range(concurrency or traffic.options.concurrency):
            workers.create_task(work(pending))
    return report


class _Pace:
    """Lets one delivery through every 1/rate seconds."""

    def __init__(self, rate: float | None) -> None:
        self._gap = 1 / rate if rate else 0.0
        self._next = 0.0

    async def turn(self) -> None:
        """Wait for the next free moment."""
        if self._gap:
            now = asyncio.get_running_loop().time()
            due = max(now, self._next)
            self._next = due + self._gap
            await asyncio.sleep(due - now)


def _life(rng: random.Random, options: TrafficOptions, n: int, account_id: str, story: Story | LinkStory) -> Life:
    number, placed_at = f"PL-{n + 1:05d}-{digits(rng, 8)}", options.started_at + n // 10
    if story in LINK_STORIES:
        return link_life(rng, number, placed_at, account_id, story)
    return live(rng, number, placed_at, account_id, cast("Story", story), authorized=options.authorized_share)


def _shares(options: TrafficOptions) -> dict[Story | LinkStory, float]:
    """How much of the orders each story is; all others are simply paid."""
    return {
        "failed_first": options.failed_first_share,
        "failed": options.failed_share,
        "late": options.late_share,
        "authorized_only": options.authorized_only_share,
        "partial_refund": options.partial_refund_share,
        "full_refund": options.full_refund_share,
        "failed_refund": options.failed_refund_share,
        "paid_twice": options.paid_twice_share,
        "link": options.link_share,
        "link_parts": options.link_parts_share,
        "link_expired": options.link_expired_share,
        "link_late": options.link_late_share,
    }


def _stories(rng: random.Random, options: TrafficOptions) -> list[Story | LinkStory]:
    shares = _shares(options).items()
    stories: list[Story | LinkStory] = [story for story, share in shares for _ in range(round(share * options.orders))][
        : options.orders
    ]
    stories += ["paid"] * (options.orders - len(stories))
    rng.shuffle(stories)
    return stories


def _lost(rng: random.Random, options: TrafficOptions, lives: list[Life]) -> frozenset[str]:
    """Some of those of which the API tells all: it shows a payment's last status, not that it had failed before."""
    whole = [life for life in lives if "paymentLinkId" not in life.order["payment"]]  # a link's end is told by it only
    told = [life.order["_id"] for life in whole if life.truth.captured not in life.truth.failed]
    return frozenset(_sample(rng, told, options.lost_share))


def _woven(rng: random.Random, options: TrafficOptions, lives: list[Life]) -> list[Placed]:
    placed: list[Placed] = []
    for n, life in enumerate(lives):
        place = n * STEP
        for body in life.bodies:
            secret = options.secrets[options.current]
            if options.old is not None and rng.random() < options.old_share:
                secret = options.secrets[options.old]
            about = body["payload"].get("payment") or body["payload"]["payment_link"]
            lane, note = life.provider_order["id"], f"{body['event']} {about['entity']['id']}"
            placed.append((place, Delivery(builders.encode(body), identifier(rng), secret, lane=lane, note=note)))
            place += rng.uniform(2, 8)
    return placed


def _moved(rng: random.Random, options: TrafficOptions, placed: list[Placed]) -> list[Placed]:
    chosen = set(_sample(rng, range(len(placed)), options.reorder))
    return [
        (place + rng.uniform(-options.window, options.window) if n in chosen else place, delivery)
        for n, (place, delivery) in enumerate(placed)
    ]


def _copies(rng: random.Random, options: TrafficOptions, firsts: list[Placed]) -> Iterator[Placed]:
    for place, first in _sample(rng, firsts, options.duplicates):
        later = place + rng.uniform(0.1, options.window)
        yield later, Delivery(first.raw, first.event_id, first.secret, kind="duplicate", note=first.note)
    for place, first in _sample(rng, firsts, options.replays):
        later = place + rng.uniform(0.1, options.window)
        yield later, Delivery(first.raw, identifier(rng), first.secret, kind="replay", note=first.note)


def _forgeries(
    rng: random.Random, options: TrafficOptions, account_id: str, lives: list[Life], firsts: list[Placed]
) -> Iterator[Placed]:
    for n, (place, first) in enumerate(_sample(rng, firsts, options.bad_signatures)):
        if n % 2:
            raw, signature = tampered(first.raw), sign(first.secret, first.raw)
            note = f"changed amount of {first.note}"
        else:
            life = rng.choice(lives)
            invented = attempt(rng, life.order, life.provider_order, options.started_at)
            raw = builders.encode(builders.payment_captured(invented, options.started_at, account_id))
            signature = sign(identifier(rng), raw)
            note = f"invented capture {invented['id']}"
        later = place + rng.uniform(0.1, options.window)
        yield later, Delivery(raw, identifier(rng), first.secret, signature, kind="bad_signature", note=note)


def tampered(raw: bytes) -> bytes:
    """The same event with the first amount grown by a leading digit: still valid JSON, no longer what was signed."""
    return raw.replace(b'"amount":', b'"amount":1', 1)


def _sample(rng: random.Random, population: Any, share: float) -> list[Any]:  # noqa: ANN401 - any sequence
    return rng.sample(population, min(len(population), round(share * len(population))))
