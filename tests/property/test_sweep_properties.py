"""What an order says as a whole is what its changes said one by one: keys(changes) == keys(sweep)."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from watcher.notices import Notice, notices
from watcher.owed import owed

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
FOREIGN = ("completed", "failed", "refunded", "partially_refunded", "pending", "cancelled", None, 7)
SHAPES = ("dotted", "payment", "replace")
FACTS = (
    ("payment_failed", "failed"),
    ("payment_completed", "completed"),
    ("refund_processed", "partially_refunded"),
    ("refund_processed", "refunded"),
    ("refund_failed", "completed"),
    ("payment_review", None),
    ("payment_authorized", None),
    ("dispute_opened", None),
)

repeatable = settings(
    max_examples=int(os.environ.get("PAYLATCH_TEST_EXAMPLES", "300")), derandomize=True, deadline=None, database=None
)


@dataclass
class Order:
    """An order and every change that was made to it."""

    document: dict[str, Any]
    changes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def led_to(self) -> set[Any]:
        return {entry["to"] for entry in self.document.get("history", [])}

    def born(self) -> None:
        self._changed("insert", fullDocument=copy.deepcopy(self.document))

    def ours(self, facts: list[tuple[str, str | None]], ref: str) -> None:
        payment, history = self.document["payment"], self.document.setdefault("history", [])
        first, start = not history, len(history)
        for fact, to in facts:
            moved = to if to is not None and payment["status"] in FOREIGN[:5] else payment["status"]
            cause = {"eventId": "E"}
            entry = {"seq": len(history) + 1, "at": AT, "fact": fact, "ref": ref, "reason": "amount_mismatch"}
            history.append({**entry, "from": payment["status"], "to": moved, "cause": cause})
            payment["status"] = moved
        fields: dict[str, Any] = {"payment.status": payment["status"]}
        fields |= {"history": history} if first else {f"history.{n}": history[n] for n in range(start, len(history))}
        self._updated(fields)

    def foreign(self, status: Any, shape: str) -> None:
        self.document["payment"]["status"] = status
        if shape == "replace":
            self._changed("replace", fullDocument=copy.deepcopy(self.document))
        else:
            whole = {"payment": self.document["payment"]}
            self._updated(whole if shape == "payment" else {"payment.status": status})

    def _updated(self, fields: dict[str, Any]) -> None:
        self._changed("update", updateDescription={"updatedFields": copy.deepcopy(fields), "removedFields": []})

    def _changed(self, operation: str, **more: Any) -> None:
        key = {"documentKey": {"_id": self.document["_id"]}, "clusterTime": Timestamp(1, 1), "wallTime": AT}
        self.changes.append({"_id": {"_data": "8"}, "operationType": operation, **key, **more})


@st.composite
def orders(draw: st.DrawFn, *, visible: bool) -> Order:
    """`visible`: a foreign status is the last word or is followed by a write of ours, and is new to our history."""
    order = Order({"_id": draw(st.sampled_from(["ord1", 5, "a:b%"])), "payment": {"status": "pending"}})
    if draw(st.booleans()):
        order.document["payment"]["status"] = draw(st.sampled_from(FOREIGN))
    order.born()
    foreign_before = order.document["payment"]["status"] != "pending"
    for number in range(draw(st.integers(0, 6))):
        if draw(st.booleans()) and not (visible and foreign_before):
            status = draw(st.sampled_from(FOREIGN))
            if visible and status in order.led_to:
                continue
            order.foreign(status, draw(st.sampled_from(SHAPES)))
            foreign_before = True
        else:
            facts = draw(st.lists(st.sampled_from(FACTS), min_size=1, max_size=3))
            if visible and foreign_before and draw(st.booleans()):
                facts = [(fact, None) for fact, _ in facts]
            order.ours(facts, f"ref{number}")
            foreign_before = False
    return order


def keys(found: list[Notice]) -> set[str]:
    return {notice.key("email", "customer") for notice in found}


@given(orders(visible=True))
@repeatable
def test_a_sweep_finds_the_keys_of_all_changes(order: Order) -> None:
    by_changes = keys([notice for change in order.changes for notice in notices(change)])
    assert keys(owed(order.document, AT - timedelta(hours=1), AT)) == by_changes


@given(orders(visible=False))
@repeatable
def test_a_sweep_never_finds_what_no_change_said(order: Order) -> None:
    by_changes = keys([notice for change in order.changes for notice in notices(change)])
    assert keys(owed(order.document, AT - timedelta(hours=1), AT)) <= by_changes
