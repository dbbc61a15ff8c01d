"""Whatever happens to the shop's processes, in whatever order: the books are right at every step and in the end.

Deliveries, redeliveries, replays, crashes, requeues, orders that appear late and a shop that writes its own fields are
drawn by Hypothesis; the engine is the real one on the real database.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pymongo
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from models import crash
from models.crash import POINTS
from models.database import Database, RawDocument
from models.settings import Settings
from tests.conftest import SettingsMaker
from tests.support.books import keys_of, legal_move, sound
from tests.support.freezable import Freezable, freezing
from tests.support.histories import Plan, plans
from tests.support.told import REPEATS, History, How, repeated
from tests.support.truth import truth_of
from tests.support.wait import until
from webhook.admission import Delivery
from webhook.requeue import refusal, requeue

EXAMPLES = max(20, int(os.environ.get("PAYLATCH_TEST_EXAMPLES", "0")) // 100)
STEPS = 25
MOST_ORDERS = 3
LEASE = 0.6
# What only an HTTP answer reaches is in the crash matrix, over real processes.
FREEZING_POINTS = sorted(point for point in POINTS if point.startswith("webhook.") and point != "webhook.answered")
FINISHED = ("completed", "ignored", "dead")


@dataclass
class Told:
    """One order of the shop, and how much of its history was delivered."""

    history: History
    waiting: list[Delivery]
    written: bool
    delivered: list[Delivery] = field(default_factory=list)
    status: object = None

    @property
    def order_id(self) -> str:
        return f"ord{self.history.number}"


@dataclass
class Shop:
    """The database as the shop sees it, and the webhook processes: one that works, and those that were frozen."""

    settings: Settings
    books: pymongo.MongoClient[dict[str, Any]]
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    frozen: list[Freezable] = field(default_factory=list)
    process: Freezable = field(init=False)

    def __post_init__(self) -> None:
        self.process = Freezable(self.settings)

    def collection(self, name: str) -> Any:
        return self.books[self.settings.mongodb.database][name]

    def at_one_moment(self, order_id: str) -> tuple[RawDocument | None, list[RawDocument]]:
        """The order and its ledger as they were together: a process may be writing both while they are read."""
        while True:
            before = self.collection("orders").find_one({"_id": order_id})
            booked = list(self.collection("ledger_entries").find({"orderId": order_id}))
            if before == self.collection("orders").find_one({"_id": order_id}):
                return before, booked

    def crashed(self) -> None:
        """Another process takes the place of the one that stands still."""
        self.frozen.append(self.process)
        self.process = Freezable(self.settings)

    def thaw(self) -> None:
        for process in self.frozen:
            process.stop()
        self.frozen.clear()

    def event_of(self, told: Delivery) -> RawDocument | None:
        found: RawDocument | None = self.collection("webhook_events").find_one({"rawBody": told.raw})
        return found


class Life(RuleBasedStateMachine):
    """The rules; `shop` is set by the test."""

    shop: Shop

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[Told] = []

    # --- what happens ------------------------------------------------------------------------------------------------

    @initialize(plan=plans(), written=st.sampled_from([True, True, False]))
    def first_order(self, plan: Plan, written: bool) -> None:  # noqa: FBT001 - drawn
        self._order(plan, written=written)

    @precondition(lambda self: len(self.orders) < MOST_ORDERS)
    @rule(plan=plans(), written=st.booleans())
    def new_order(self, plan: Plan, written: bool) -> None:  # noqa: FBT001 - drawn
        self._order(plan, written=written)

    @rule(picks=st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def deliver(self, picks: list[int]) -> None:
        for pick in picks:
            if told := self._next(pick):
                self._admit(told)

    @rule(pick=st.integers(0, 99), how=st.sampled_from(REPEATS))
    def deliver_again(self, pick: int, how: How) -> None:
        known = [told for order in self.orders for told in order.delivered]
        if known:
            self._admit(repeated(known[pick % len(known)], how))

    @rule(pick=st.integers(0, 99), point=st.sampled_from(FREEZING_POINTS))
    def crash(self, pick: int, point: str) -> None:
        told = self._next(pick)
        if told is None:
            return
        process = self.shop.process
        crash.arm(point)
        admitted = process.start(process.parts.engine.admission.admit(told))
        until(lambda: process.frozen or (admitted.done() and self._rests(told)), f"{point} is reached or passed")
        crash.arm(None)
        if process.frozen:
            self.shop.crashed()
            self._admit(told, settled=False)  # nobody answered in time: the provider sends it again

    @rule(force=st.booleans(), pick=st.integers(0, 99))
    def requeue(self, force: bool, pick: int) -> None:  # noqa: FBT001 - drawn
        engine = self.shop.process.parts.engine
        rows = [row for order in self.orders for told in order.delivered if (row := self.shop.event_of(told))]
        if not rows:
            return
        chosen = rows[pick % len(rows)]
        if refusal(chosen, datetime.now(UTC), force=force) is None:
            self.shop.process.run(requeue(engine.db, chosen, engine.clock.now(), 3600))

    @rule()
    def an_order_appears(self) -> None:
        for order in self.orders:
            if not order.written:
                self._write(order)
                return

    @rule(pick=st.integers(0, 99))
    def the_merchant_writes(self, pick: int) -> None:
        order_id = self.orders[pick % len(self.orders)].order_id
        self.shop.collection("orders").update_one({"_id": order_id}, {"$set": {"note": pick}, "$inc": {"__v": 1}})

    @rule()
    def time_passes(self) -> None:
        """What waits for its order or its next try is due."""
        now = datetime.now(UTC)
        waiting = {"status": {"$in": ["parked", "failed"]}, "nextAttemptAt": {"$gt": now}}
        self.shop.collection("webhook_events").update_many(waiting, {"$set": {"nextAttemptAt": now}})

    # --- what is always true -----------------------------------------------------------------------------------------

    @invariant()
    def the_books_are_right(self) -> None:
        for order in self.orders:
            stored, booked = self.shop.at_one_moment(order.order_id)
            if stored is not None:
                sound(stored, booked)
                legal_move(order.status, stored["payment"]["status"])
                order.status = stored["payment"]["status"]

    @invariant()
    def every_event_is_finished_or_due(self) -> None:
        lost = {"status": {"$nin": FINISHED}, "nextAttemptAt": None}
        assert self.shop.collection("webhook_events").find_one(lost) is None

    def teardown(self) -> None:
        """Everything is delivered in the end, and those who stood still wake up again: the end is what it must be."""
        crash.arm(None)
        for order in self.orders:
            if not order.written:
                self._write(order)
            for told in [*order.waiting]:
                order.waiting.remove(told)
                order.delivered.append(told)
                self._admit(told, settled=False)
        self._finish()
        self.shop.thaw()
        self._finish()
        self.the_books_are_right()
        for order in self.orders:
            self._ended(order)

    # --- how ---------------------------------------------------------------------------------------------------------

    def _order(self, plan: Plan, *, written: bool) -> None:
        history = History(plan, next(self.shop.numbers))
        order = Told(history, [*history.messages], written=False)
        self.orders.append(order)
        if written:
            self._write(order)

    def _write(self, order: Told) -> None:
        self.shop.collection("orders").insert_one(order.history.order)
        order.written = True

    def _next(self, pick: int) -> Delivery | None:
        """A message that was not delivered yet, of any order."""
        pairs = [(order, told) for order in self.orders for told in order.waiting]
        if not pairs:
            return None
        order, told = pairs[pick % len(pairs)]
        order.waiting.remove(told)
        order.delivered.append(told)
        return told

    def _admit(self, told: Delivery, *, settled: bool = True) -> None:
        self.shop.process.run(self.shop.process.parts.engine.admission.admit(told))
        if settled and not self.shop.frozen:  # else it may have to wait for a lease
            until(lambda: self._rests(told), "the event is settled")

    def _rests(self, told: Delivery) -> bool:
        row = self.shop.event_of(told)
        return row is not None and row["status"] in {*FINISHED, "parked", "failed"}

    def _finish(self) -> None:
        def finished() -> bool:
            self.time_passes()
            return not self.shop.collection("webhook_events").count_documents({"status": {"$nin": FINISHED}})

        until(finished, "every event is finished")
        assert not self.shop.collection("webhook_events").find_one({"status": {"$in": ["ignored", "dead"]}})

    def _ended(self, order: Told) -> None:
        truth = truth_of(order.history.plan, order.history.number)
        stored = self.shop.collection("orders").find_one({"_id": order.order_id})
        booked = [row["_id"] for row in self.shop.collection("ledger_entries").find({"orderId": order.order_id})]
        shipped = self.shop.collection("fulfilments").count_documents({"_id": order.order_id})
        assert stored["payment"]["status"] == truth.status
        assert stored["payment"].get("amountRefunded", 0) == truth.refunded
        assert sorted(booked) == sorted(truth.ledger)
        assert keys_of(order.order_id, stored.get("history", [])) == truth.notices
        assert shipped == truth.fulfilled


def test_the_books_stay_right_whatever_happens(db: Database, make_settings: SettingsMaker) -> None:
    chosen = make_settings(processing={"lease": LEASE, "recovery_interval": 0.1})
    uri = chosen.mongodb.uri.get_secret_value()
    with freezing(), pymongo.MongoClient[dict[str, Any]](uri, tz_aware=True) as books:
        Life.shop = Shop(chosen, books)
        try:
            run_state_machine_as_test(
                Life,
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=STEPS,
                    derandomize=True,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            Life.shop.thaw()
            Life.shop.process.stop()
