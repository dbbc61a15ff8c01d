"""`paylatch notifications` as operators and their scripts run it: a process of its own."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from models.database import Database
from models.settings import Settings
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import daemon, record, until_status
from tests.support.desk import Desk
from tests.support.mailbox import QUIET, email, mailbox

pytestmark = QUIET

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def row(number: int, status: str, order_id: Any = None, **changes: Any) -> dict[str, Any]:
    at = START + timedelta(minutes=number)
    return {
        "key": f"order:ord{number}:payment_completed:email:customer",
        "notice": "payment_completed",
        "refs": [],
        "orderId": order_id or f"ord{number}",
        "channel": "email",
        "to": "customer",
        "status": status,
        "factAt": at,
        "attempts": 1,
        "nextAttemptAt": None,
        "message": {"address": "secret@example.com", "subject": "Secret subject", "text": "Secret text"},
        "createdAt": at,
        "updatedAt": at,
        **changes,
    }


async def paylatch(db: Database, settings: Settings, folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `paylatch notifications <arguments>`."""
    said = await Desk(db, settings, folder).run("notifications", *arguments)
    return said.code, said.out, said.err


async def listed(db: Database, settings: Settings, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    code, out, err = await paylatch(db, settings, folder, "list", "--json", *arguments)
    assert (code, err) == (0, "")
    found: list[dict[str, Any]] = json.loads(out)
    return found


@pytest.mark.asyncio
async def test_the_list_shows_what_became_of_each_notice_and_neither_message_nor_address(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    odd = row(2, "dead", reason="rcpt_550", key="order:[bold]\x1b[31m:payment_completed:email:customer")
    await db.notification_log.insert_many([row(1, "sent", sentAt=START), odd])
    code, out, err = await paylatch(db, make_settings(), tmp_path, "list")
    assert (code, err) == (0, "")
    assert out.startswith("2 notifications")
    first = next(line for line in out.splitlines() if "order:ord1:" in line)
    assert "sent" in first
    assert "2026-03-01 12:00:00" in first
    other = next(line for line in out.splitlines() if "[bold]" in line)
    assert "rcpt_550" in other
    assert "\x1b" not in out
    assert "ecret" not in out
    assert out.index("[bold]") < out.index("order:ord1:"), "newest first"


@pytest.mark.asyncio
async def test_the_json_list_is_for_machines(db: Database, make_settings: SettingsMaker, tmp_path: Path) -> None:
    lease = {"token": "secret-token", "until": START, "lsid": None}
    await db.notification_log.insert_many(
        [row(1, "sent", providerMessageId="<m1@example.com>", sentAt=START), row(2, "sending", lease=lease)]
    )
    sending, sent = await listed(db, make_settings(), tmp_path)
    assert (sending["status"], sending["orderId"], sending["attempts"]) == ("sending", "ord2", 1)
    assert (sent["providerMessageId"], sent["channel"], sent["to"]) == ("<m1@example.com>", "email", "customer")
    assert datetime.fromisoformat(sent["sentAt"]) == START
    assert datetime.fromisoformat(sent["factAt"]) == START + timedelta(minutes=1)
    for one in (sending, sent):
        assert "message" not in one
        assert "lease" not in one
        assert "ecret" not in json.dumps(one)


@pytest.mark.asyncio
async def test_the_list_is_narrowed_by_status_channel_notice_and_order(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    number = ObjectId()
    await db.notification_log.insert_many(
        [
            row(1, "sent"),
            row(2, "dead"),
            row(3, "unknown", channel="inapp"),
            row(4, "sent", notice="payment_failed"),
            row(5, "sent", order_id=number),
        ]
    )
    settings = make_settings()

    async def orders(*arguments: str) -> list[str]:
        return [one["orderId"] for one in await listed(db, settings, tmp_path, *arguments)]

    answers = await asyncio.gather(
        orders("--status", "dead", "--status", "unknown"),
        orders("--channel", "inapp"),
        orders("--notice", "payment_failed"),
        orders("--order", "ord1"),
        orders("--order", str(number)),
        orders("--limit", "2"),
        orders("--status", "held"),
    )
    assert answers == [["ord3", "ord2"], ["ord3"], ["ord4"], ["ord1"], [str(number)], [str(number), "ord4"], []]


@pytest.mark.asyncio
async def test_an_unknown_status_is_refused_with_a_reason(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    code, out, err = await paylatch(db, make_settings(), tmp_path, "list", "--status", "lost")
    assert code != 0
    assert "lost" in out + err
    assert "Traceback" not in out + err


@pytest.mark.asyncio
async def test_rows_that_the_watcher_wrote_can_be_listed(
    db: Database, make_settings: SettingsMaker, tmp_path: Path
) -> None:
    async with mailbox() as box:
        settings = make_settings(email=email(box))
        async with daemon(settings, db):
            await db.orders.insert_one(sample.order(1))
            await record(db, 1)
            for query in ({"channel": "email"}, {"to": "admin"}, {"to": "user"}):
                await until_status(db, query, "sent")
    found = await listed(db, settings, tmp_path, "--order", "ord1")
    assert sorted(one["key"] for one in found) == [
        "order:ord1:payment_completed:email:customer",
        "order:ord1:payment_completed:inapp:admin",
        "order:ord1:payment_completed:inapp:user",
    ]
    assert {one["status"] for one in found} == {"sent"}
    assert "asha1@example.com" not in json.dumps(found)
