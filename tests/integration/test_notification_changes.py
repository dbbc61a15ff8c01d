"""`paylatch notifications show, retry, resolve, release`: operators' changes, each guarded and audited."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from models.clock import ServerClock
from models.database import Database
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.daemon import daemon, until_status
from tests.support.desk import Desk, Said
from tests.support.mailbox import QUIET, email, mailbox
from tests.support.rows import abandoned, now, row
from watcher import interventions
from watcher.cap import admit, impose, in_force

pytestmark = QUIET

MESSAGE: dict[str, Any] = {
    "address": "secret@example.com",
    "subject": "First words",
    "text": "First text\n",
    "html": None,
    "data": {},
}


def key(number: int) -> str:
    return f"order:ord{number}:payment_completed:email:customer"


def ended(number: int, status: str, **changes: Any) -> dict[str, Any]:
    return row(number, status=status, nextAttemptAt=None, attempts=3, reason="why", **changes)


@pytest.fixture
def desk(db: Database, make_settings: SettingsMaker, tmp_path: Path) -> Desk:
    return Desk(db, make_settings(), tmp_path)


async def change(desk: Desk, *arguments: str) -> Said:
    return await desk.run("notifications", *arguments)


async def stored(db: Database, number: int) -> dict[str, Any]:
    found = await db.notification_log.find_one({"key": key(number)})
    assert found is not None
    return found


# --- show ---


@pytest.mark.asyncio
async def test_show_tells_everything_and_masks_the_address_unless_it_is_to_be_revealed(
    db: Database, desk: Desk
) -> None:
    await db.notification_log.insert_one(ended(1, "dead", message=MESSAGE, unknownAt=now()))
    masked, plain, as_json = await asyncio.gather(
        change(desk, "show", key(1), "--json"),
        change(desk, "show", str((await stored(db, 1))["_id"]), "--reveal", "--json"),
        change(desk, "show", key(1)),
    )
    assert (masked.json["status"], masked.json["attempts"], masked.json["reason"]) == ("dead", 3, "why")
    assert masked.json["unknownAt"]
    assert masked.json["message"]["subject"] == "First words"
    assert "secret@example.com" not in masked.out + as_json.out
    assert plain.json["message"]["address"] == "secret@example.com"
    (entry,) = await desk.audited()
    assert (entry["command"], entry["filter"]) == ("notifications show --reveal", {"key": key(1)})
    missing = await change(desk, "show", "nothing")
    assert (missing.code, missing.err) == (1, "paylatch: there is no notification nothing\n")


# --- retry ---


@pytest.mark.asyncio
async def test_retry_makes_dead_rows_due_and_words_them_anew_unless_a_copy_may_be_out(db: Database, desk: Desk) -> None:
    lost = ended(2, "dead", message=MESSAGE, unknownAt=now())
    await db.notification_log.insert_many([ended(1, "dead", message=MESSAGE), lost, ended(3, "skipped"), row(4)])
    looked = await change(desk, "retry", "--dry-run", "--json")
    assert (looked.code, looked.json["ready"], looked.json["retried"]) == (0, 2, 0)
    assert (await stored(db, 1))["status"] == "dead"
    refused = await change(desk, "retry")
    assert (refused.code, "--yes" in refused.err) == (1, True)
    done = await change(desk, "retry", "--yes", "--json")
    assert (done.code, done.json["retried"], done.json["refused"]) == (0, 2, {})
    fresh, same, skipped = await stored(db, 1), await stored(db, 2), await stored(db, 3)
    assert (fresh["status"], fresh["attempts"], fresh["reason"], fresh["interventions"]) == ("pending", 0, "why", 1)
    assert fresh["nextAttemptAt"] <= now() + timedelta(seconds=5)
    assert "message" not in fresh
    assert same["message"] == MESSAGE
    assert same["unknownAt"]
    assert skipped["status"] == "skipped", "only what was asked for"
    (entry,) = await desk.audited()
    assert (entry["command"], entry["count"]) == ("notifications retry", 2)


@pytest.mark.asyncio
async def test_retry_refuses_what_is_under_way_done_or_too_old(db: Database, desk: Desk) -> None:
    old = {"factAt": now() - timedelta(hours=25)}
    states = ["sent", "sending", "pending", "retry", "suppressed"]
    await db.notification_log.insert_many(
        [ended(n, status) for n, status in enumerate(states)] + [ended(6, "expired", **old), ended(7, "dead", **old)]
    )
    everything = [key(n) for n in (*range(5), 6, 7)]
    said = await change(desk, "retry", *everything, "--yes", "--json")
    assert (said.code, said.json["retried"], len(said.json["refused"])) == (1, 0, 7)
    forced = await change(desk, "retry", *everything, "--yes", "--json", "--force")
    assert (forced.json["retried"], len(forced.json["refused"])) == (2, 5)
    assert [(await stored(db, n))["forced"] for n in (6, 7)] == [True, True]
    unknown = await change(desk, "retry", "nothing", "--yes")
    assert (unknown.code, "no notification nothing" in unknown.err) == (1, True)


@pytest.mark.asyncio
async def test_a_forced_row_is_sent_however_old_its_fact_is(
    db: Database, desk: Desk, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1, status="completed"))
    await db.notification_log.insert_one(ended(1, "expired", factAt=now() - timedelta(hours=48)))
    assert (await change(desk, "retry", key(1), "--force", "--yes")).code == 0
    async with mailbox() as box, daemon(make_settings(email=email(box)), db):
        await until_status(db, {"key": key(1)}, "sent")
    assert len(box.arrived) == 1


@pytest.mark.asyncio
async def test_a_row_that_moved_since_it_was_read_is_left_alone(db: Database) -> None:
    seen = ended(1, "dead")
    await db.notification_log.insert_one(dict(seen))
    first, second = await asyncio.gather(*(interventions.retry(db, seen, now(), force=False) for _ in range(2)))
    assert (first, second) in {(True, False), (False, True)}
    await db.notification_log.update_one({"_id": seen["_id"]}, {"$set": {"status": "dead"}})
    assert not await interventions.retry(db, seen, now(), force=False), "dead again is another death"


# --- resolve ---


@pytest.mark.asyncio
@pytest.mark.parametrize(("flag", "status"), [("--sent", "sent"), ("--not-sent", "suppressed")])
async def test_resolve_closes_a_row_by_a_persons_word_and_sends_nothing(
    db: Database, desk: Desk, flag: str, status: str
) -> None:
    rows = [ended(1, "held", unknownAt=now()), ended(2, "unknown", unknownAt=now()), ended(3, "dead"), ended(4, "sent")]
    await db.notification_log.insert_many(rows)
    done = await change(desk, "resolve", flag, "--yes", "--json")
    assert (done.code, done.json["resolved"]) == (0, 2)
    for number in (1, 2):
        resolved = await stored(db, number)
        assert (resolved["status"], resolved["reason"]) == (status, "resolved_by_operator")
        assert resolved["resolvedBy"]
        assert resolved["unknownAt"], "it stays for good"
        assert "sentAt" not in resolved
    assert (await change(desk, "resolve", key(3), flag, "--yes")).code == 0
    refused = await change(desk, "resolve", key(4), flag, "--yes", "--json")
    assert (refused.code, refused.json["resolved"]) == (1, 0)
    assert [entry["filter"]["sent"] for entry in await desk.audited()] == [flag == "--sent"] * 2


@pytest.mark.asyncio
async def test_resolve_wants_to_be_told_which(db: Database, desk: Desk) -> None:
    said = await change(desk, "resolve", "--yes")
    assert said.code != 0
    assert "--sent" in said.out + said.err


@pytest.mark.asyncio
async def test_a_row_that_its_sender_moved_since_it_was_read_is_left_alone(db: Database) -> None:
    stored_row = row(1, status="sending")
    await db.notification_log.insert_one(stored_row)
    as_read = {**stored_row, "status": "held"}
    assert not await interventions.release(db, as_read, now())
    assert not await interventions.retry(db, as_read, now(), force=True)
    assert not await interventions.resolve(db, as_read, now(), "asha", sent=True)
    assert (await stored(db, 1))["status"] == "sending"


# --- release ---


@pytest.mark.asyncio
async def test_release_lifts_the_cap_and_sends_what_it_held_and_nothing_that_may_have_been_sent(
    db: Database, desk: Desk, make_settings: SettingsMaker
) -> None:
    await impose(db, now(), "history lost")
    assert await admit(db, "somebody", 1)
    await db.orders.insert_many([sample.order(number, status="completed") for number in range(1, 7)])
    gap = [ended(n, "held", gap=True) | {"reason": "gap_cap", "attempts": 0} for n in range(1, 6)]
    await db.notification_log.insert_many([*gap, ended(6, "held", unknownAt=now())])
    looked = await change(desk, "release", "--dry-run")
    assert "the cap will be lifted" in looked.out
    assert await in_force(db)
    some = await change(desk, "release", "--limit", "2", "--yes", "--json")
    assert (some.code, some.json["released"]) == (0, 2)
    assert await in_force(db), "it stays for the rest"
    async with mailbox() as box:
        settings = make_settings(email=email(box), notifications={"gap_cap": 1})
        async with daemon(settings, db):
            for number in (1, 2):
                await until_status(db, {"key": key(number)}, "sent")
            done = await change(desk, "release", "--yes", "--json")
            assert (done.json["released"], done.json["cap"]) == (3, "lifted")
            for number in (3, 4, 5):
                await until_status(db, {"key": key(number)}, "sent")
    assert await in_force(db) is None
    assert (await stored(db, 6))["status"] == "held"
    again = await change(desk, "release", "--yes", "--json")
    assert (again.code, again.json) == (0, {"chosen": 0, "ready": 0, "refused": {}, "released": 0})


HELD_MEANWHILE = """
from scripts import cli, notifications

