"""`paylatch events`, run as an operator runs it: a real process, the database from the environment."""

from __future__ import annotations

import getpass
import os
import pty
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from models.database import Database
from models.settings import Settings
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.desk import PAYLATCH, Desk, Said
from tests.support.endpoint import endpoint

OLD_NAME = (sys.executable, "-m", "scripts.requeue_failed")
MASK = "•••"
HOUR = timedelta(hours=1)


class EventsDesk(Desk):
    """An operator who only speaks of events."""

    async def run(
        self, *arguments: str, command: tuple[str, ...] = (PAYLATCH, "events"), stdin: int | None = None
    ) -> Said:
        return await super().run(*arguments, command=command, stdin=stdin)

    async def change(self, event_id: str, **fields: Any) -> None:
        done = await self.db.events.update_one({"eventId": event_id}, {"$set": fields})
        assert done.matched_count == 1


LEASE = {"token": "a-workers-token", "lsid": None}
ERROR = {"error": "RuntimeError", "errorDetail": "unexpected RuntimeError"}


@pytest_asyncio.fixture
async def desk(db: Database, make_settings: SettingsMaker, tmp_path: Path) -> AsyncIterator[EventsDesk]:
    """One event in each status, by its name, from an endpoint that has ended."""
    await db.orders.insert_many([sample.order(1), sample.order(2)])
    async with endpoint(make_settings()) as shop:
        await shop.post(sample.captured(1), "COMPLETED")
        await shop.post(sample.event("payout.processed", payment=sample.payment(1)), "IGNORED")
        await shop.post(b"no json, but asha@example.com", "DEAD")
        for number, event_id in (
            (11, "PARKED"),
            (12, "FAILED"),
            (13, "PROCESSING"),
            (14, "ABANDONED"),
            (15, "RECEIVED"),
        ):
            await shop.post(sample.captured(number), event_id)
            await shop.settled(event_id, "parked")
        await shop.settled("COMPLETED")
        await shop.settled("IGNORED")
    running = EventsDesk(db, make_settings(), tmp_path)
    now = datetime.now(UTC)
    later, earlier = now + HOUR, now - HOUR
    await running.change("PARKED", parks=3, parkedUntil=earlier, nextAttemptAt=later)
    await running.change("FAILED", status="failed", attempts=4, nextAttemptAt=later, **ERROR)
    await running.change("PROCESSING", status="processing", lease={**LEASE, "until": later}, nextAttemptAt=later)
    await running.change("ABANDONED", status="processing", lease={**LEASE, "until": earlier}, nextAttemptAt=earlier)
    await running.change("RECEIVED", status="received", attempts=0, nextAttemptAt=later)
    yield running


