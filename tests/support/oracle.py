"""What really came of orders, compared with what their histories imply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from watcher.notices import notices

_CHANNEL = ":email:customer"


def keys_of(order_id: object, history: Iterable[Mapping[str, Any]]) -> set[str]:
    """The keys, without channel and recipient, of the notices that a watcher makes of these history entries."""
    pushed = {f"history.{place}": entry for place, entry in enumerate(history)}
    change = {
        "operationType": "update",
        "documentKey": {"_id": order_id},
        "updateDescription": {"updatedFields": pushed},
        "wallTime": datetime.now(UTC),
    }
    return {notice.key("email", "customer").removesuffix(_CHANNEL) for notice in notices(change)}
