"""Ground truth of transitions against the notification log and against what the customers and the shop received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from models.database import Database
from tests.support.daemon import ENDS, told, until_told
from tests.support.mailbox import Mailbox
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
