"""Ten named attacks on exactly-once: what is sent, what must be answered, and what the database must then hold.

An attack is a small function that returns one sentence of what it got; it holds when the table expects that sentence.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scripts.simulator import builders
from scripts.simulator.builders import Json, identifier
from scripts.simulator.sender import Answer, Delivery, Kind, Poster, sign
from scripts.simulator.shop import OrderState, OrderUnderTest, Shop
from scripts.simulator.traffic import tampered

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

SETTLED = frozenset({"completed", "ignored", "dead"})
POLL = 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """Where the attacks go, and the secret that a true provider would sign with."""

    sender: Poster
    shop: Shop
    secret: str = field(repr=False)
    account_id: str
    rng: random.Random
    deadline: float = 10.0
    """Seconds an accepted event may take until it is settled."""

    def delivery(self, raw: bytes, *, signature: str | None = None, event_id: str | None = None) -> Delivery:
        """These bytes under a fresh event id and a true signature, unless others are given."""
        kind: Kind = "first" if signature is None else "bad_signature"
        return Delivery(raw, event_id or identifier(self.rng), self.secret, signature, kind=kind)

    def captured(self, order: OrderUnderTest) -> bytes:
        """A `payment.captured` of the full amount by a new payment."""
        return builders.encode(builders.payment_captured(self._payment(order), int(time.time()), self.account_id))

    def failed(self, order: OrderUnderTest) -> bytes:
        """A `payment.failed` of another attempt."""
        return builders.encode(builders.payment_failed(self._payment(order), int(time.time()), self.account_id))

    def _payment(self, order: OrderUnderTest) -> Json:
        at = int(time.time()) - 5
        return builders.payment(self.rng, order_id=order.provider_order_id, amount=order.amount, created_at=at)

    async def verdict(self, delivery: Delivery) -> str:
        """Send once; the answer in a word."""
        return _word(await self.sender.post(delivery))

    async def settled(self, order: OrderUnderTest, raw: bytes) -> str:
        """Wait until every stored event with these bytes is settled; what the database then holds, as a sentence.

        None stored is settled too: an answered event is stored before its answer or never.
        """
        rows = await self._poll(raw, SETTLED.issuperset)
        return f"{await self.shop.outcome(order)}, stored {len(rows)}"

    async def untouched(self, order: OrderUnderTest, raw: bytes) -> str:
        """What the database holds after a refusal; there is nothing to wait for."""
        rows = await self.shop.rows(raw)
        return f"{await self.shop.outcome(order)}, stored {len(rows)}"

    async def stored(self, raw: bytes) -> None:
        """Wait until these bytes are stored, in whatever status."""
        await self._poll(raw, bool)

    async def _poll(self, raw: bytes, done: Callable[[list[str]], bool]) -> list[str]:
        rows = await self.shop.rows(raw)
        for _ in range(int(self.deadline / POLL)):
            if done(rows):
                break
            await asyncio.sleep(POLL)
            rows = await self.shop.rows(raw)
        return rows


@dataclass(frozen=True, slots=True)
class Attack:
    """A line of the table."""

    name: str
    expected: str
    run: Callable[[Target], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What one attack got."""

    name: str
    expected: str
    got: str
    holds: bool


async def valid_once(target: Target) -> str:
    """One true delivery."""
    order = await target.shop.new_order()
    raw = target.captured(order)
    return f"{await target.verdict(target.delivery(raw))}; {await target.settled(order, raw)}"


async def duplicate(target: Target) -> str:
    """The same delivery twice, one after the other."""
    order = await target.shop.new_order()
    raw = target.captured(order)
    delivery = target.delivery(raw)
    verdicts = f"{await target.verdict(delivery)}, {await target.verdict(delivery)}"
    return f"{verdicts}; {await target.settled(order, raw)}"


async def twenty_parallel(target: Target) -> str:
    """The same delivery twenty times at once."""
    order = await target.shop.new_order()
    raw = target.captured(order)
    delivery = target.delivery(raw)
    verdicts = Counter(await asyncio.gather(*(target.verdict(delivery) for _ in range(20))))
    said = ", ".join(f"{count} x {word}" for word, count in sorted(verdicts.items()))
    return f"{said}; {await target.settled(order, raw)}"


async def changed_amount(target: Target) -> str:
    """Another amount under the old signature."""
    order = await target.shop.new_order()
    raw = target.captured(order)
    changed = tampered(raw)
    forged = target.delivery(changed, signature=sign(target.secret, raw))
    return f"{await target.verdict(forged)}; {await target.untouched(order, changed)}"