# --- list and show ----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_list_says_everything_but_the_bodies_as_json(desk: EventsDesk) -> None:
    said = await desk.run("list", "--json")
    assert said.code == 0
    events = {event["eventId"]: event for event in said.json}
    assert len(events) == 8
    assert {name: event["status"] for name, event in events.items()} == {
        "COMPLETED": "completed",
        "IGNORED": "ignored",
        "DEAD": "dead",
        "PARKED": "parked",
        "FAILED": "failed",
        "PROCESSING": "processing",
        "ABANDONED": "processing",
        "RECEIVED": "received",
    }
    assert events["COMPLETED"]["refs"]["paymentId"] == sample.payment_id(1)
    assert events["FAILED"]["error"] == "RuntimeError"
    for event in events.values():
        assert not {"rawBody", "payload", "lease"} & set(event)
    assert "@" not in said.out
    assert "a-workers-token" not in said.out


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--status", "failed", "--status", "dead"], {"FAILED", "DEAD"}),
        (["--type", "payout.processed"], {"IGNORED"}),
        (["--order", sample.provider_order_id(11)], {"PARKED"}),
        (["--error", "runtime"], {"FAILED"}),
        (["--error", ".*"], set()),
        (["--newer-than", "1h", "--status", "parked"], {"PARKED"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
async def test_list_filters(desk: EventsDesk, filters: list[str], expected: set[str]) -> None:
    said = await desk.run("list", "--json", *filters)
    assert {event["eventId"] for event in said.json} == expected


@pytest.mark.asyncio
async def test_list_is_newest_first_and_limited_and_a_table_for_people(desk: EventsDesk) -> None:
    newest = [event["eventId"] for event in (await desk.run("list", "--json", "--limit", "3")).json]
    rows = await desk.db.events.find({}, {"eventId": 1}).sort("receivedAt", -1).limit(3).to_list()
    assert newest == [row["eventId"] for row in rows]
    said = await desk.run("list")
    assert said.code == 0
    for word in ("COMPLETED", "payment.captured", "unparseable", "RuntimeError"):
        assert word in said.out


@pytest.mark.asyncio
async def test_show_masks_personal_data_and_leaves_no_trace(desk: EventsDesk) -> None:
    for arguments in (("--json",), ()):
        said = await desk.run("show", "COMPLETED", *arguments)
        assert said.code == 0
        assert "asha.nair@example.com" not in said.out
        assert "+910000000001" not in said.out
        assert "asha.nair@okbank" not in said.out
        assert MASK in said.out
        assert sample.payment_id(1) in said.out
    assert await desk.audited() == []
    row = await desk.event("COMPLETED")
    by_id = await desk.run("show", str(row["_id"]), "--json")
    assert by_id.json["eventId"] == "COMPLETED"
    assert by_id.json["body"]["payload"]["payment"]["entity"]["email"] == MASK


@pytest.mark.asyncio
async def test_show_reveals_only_when_told_and_the_audit_log_keeps_who_did(desk: EventsDesk) -> None:
    said = await desk.run("show", "COMPLETED", "--reveal", "--json")
    assert said.json["body"] == sample.captured(1)
    (entry,) = await desk.audited()
    assert (entry["actor"], entry["command"], entry["count"]) == (getpass.getuser(), "events show --reveal", 1)
    assert entry["filter"] == {"eventId": "COMPLETED"}


@pytest.mark.asyncio
async def test_show_keeps_bytes_that_are_no_json_to_itself_unless_told(desk: EventsDesk) -> None:
    assert "asha@example.com" not in (await desk.run("show", "DEAD", "--json")).out
    assert "asha@example.com" in (await desk.run("show", "DEAD", "--reveal", "--json")).out


@pytest.mark.asyncio
async def test_show_of_an_event_that_does_not_exist_is_refused(desk: EventsDesk) -> None:
    said = await desk.run("show", "NOBODY")
    assert (said.code, said.out) == (1, "")
    assert "NOBODY" in said.err


# --- requeue ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_dry_run_says_what_would_be_requeued_and_changes_nothing(desk: EventsDesk) -> None:
    before = await desk.db.events.find({}).sort("_id", 1).to_list()
    said = await desk.run("requeue", "--dry-run", "--json")
    assert said.code == 0
    assert said.json == {"chosen": 2, "ready": 2, "refused": {}, "requeued": 0}
    for_people = await desk.run("requeue", "--dry-run")
    assert for_people.code == 0
    assert "2 events" in for_people.out
    assert await desk.db.events.find({}).sort("_id", 1).to_list() == before
    assert await desk.audited() == []


@pytest.mark.asyncio
async def test_without_a_filter_all_failed_and_dead_events_are_requeued(desk: EventsDesk) -> None:
    before = {name: await desk.event(name) for name in ("FAILED", "DEAD", "PARKED", "IGNORED", "COMPLETED")}
    said = await desk.run("requeue", "--yes", "--json")
    assert said.code == 0
    assert said.json == {"chosen": 2, "ready": 2, "refused": {}, "requeued": 2}
    for name in ("FAILED", "DEAD"):
        row = await desk.event(name)
        assert (row["status"], row["attempts"], row["requeues"]) == ("received", 0, 1)
        assert abs(row["nextAttemptAt"] - datetime.now(UTC)) < timedelta(minutes=1)
        assert row["rawBody"] == before[name]["rawBody"]
        assert row["_id"] == before[name]["_id"]
    failed = await desk.event("FAILED")
    assert {name: failed[name] for name in ERROR} == ERROR  # kept: it is why somebody requeued it
    for name in ("PARKED", "IGNORED", "COMPLETED"):
        assert await desk.event(name) == before[name]
    (entry,) = await desk.audited()
    assert (entry["actor"], entry["command"], entry["count"]) == (getpass.getuser(), "events requeue", 2)


@pytest.mark.asyncio
async def test_what_was_requeued_takes_effect_once(desk: EventsDesk, make_settings: SettingsMaker) -> None:
    await desk.db.orders.insert_one(sample.order(12))
    assert (await desk.run("requeue", "--yes")).code == 0
    assert (await desk.run("requeue", "COMPLETED", "--force", "--yes")).code == 0
    async with endpoint(make_settings()) as shop:
        assert (await shop.settled("FAILED"))["outcome"]["code"] == "applied"
        assert (await shop.settled("COMPLETED"))["outcome"]["code"] == "already_applied"
        assert (await shop.settled("DEAD"))["outcome"]["code"] == "unparseable"
        assert (await shop.order(12))["payment"]["status"] == "completed"
        assert len((await shop.order(1))["history"]) == 1
    assert await desk.db.ledger.count_documents({}) == 2


@pytest.mark.asyncio
async def test_a_parked_event_stays_parked_due_now_with_a_new_deadline(desk: EventsDesk) -> None:
    said = await desk.run("requeue", "PARKED", "--yes")
    assert said.code == 0
    row = await desk.event("PARKED")
    assert (row["status"], row["parks"], row["requeues"]) == ("parked", 0, 1)
    now = datetime.now(UTC)
    assert abs(row["nextAttemptAt"] - now) < timedelta(minutes=1)
    assert abs(row["parkedUntil"] - now - timedelta(hours=72)) < timedelta(minutes=1)


@pytest.mark.asyncio
async def test_an_ignored_event_is_evaluated_again(desk: EventsDesk) -> None:
    assert (await desk.run("requeue", "IGNORED", "--yes")).code == 0
    assert (await desk.event("IGNORED"))["status"] == "received"


@pytest.mark.asyncio
@pytest.mark.parametrize("event_id", ["PROCESSING", "ABANDONED"])
async def test_an_event_that_is_worked_on_is_refused_even_by_force(desk: EventsDesk, event_id: str) -> None:
    before = await desk.event(event_id)
    said = await desk.run("requeue", event_id, "--yes", "--force", "--json")
    assert said.code == 1
    assert set(said.json["refused"]) == {event_id}
    assert said.json["requeued"] == 0
    assert await desk.event(event_id) == before


@pytest.mark.asyncio
async def test_a_completed_event_is_requeued_only_by_force(desk: EventsDesk) -> None:
    before = await desk.event("COMPLETED")
    said = await desk.run("requeue", "COMPLETED", "--yes", "--json")
    assert said.code == 1
    assert "--force" in said.json["refused"]["COMPLETED"]
    assert await desk.event("COMPLETED") == before
    assert (await desk.run("requeue", "COMPLETED", "--yes", "--force")).code == 0
    row = await desk.event("COMPLETED")
    assert (row["status"], row["attempts"], row["requeues"]) == ("received", 0, 1)


@pytest.mark.asyncio
async def test_of_several_ids_the_refused_ones_are_named_and_the_others_requeued(desk: EventsDesk) -> None:
    said = await desk.run("requeue", "FAILED", "PROCESSING", "COMPLETED", "--yes", "--json")
    assert said.code == 1
    assert (said.json["chosen"], said.json["ready"], said.json["requeued"]) == (3, 1, 1)
    assert set(said.json["refused"]) == {"PROCESSING", "COMPLETED"}
    assert (await desk.event("FAILED"))["status"] == "received"
    for_people = await desk.run("requeue", "PROCESSING", "--yes")
    assert for_people.code == 1
    assert "PROCESSING" in for_people.out


@pytest.mark.asyncio
async def test_an_id_that_does_not_exist_stops_everything(desk: EventsDesk) -> None:
    said = await desk.run("requeue", "FAILED", "NOBODY", "--yes")
    assert said.code == 1
    assert "NOBODY" in said.err
    assert (await desk.event("FAILED"))["status"] == "failed"
    assert await desk.audited() == []


@pytest.mark.asyncio
async def test_filters_choose_and_the_audit_log_keeps_them(desk: EventsDesk) -> None:
    said = await desk.run("requeue", "--status", "dead", "--status", "parked", "--error", "waiting", "--yes", "--json")
    assert said.json["requeued"] == 1
    assert (await desk.event("PARKED"))["requeues"] == 1
    assert (await desk.event("DEAD"))["requeues"] == 0
    (entry,) = await desk.audited()
    assert entry["count"] == 1
    assert entry["filter"]["status"] == ["dead", "parked"]
    assert entry["filter"]["error"] == "waiting"


@pytest.mark.asyncio
async def test_a_second_requeue_counts_on(desk: EventsDesk) -> None:
    for _ in range(2):
        assert (await desk.run("requeue", "RECEIVED", "--yes")).code == 0
    assert (await desk.event("RECEIVED"))["requeues"] == 2
    assert len(await desk.audited()) == 2


@pytest.mark.asyncio
async def test_without_a_terminal_and_without_yes_nothing_happens(desk: EventsDesk) -> None:
    for arguments in (("--json",), ("FAILED",)):
        said = await desk.run("requeue", *arguments)
        assert said.code == 1
        assert "--yes" in said.err
    assert (await desk.event("FAILED"))["status"] == "failed"
    assert await desk.audited() == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("typed", "code", "status"), [("y\n", 0, "received"), ("n\n", 1, "failed"), ("\n", 1, "failed")]
)
async def test_on_a_terminal_it_asks(desk: EventsDesk, typed: str, code: int, status: str) -> None:
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, typed.encode())
        said = await desk.run("requeue", "FAILED", stdin=terminal)
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert said.code == code
    assert (await desk.event("FAILED"))["status"] == status


