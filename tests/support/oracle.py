"""Compares what is true of the orders with the notification log and with what the mail server took."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from models.database import Database
from tests.support.mailbox import Mail, Mailbox
from tests.support.wait import eventually


def key_of(number: int) -> str:
    """The key of the mail that tells order `number`'s customer of the payment."""
    return f"order:ord{number}:payment_completed:email:customer"


async def told_by_mail(db: Database, box: Mailbox, numbers: Sequence[int]) -> int:
    """Missing = 0, extra = only rows that carry `unknownAt`; how many mails came twice or more.

    Every order is paid and every customer is told by mail and in no other way.
    """
    paid = {key_of(number) for number in numbers}
    stored = await db.notification_log.find({}).to_list()
    rows = {row["key"]: row for row in stored}
    assert len(rows) == len(stored), "two rows for one notice"
    assert rows.keys() == paid, "the log does not say what is true of the orders"
    names = {hashlib.sha256(key.encode()).hexdigest(): key for key in rows}
    copies = Counter(names[_name(mail)] for mail in box.arrived)
    missing = [key for key, row in rows.items() if row["status"] == "sent" and not copies[key]]
    assert missing == [], "a row says sent and no mail came"
    silent = [key for key, count in copies.items() if count > 1 and not rows[key].get("unknownAt")]
    assert silent == [], "a mail was doubled in silence"
    unsaid = [key for key in copies if rows[key]["status"] not in {"sent", "held", "unknown"}]
    assert unsaid == [], "a mail came and its row does not know"
    return sum(count > 1 for count in copies.values())


def _name(mail: Mail) -> str:
    return mail.message_id.strip("<>").split("@")[0]


async def until_all(db: Database, count: int, *statuses: str, seconds: float = 30.0) -> None:
    """Wait until so many rows have one of the statuses."""

    async def check() -> bool:
        return await db.notification_log.count_documents({"status": {"$in": list(statuses)}}) == count

    await eventually(check, f"{count} rows are {' or '.join(statuses)}", seconds)
