"""Rule 5 on legal histories: whatever arrives first and however often, the end is the one that the history implies."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.facts import Event
from models.reducer import numbered, reduce
from models.terms import Expectation
from tests.support.books import keys_of
from tests.support.histories import plans
from tests.support.told import History
from tests.support.truth import truth_of

NOW = datetime(2026, 10, 1, 12, tzinfo=UTC)

# The same examples on every run, so that a failure is a change of ours.
repeatable = settings(
    max_examples=int(os.environ.get("PAYLATCH_TEST_EXAMPLES", "2000")),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@dataclass
class Heard:
    """An order, as the reducer leaves it after each message."""

    payment: dict[str, Any]
    expected: Expectation
    history: list[dict[str, Any]] = field(default_factory=list)
    ledger: list[str] = field(default_factory=list)
    fulfilments: int = 0

    def hear(self, event: Event, minute: int) -> None:
        at = NOW + timedelta(minutes=minute)
        change = reduce(self.payment, event.facts, self.expected, at)
        if change is None:
            return
        self.payment |= {path.removeprefix("payment."): value for path, value in change.set.items()}
        self.history += numbered(change, self.history, at, {"eventId": f"E{minute}"})
        self.ledger += [entry.id for entry in change.ledger]
        self.fulfilments += change.fulfil


Case = tuple[History, list[int], list[int]]


@st.composite
def arrivals(draw: st.DrawFn) -> Case:
    """A history and two orders in which its messages arrive, the second with repetitions."""
    history = History(draw(plans()), 1)
    places = list(range(len(history.messages)))
    one = draw(st.permutations(places))
    again = draw(st.lists(st.sampled_from(places), max_size=4)) if places else []
    return history, one, draw(st.permutations([*places, *again]))


def heard(history: History, arrival: list[int]) -> Heard:
    """The end. An order of which the shop only wrote the number hears nothing before a message names that."""
    order = Heard(history.order["payment"], Expectation(history.plan.expected, "INR"))
    events = [event for place in arrival if (event := history.messages[place].event)]
    first = next((place for place, event in enumerate(events) if event.refs.receipt), 0)
    waiting = first if history.plan.shop == "number" else 0
    for minute, event in enumerate([*events[waiting:], *events[:waiting]]):
        order.hear(event, minute)
    return order


@repeatable
@given(arrivals())
def test_a_legal_history_ends_as_it_implies_in_every_order_and_with_any_repetitions(
    case: Case,
) -> None:
    history, one, other = case
    truth = truth_of(history.plan, 1)
    ends = [heard(history, one), heard(history, other)]
    assert ends[0].payment == ends[1].payment
    for end in ends:
        assert end.payment["status"] == truth.status
        assert end.payment.get("amountPaid") == truth.paid
        assert end.payment.get("amountRefunded", 0) == truth.refunded
        assert sorted(end.ledger) == sorted(truth.ledger)
        assert keys_of("ord1", end.history) == truth.notices
        assert end.fulfilments == truth.fulfilled
        assert [entry["seq"] for entry in end.history] == list(range(1, len(end.history) + 1))
