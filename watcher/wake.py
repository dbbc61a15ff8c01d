"""Wake parked events when the order they wait for appears, or gets the ids that they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from models.clock import ServerClock
from models.database import Database
from models.parking import Names, wake_parked

_PREFIX = "payment."


def named_ids(changes: Iterable[Mapping[str, Any]]) -> Names:
    """The provider's ids, and order numbers, that changes write into orders, as far as they show them."""
    shown = [_shown(change) for change in changes]
    refs = [ref for fields in shown for ref in _refs(fields)]
    return Names(
        orders=_strings(fields.get("razorpayOrderId") for fields in shown) | _ids(refs, "order"),
        links=_strings(fields.get("paymentLinkId") for fields in shown) | _ids(refs, "payment_link"),
        payments=_strings(fields.get("razorpayPaymentId") for fields in shown),
        receipts=_strings(str(fields["orderNumber"]) for fields in shown if fields.get("orderNumber") is not None),
    )


def _shown(change: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `payment` that a change sets, by their names in it, and the order's number."""
    if change["operationType"] == "update":
        written = (change.get("updateDescription") or {}).get("updatedFields") or {}
        dotted = {path[len(_PREFIX) :]: value for path, value in written.items() if path.startswith(_PREFIX)}
    else:
        written, dotted = change.get("fullDocument") or {}, {}
    payment = written.get("payment")
    return {"orderNumber": written.get("orderNumber"), **dotted, **(payment if isinstance(payment, dict) else {})}


def _refs(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """`payment.refs` as a whole, or the entries of it that were added."""
    whole = fields.get("refs")
    added = [value for path, value in fields.items() if path.startswith("refs.")]
    return [ref for ref in [*(whole if isinstance(whole, list) else ()), *added] if isinstance(ref, dict)]


def _ids(refs: Iterable[Mapping[str, Any]], kind: str) -> set[str]:
    return _strings(ref.get("id") for ref in refs if ref.get("kind") == kind)


def _strings(values: Iterable[object]) -> set[str]:
    return {value for value in values if isinstance(value, str) and value}


class Waker:
    """Makes parked events due; the webhook processes' recovery loop takes them from there."""

    def __init__(self, db: Database, clock: ServerClock) -> None:
        self._db, self._clock = db, clock

    async def wake(self, changes: Iterable[Mapping[str, Any]]) -> int:
        """How many parked events these changes of orders made due now."""
        names = named_ids(changes)
        return await wake_parked(self._db, names, self._clock.now()) if names else 0
