"""Rule 5 through the real endpoint, admission and processing: each history is told of two orders in two ways."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from models.database import Database
from models.states import EventStatus, Origin
from tests.conftest import SettingsMaker
from tests.support.books import Books, keys_of
from tests.support.endpoint import Endpoint, endpoint
from tests.support.histories import Plan, plans
from tests.support.told import REPEATS, History, How, names, repeated
from tests.support.truth import truth_of
from tests.support.wait import eventually
from webhook.admission import Delivery

HISTORIES = min(90, int(os.environ.get("PAYLATCH_TEST_EXAMPLES", "40")))  # two orders each; more than 200 would be slow
MOST_DELIVERIES = 10
AT_ONCE = 6
FINISHED = (EventStatus.COMPLETED, EventStatus.IGNORED, EventStatus.DEAD)


@dataclass(frozen=True)
class Telling:
    """A plan told of one order: which message comes when and how, and how many before the shop writes it."""

    plan: Plan
    arrival: tuple[tuple[int, How], ...]
    before_the_order: int = 0


@st.composite
def tellings(draw: st.DrawFn) -> tuple[Telling, Telling]:
    """One plan told in two ways, the second with repetitions and at times before the shop has written the order."""
    plan = draw(plans().filter(lambda plan: len(History(plan, 1).messages) <= MOST_DELIVERIES - 2))
    firsts: list[tuple[int, How]] = [(place, "first") for place in range(len(History(plan, 1).messages))]
    again = draw(
        st.lists(st.tuples(st.sampled_from(range(len(firsts))), st.sampled_from(REPEATS)), min_size=1, max_size=2)
    )
    second = draw(st.permutations([*firsts, *again]))
    late = draw(st.sampled_from([0, 0, 1, len(second) // 2, len(second)]))
    return Telling(plan, tuple(draw(st.permutations(firsts)))), Telling(plan, tuple(second), late)


def drawn(count: int) -> list[tuple[Telling, Telling]]:
    """The same ones on every run."""
    found: list[tuple[Telling, Telling]] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(tellings())
    def collect(pair: tuple[Telling, Telling]) -> None:
        found.append(pair)

    collect()
    return found


async def deliver(shop: Endpoint, told: Delivery) -> None:
    """Over HTTP, or from where our own messages come; then wait until it took effect or waits for something."""
    if told.origin == Origin.WEBHOOK:
        status, said = await shop.post(told.raw, told.event_id)
        assert status == 200
        event_id = said["eventId"]
    else:
        event_id = (await shop.parts.engine.admission.admit(told)).event_id
    await shop.settled(event_id, *FINISHED, EventStatus.PARKED)


async def tell(shop: Endpoint, telling: Telling, number: int) -> None:
    history = History(telling.plan, number)
    for place, (message, how) in enumerate(telling.arrival):
        if place == telling.before_the_order:
            await shop.db.orders.insert_one(history.order)
        await deliver(shop, repeated(history.messages[message], how))
    if telling.before_the_order >= len(telling.arrival):
        await shop.db.orders.insert_one(history.order)


async def wake_all(shop: Endpoint) -> None:
    """What waits is due now, as after its pause, again and again until nothing waits any more."""

    async def check() -> bool:
        now = shop.parts.engine.clock.now()
        waiting = {"status": EventStatus.PARKED, "nextAttemptAt": {"$gt": now}}
        await shop.db.events.update_many(waiting, {"$set": {"nextAttemptAt": now}})
        return not await shop.db.events.count_documents({"status": {"$nin": FINISHED}})

    await eventually(check, "every event is finished", 60)


def nameless(payment: dict[str, Any], number: int) -> str:
    """What became of the order, without what names it and without times of ours."""
    kept = {name: value for name, value in payment.items() if name != "changedAt"}
    text = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS).decode()
    for place, name in enumerate(names(number)):
        text = text.replace(name, f"<{place}>")
    return text


def agreed(books: Books, telling: Telling, number: int) -> str:
    """Compare the order with what its history implies; the rest of it, to be compared with the other one's."""
    truth, order = truth_of(telling.plan, number), books.orders[f"ord{number}"]
    payment, history = order["payment"], order.get("history", [])
    assert payment["status"] == truth.status, telling
    assert payment.get("amountPaid") == truth.paid, telling
    assert payment.get("amountRefunded", 0) == truth.refunded, telling
    assert books.ledger_of(order["_id"]) == sorted(truth.ledger), telling
    assert keys_of(order["_id"], history) == truth.notices, telling
    assert (order["_id"] in books.fulfilments) == truth.fulfilled, telling
    assert [entry["seq"] for entry in history] == list(range(1, len(history) + 1)), telling
    return nameless(payment, number)


@pytest.mark.asyncio
async def test_each_history_ends_as_it_implies_in_two_orders_of_arrival(
    db: Database, make_settings: SettingsMaker
) -> None:
    pairs, room = drawn(HISTORIES), asyncio.Semaphore(AT_ONCE)
    assert len(pairs) == HISTORIES
    numbered = [
        (place * 2 + side + 1, telling) for place, pair in enumerate(pairs) for side, telling in enumerate(pair)
    ]

    async def told(number: int, telling: Telling) -> None:
        async with room:
            await tell(shop, telling, number)

    async with endpoint(make_settings()) as shop:
        await asyncio.gather(*(told(number, telling) for number, telling in numbered))
        await wake_all(shop)
        assert {row["status"] async for row in db.events.find({}, {"status": 1})} == {"completed"}
    books = await Books.read(db)
    ends = [agreed(books, telling, number) for number, telling in numbered]
    differing = [pair for pair, one, other in zip(pairs, ends[::2], ends[1::2], strict=True) if one != other]
    assert not differing, (ends, differing)