lift = notifications.lift

async def lifted(db, now):
    held = {"status": "held", "reason": "gap_cap", "nextAttemptAt": None}
    await db.notification_log.update_one({"status": "pending"}, {"$set": held})
    return await lift(db, now)

notifications.lift = lifted
cli.main()
"""


@pytest.mark.asyncio
async def test_what_is_held_while_the_operator_reads_is_released_with_the_rest(db: Database, desk: Desk) -> None:
    await impose(db, now(), "history lost")
    held = ended(1, "held", gap=True) | {"reason": "gap_cap", "attempts": 0}
    await db.notification_log.insert_many([held, row(2, gap=True)])
    command = (sys.executable, "-c", HELD_MEANWHILE)
    said = await desk.run("notifications", "release", "--yes", "--json", command=command)
    assert (said.json["released"], said.json["cap"]) == (1, "lifted")
    assert [(await stored(db, number))["status"] for number in (1, 2)] == ["pending", "pending"]


@pytest.mark.asyncio
async def test_a_held_row_that_may_have_been_sent_is_released_by_its_key_and_sent_as_it_was(
    db: Database, desk: Desk, make_settings: SettingsMaker
) -> None:
    await db.orders.insert_one(sample.order(1, status="completed"))
    await db.notification_log.insert_one(abandoned() | {"status": "held", "nextAttemptAt": None, "unknownAt": now()})
    assert (await change(desk, "release", key(1), "--yes")).code == 0
    hold = {"unknown_policy": {"email": "hold"}}
    async with mailbox() as box, daemon(make_settings(email=email(box), notifications=hold), db):
        sent = await until_status(db, {"key": key(1)}, "sent", "held")
    assert (sent["status"], "unknownAt" in sent) == ("sent", True)
    (mail,) = box.arrived
    assert (mail.recipients, mail.subject) == (("first@example.com",), "A subject")


@pytest.mark.asyncio
async def test_a_release_without_held_rows_still_lifts_the_cap(db: Database, desk: Desk) -> None:
    clock = ServerClock(db.client)
    await clock.run_once()
    await impose(db, clock.now(), "history lost")
    done = await change(desk, "release", "--yes", "--json")
    assert (done.code, done.json["cap"]) == (0, "lifted")
    assert await in_force(db) is None
    refused = await change(desk, "release", str(ObjectId()), "--yes")
    assert refused.code == 1