@pytest.mark.asyncio
async def test_the_old_name_takes_the_same_options(desk: EventsDesk) -> None:
    refused = await desk.run(command=OLD_NAME)
    assert (refused.code, "--yes" in refused.err) == (1, True)
    said = await desk.run("--status", "failed", "--yes", "--json", command=OLD_NAME)
    assert (said.code, said.json["requeued"]) == (0, 1)
    assert (await desk.event("FAILED"))["status"] == "received"
    assert (await desk.event("DEAD"))["status"] == "dead"


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["list", "--newer-than", "yesterday"], 2),
        (["list", "--status", "nonsense"], 2),
        (["requeue", "--nonsense"], 2),
        (["show"], 2),
    ],
    ids=["an age", "a status", "an option", "an id missing"],
)
async def test_a_wrong_argument_is_one_sentence_and_an_exit_code(
    desk: EventsDesk, arguments: list[str], code: int
) -> None:
    said = await desk.run(*arguments)
    assert said.code == code
    assert said.err + said.out


@pytest.mark.asyncio
async def test_a_database_that_does_not_answer_is_exit_code_5_and_no_address_is_shown(desk: EventsDesk) -> None:
    nowhere = "mongodb://user:hunter2@127.0.0.1:1/?directConnection=true"
    lost = Settings.model_validate(
        {**desk.settings.model_dump(), "mongodb": {"uri": nowhere, "database": "x"}, "email": {}, "razorpay": {}}
    )
    said = await EventsDesk(desk.db, lost, desk.folder).run("list")
    assert said.code == 5
    assert "hunter2" not in said.err + said.out
    assert said.err.startswith("paylatch: ")
