"""What an order as a whole says, as a pure function of its document: the same notices that its changes would give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from watcher.notices import Notice, entries, notices, of_foreign_status

FIELDS = {"history": 1, "payment": 1, "createdAt": 1, "updatedAt": 1}
"""What must be read of an order."""


def owed(order: Mapping[str, Any], since: datetime, until: datetime) -> list[Notice]:
    """Every notice of the order's whole history.

    A status that the merchant's own code wrote bears no date: it is dated by the order's `updatedAt` or `paidAt` where
    that lies between `since` and `until` (the time that nobody read), else by `until`. A status that was overwritten
    again shows only where our history goes on from it.
    """
    whole = {
        "operationType": "replace",
        "documentKey": {"_id": order["_id"]},
        "fullDocument": order,
        "wallTime": _dated(order, since, until),
    }
    told = {(notice.name, notice.refs): notice for notice in notices(whole)}
    for notice in _between(order):
        told.setdefault((notice.name, notice.refs), notice)
    return list(told.values())


def _between(order: Mapping[str, Any]) -> Iterator[Notice]:
    """Statuses that somebody else wrote between two of our entries: one of ours goes on from it, none led to it."""
    reached: object = None
    for entry in sorted(entries(order.get("history")), key=lambda entry: entry["seq"]):
        before, at = entry.get("from"), entry.get("at")
        if before != reached and isinstance(at, datetime):
            notice = of_foreign_status(order["_id"], before, at if at.tzinfo else at.replace(tzinfo=UTC))
            if notice:
                yield notice
        reached = entry.get("to")


def _dated(order: Mapping[str, Any], since: datetime, until: datetime) -> datetime:
    payment = order.get("payment")
    paid = payment.get("paidAt") if isinstance(payment, dict) else None
    dates = [_aware(date) for date in (order.get("updatedAt"), paid) if isinstance(date, datetime)]
    return max((date for date in dates if since <= date <= until), default=until)


def _aware(date: datetime) -> datetime:
    return date if date.tzinfo else date.replace(tzinfo=UTC)
