"""Ground truth of transitions against the notification log and against what the customers and the shop received."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

from models.database import Database
from tests.support.daemon import ENDS, told, until_told
from tests.support.mailbox import Mail, Mailbox
from tests.support.wait import eventually


async def agree(db: Database, truth: Mapping[str, Sequence[str]], box: Mailbox | None = None) -> None:
    """Each order has exactly its rows (`notice:channel:recipient`), each row ended, each sent row arrived once.

    Without a mailbox mails cannot arrive, and only their rows are looked at.
    """
    for order_id, expected in truth.items():
        await until_told(db, order_id, *expected)
    about = {"orderId": {"$in": list(truth)}, "channel": {"$in": ["inapp"] if box is None else ["inapp", "email"]}}

    async def ended() -> bool:
        return await db.notification_log.count_documents({**about, "status": {"$nin": list(ENDS)}}) == 0

    await eventually(ended, "every row has ended")
    for order_id, expected in truth.items():
        assert await told(db, order_id) == sorted(expected), f"{order_id} gained a row late"
    sent = await db.notification_log.find({**about, "status": "sent"}).to_list()
    inapp = {row["key"] for row in sent if row["channel"] == "inapp"}
    assert {each["_id"] async for each in db.notifications.find({"orderId": {"$in": list(truth)}})} == inapp
    if box is not None:
        mails = Counter(mail.message_id for mail in box.mails)
        wanted = Counter(row["providerMessageId"] for row in sent if row["channel"] == "email")
        assert mails == wanted, "the mails that arrived are those of the log, each once"


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