async def wrong_secret(target: Target) -> str:
    """A true body, signed with a secret of the attacker's."""
    order = await target.shop.new_order()
    raw = target.captured(order)
    forged = target.delivery(raw, signature=sign(identifier(target.rng), raw))
    return f"{await target.verdict(forged)}; {await target.untouched(order, raw)}"


async def reserialised(target: Target) -> str:
    """The same JSON, pretty-printed, under the signature of the compact bytes."""
    order = await target.shop.new_order()
    raw = target.captured(order)
    pretty = json.dumps(json.loads(raw), indent=2).encode()
    forged = target.delivery(pretty, signature=sign(target.secret, raw))
    return f"{await target.verdict(forged)}; {await target.untouched(order, pretty)}"


async def new_id(target: Target) -> str:
    """A captured body and its true signature under a fresh event id, which no signature covers."""
    order = await target.shop.new_order()
    raw = target.captured(order)
    verdicts = f"{await target.verdict(target.delivery(raw))}, {await target.verdict(target.delivery(raw))}"
    return f"{verdicts}; {await target.settled(order, raw)}"


async def changed_byte(target: Target) -> str:
    """A stored event sent again under its id and signature with one byte changed."""
    order = await target.shop.new_order()
    raw = target.captured(order)
    first = target.delivery(raw)
    changed = raw[:-2] + bytes([raw[-2] ^ 1]) + raw[-1:]  # the last digit of `created_at`: still JSON
    again = target.delivery(changed, signature=sign(target.secret, raw), event_id=first.event_id)
    verdicts = f"{await target.verdict(first)}, {await target.verdict(again)}"
    changed_rows = await target.shop.rows(changed)
    return f"{verdicts}; {await target.settled(order, raw)}, changed {len(changed_rows)}"


async def missed_answer(target: Target) -> str:
    """The provider hangs up before the answer and sends again."""
    order = await target.shop.new_order()
    raw = target.captured(order)
    delivery = target.delivery(raw)
    await target.sender.abandon(delivery)
    await target.stored(raw)
    verdict = await target.verdict(delivery)
    said = "200 accepted or duplicate" if verdict in {"200 accepted", "200 duplicate"} else verdict
    return f"{said}; {await target.settled(order, raw)}"


async def failed_after_captured(target: Target) -> str:
    """A failed attempt that is reported after another one was captured."""
    order = await target.shop.new_order()
    raw, late = target.captured(order), target.failed(order)
    first = await target.verdict(target.delivery(raw))
    await target.settled(order, raw)
    second = await target.verdict(target.delivery(late))
    return f"{first}, {second}; {await target.settled(order, late)}"


PAID = f"{OrderState('completed', 1, 1, 1)}, stored 1"
UNTOUCHED = f"{OrderState('pending', 0, 0, 0)}, stored 0"

ATTACKS: tuple[Attack, ...] = (
    Attack("valid once", f"200 accepted; {PAID}", valid_once),
    Attack("duplicate", f"200 accepted, 200 duplicate; {PAID}", duplicate),
    Attack("twenty in parallel", f"1 x 200 accepted, 19 x 200 duplicate; {PAID}", twenty_parallel),
    Attack("changed amount under the old signature", f"400; {UNTOUCHED}", changed_amount),
    Attack("signed with a wrong secret", f"400; {UNTOUCHED}", wrong_secret),
    Attack("re-serialised JSON", f"400; {UNTOUCHED}", reserialised),
    Attack("captured body under a new id", f"200 accepted, 200 duplicate; {PAID}", new_id),
    Attack("stored body with a changed byte", f"200 accepted, 400; {PAID}, changed 0", changed_byte),
    Attack("retry after a missed answer", f"200 accepted or duplicate; {PAID}", missed_answer),
    Attack("failed after captured", f"200 accepted, 200 accepted; {PAID}", failed_after_captured),
)


async def run_attacks(
    target: Target,
    progress: Callable[[AttackResult], None] | None = None,
    attacks: tuple[Attack, ...] = ATTACKS,
) -> list[AttackResult]:
    """Run the table, one attack after the other."""
    results = []
    for attack in attacks:
        got = await attack.run(target)
        result = AttackResult(attack.name, attack.expected, got, got == attack.expected)
        results.append(result)
        if progress:
            progress(result)
    return results


def _word(answer: Answer) -> str:
    if answer.error:
        return f"no answer ({answer.error})"
    return f"{answer.status} {answer.verdict}" if answer.verdict else str(answer.status)
