"""What a delivery is answered, and that the answer is true: nothing accepted is lost, nothing takes effect twice."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from multidict import CIMultiDict

from models.database import Database
from models.errors import Unavailable
from models.leases import Claim
from scripts.simulator.sender import Delivery as Sent
from scripts.simulator.sender import Sender
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import Endpoint, endpoint
from tests.support.proxy import Proxy, proxy
from tests.support.wait import eventually

ACCEPTED, DUPLICATE = "accepted", "duplicate"
ANSWERED_WITHIN = 3.6
"""The three seconds that an answer may take, and what a busy machine adds."""


def digest(body: Any) -> str:
    return hashlib.sha256(sample.encode(body)).hexdigest()


def answer(status: str, event_id: str) -> tuple[int, dict[str, str]]:
    return 200, {"status": status, "eventId": event_id}


@pytest_asyncio.fixture
async def shop(db: Database, make_settings: SettingsMaker) -> AsyncIterator[Endpoint]:
    """An endpoint and the pending orders `ord1` and `ord2`."""
    await db.orders.insert_many([sample.order(1), sample.order(2)])
    async with endpoint(make_settings()) as running:
        yield running


@pytest_asyncio.fixture
async def line(mongodb_uri: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy to the database, and the address to it."""
    async with proxy(mongodb_uri) as between:
        yield between


async def warm(shop: Endpoint) -> None:
    """Let admission open its connection: one whose first words are held back could not even begin an insert."""
    status, _ = await shop.post(sample.event("token.confirmed"), "WARM")
    assert status == 200
    await shop.settled("WARM")
    assert (await shop.post(sample.event("token.confirmed"), "WARM"))[1]["status"] == DUPLICATE


async def assert_effect_once(db: Database, *numbers: int) -> None:
    """Each order was completed by one transition, credited once and given to fulfilment once."""
    for number in numbers:
        order_id = f"ord{number}"

        async def completed(order_id: str = order_id) -> dict[str, Any] | None:
            return await db.orders.find_one({"_id": order_id, "payment.status": "completed"})

        order = await eventually(completed, f"{order_id} is completed", 20)
        assert order is not None
        assert [entry["fact"] for entry in order["history"]] == ["payment_completed"]
        assert order["version"] == 1
        assert await db.ledger.count_documents({"orderId": order_id}) == 1
        assert await db.fulfilments.count_documents({"_id": order_id}) == 1


# --- the two keys -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_new_id_with_a_new_body_is_accepted(shop: Endpoint) -> None:
    assert await shop.post(sample.captured(1), "E1") == answer(ACCEPTED, "E1")
    row = await shop.settled("E1")
    assert row["flags"] == []
    assert row["duplicates"] == {"count": 0, "lastAt": None}
    assert row["attempts"] == 1


@pytest.mark.asyncio
async def test_the_same_id_with_the_same_body_is_a_redelivery_and_is_counted(shop: Endpoint) -> None:
    await shop.post(sample.captured(1), "E1")
    before = await shop.settled("E1")
    for _ in range(3):
        assert await shop.post(sample.captured(1), "E1") == answer(DUPLICATE, "E1")
    row = await shop.event("E1")
    assert row["duplicates"]["count"] == 3
    assert row["duplicates"]["lastAt"] > before["receivedAt"]
    assert row["flags"] == []
    assert await shop.db.events.count_documents({}) == 1
    assert shop.parts.registry.get_sample_value("paylatch_webhook_duplicates_total", {"kind": "redelivery"}) == 3
    await assert_effect_once(shop.db, 1)


@pytest.mark.asyncio
async def test_a_known_body_under_a_new_id_is_a_suspected_replay_of_the_stored_event(shop: Endpoint) -> None:
    await shop.post(sample.captured(1), "E1")
    assert await shop.post(sample.captured(1), "E2") == answer(DUPLICATE, "E1")
    row = await shop.settled("E1")
    assert row["flags"] == ["suspected_replay"]
    assert row["duplicates"]["count"] == 1
    assert await shop.db.events.count_documents({}) == 1
    kind = {"kind": "suspected_replay"}
    assert shop.parts.registry.get_sample_value("paylatch_webhook_duplicates_total", kind) == 1
    await assert_effect_once(shop.db, 1)


@pytest.mark.asyncio
async def test_a_known_id_with_another_signed_body_is_accepted_under_an_id_of_its_own(shop: Endpoint) -> None:
    """A proxy that sends one constant id must not swallow money."""
    own_id = f"E1~{digest(sample.captured(2))[:12]}"
    assert await shop.post(sample.captured(1), "E1") == answer(ACCEPTED, "E1")
    assert await shop.post(sample.captured(2), "E1") == answer(ACCEPTED, own_id)
    first, second = await shop.settled("E1"), await shop.settled(own_id)
    assert first["flags"] == []
    assert second["flags"] == ["id_conflict"]
    assert second["rawBody"] == sample.encode(sample.captured(2))
    await assert_effect_once(shop.db, 1, 2)


@pytest.mark.asyncio
async def test_the_redelivery_of_an_event_under_an_id_of_its_own_is_a_plain_duplicate(shop: Endpoint) -> None:
    own_id = f"E1~{digest(sample.captured(2))[:12]}"
    await shop.post(sample.captured(1), "E1")
    await shop.post(sample.captured(2), "E1")
    for _ in range(2):
        assert await shop.post(sample.captured(2), "E1") == answer(DUPLICATE, own_id)
    row = await shop.settled(own_id)
    assert row["flags"] == ["id_conflict"]
    assert row["duplicates"]["count"] == 2
    assert (await shop.settled("E1"))["duplicates"]["count"] == 0
    assert await shop.db.events.count_documents({}) == 2


@pytest.mark.asyncio
async def test_a_known_id_and_a_known_body_of_two_events_is_a_suspected_replay_of_the_body(shop: Endpoint) -> None:
    await shop.post(sample.captured(1), "E1")
    await shop.post(sample.captured(2), "E2")
    assert await shop.post(sample.captured(2), "E1") == answer(DUPLICATE, "E2")
    assert (await shop.settled("E1"))["flags"] == []
    assert (await shop.settled("E2"))["flags"] == ["suspected_replay"]


@pytest.mark.asyncio
async def test_forty_bodies_under_one_constant_id_are_all_accepted(db: Database, make_settings: SettingsMaker) -> None:
    numbers = range(1, 11)
    await db.orders.insert_many([sample.order(number) for number in numbers])
    bodies = [make(number) for number in numbers for make in (sample.authorized, sample.captured, sample.order_paid)]
    async with endpoint(make_settings()) as shop:
        answers = await asyncio.gather(*(shop.post(body, "CONSTANT") for body in bodies))
        assert [said["status"] for _, said in answers] == [ACCEPTED] * len(bodies)
        assert len({said["eventId"] for _, said in answers}) == len(bodies)
        for _, said in answers:
            assert (await shop.settled(said["eventId"]))["status"] == "completed"
    assert await db.ledger.count_documents({}) == len(numbers)
    assert await db.fulfilments.count_documents({}) == len(numbers)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "ids",
    [(), ("",), ("a b",), ("é",), ("x" * 129,), ("E1~aaaaaaaaaaaa",), ("E1", "E2"), ("E1", "E1"), ("$ne",)],
    ids=["missing", "empty", "space", "non-ASCII", "too long", "of our own form", "two", "one twice", "operator"],
)
async def test_without_one_well_formed_id_the_body_is_the_id(shop: Endpoint, ids: tuple[str, ...]) -> None:
    raw, signed = sample.signed(sample.captured(1), None)
    headers = CIMultiDict(signed)
    for value in ids:
        headers.add("X-Razorpay-Event-Id", value)
    event_id = f"body:{digest(raw)}"
    for expected in (ACCEPTED, DUPLICATE):
        async with shop.http.post(shop.url, data=raw, headers=headers) as response:
            assert (response.status, await response.json()) == answer(expected, event_id)
    assert (await shop.settled(event_id))["flags"] == []
    assert await shop.db.events.count_documents({}) == 1


@pytest.mark.asyncio
async def test_an_event_without_id_that_comes_again_with_one_is_recognised_by_its_body(shop: Endpoint) -> None:
    event_id = f"body:{digest(sample.captured(1))}"
    assert await shop.post(sample.captured(1), None) == answer(ACCEPTED, event_id)
    assert await shop.post(sample.captured(1), "E1") == answer(DUPLICATE, event_id)


@pytest.mark.asyncio
async def test_the_longest_well_formed_id_is_kept_as_it_is(shop: Endpoint) -> None:
    event_id = "aZ0_.:-" + "x" * 121
    assert await shop.post(sample.captured(1), event_id) == answer(ACCEPTED, event_id)


@pytest.mark.asyncio
async def test_twenty_parallel_deliveries_are_one_event_with_one_effect(shop: Endpoint) -> None:
    answers = await asyncio.gather(*(shop.post(sample.captured(1), "E1") for _ in range(20)))
    assert Counter((status, said["status"]) for status, said in answers) == {
        (200, ACCEPTED): 1,
        (200, DUPLICATE): 19,
    }
    assert {said["eventId"] for _, said in answers} == {"E1"}
    row = await shop.settled("E1")
    assert (row["status"], row["outcome"]["code"]) == ("completed", "applied")
    assert row["duplicates"]["count"] == 19
    assert await shop.db.events.count_documents({}) == 1
    await assert_effect_once(shop.db, 1)


@pytest.mark.asyncio
async def test_twenty_parallel_deliveries_to_two_processes_are_one_event(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings()) as one, endpoint(make_settings()) as other:
        posts = [shop.post(sample.captured(1), "E1") for shop in (one, other) * 10]
        answers = await asyncio.gather(*posts)
        assert Counter(said["status"] for _, said in answers) == {ACCEPTED: 1, DUPLICATE: 19}
        assert (await one.settled("E1"))["duplicates"]["count"] == 19
    await assert_effect_once(db, 1)


# --- redeliveries of what is not finished -----------------------------------------------------------------------------


async def waiting(shop: Endpoint, status: str, **changes: Any) -> datetime:
    """Event E3, whose order came too late for it, in this status and not due for an hour; when it is due."""
    await shop.post(sample.captured(3), "E3")
    parked = await shop.settled("E3", "parked")
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    update = {"$set": {"status": status, "nextAttemptAt": due, **changes}}
    done = await shop.db.events.update_one({"_id": parked["_id"], "status": "parked"}, update)
    assert done.modified_count == 1
    await shop.db.orders.insert_one(sample.order(3))
    return due


@pytest.mark.asyncio
@pytest.mark.parametrize("status", ["failed", "received"])
async def test_a_redelivery_makes_a_waiting_event_due_now(shop: Endpoint, status: str) -> None:
    await waiting(shop, status)
    assert await shop.post(sample.captured(3), "E3") == answer(DUPLICATE, "E3")
    assert (await shop.settled("E3"))["outcome"]["code"] == "applied"
    await assert_effect_once(shop.db, 3)


@pytest.mark.asyncio
async def test_a_redelivery_hurries_an_event_at_most_every_five_seconds(shop: Endpoint) -> None:
    due = await waiting(shop, "failed", hurriedAt=shop.parts.engine.clock.now() - timedelta(seconds=2))
    assert await shop.post(sample.captured(3), "E3") == answer(DUPLICATE, "E3")
    assert (await shop.event("E3"))["nextAttemptAt"] == due
    earlier = {"$set": {"hurriedAt": shop.parts.engine.clock.now() - timedelta(seconds=6)}}
    await shop.db.events.update_one({"eventId": "E3"}, earlier)
    await shop.post(sample.captured(3), "E3")
    assert (await shop.settled("E3"))["outcome"]["code"] == "applied"


@pytest.mark.asyncio
async def test_a_redelivery_never_wakes_a_dead_event(shop: Endpoint) -> None:
    due = await waiting(shop, "dead")
    for event_id in ("E3", "E4", None):
        assert await shop.post(sample.captured(3), event_id) == answer(DUPLICATE, "E3")
    row = await shop.event("E3")
    assert (row["status"], row["nextAttemptAt"], row["duplicates"]["count"]) == ("dead", due, 3)
    assert (await shop.order(3))["payment"]["status"] == "pending"


# --- doubt is 503 -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_duplicate_whose_row_vanished_before_it_was_counted_is_503(
    shop: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process's insert was rolled back: an answer of 200 would lose the event."""
    await shop.post(sample.captured(1), "E1")
    await shop.settled("E1")
    seen = shop.parts.engine.admission._seen

    async def seen_and_gone(row: dict[str, Any]) -> Any:
        found = await seen(row)
        await shop.db.events.delete_one({"eventId": "E1"})
        return found

    monkeypatch.setattr(shop.parts.engine.admission, "_seen", seen_and_gone)
    assert (await shop.post(sample.captured(1), "E1"))[0] == 503
    monkeypatch.undo()
    assert await shop.post(sample.captured(1), "E1") == answer(ACCEPTED, "E1")
    await assert_effect_once(shop.db, 1)


@pytest.mark.asyncio
async def test_a_duplicate_whose_row_vanished_before_it_was_seen_is_503(
    shop: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await shop.post(sample.captured(1), "E1")
    await shop.settled("E1")
    seen = shop.parts.engine.admission._seen

    async def gone_and_seen(row: dict[str, Any]) -> Any:
        await shop.db.events.delete_one({"eventId": "E1"})
        return await seen(row)

    monkeypatch.setattr(shop.parts.engine.admission, "_seen", gone_and_seen)
    status, said = await shop.post(sample.captured(1), "E1")
    assert (status, said["error"]) == (503, "unavailable")
    assert shop.emitted[-1][1]["error"] == "Unavailable"


@pytest.mark.asyncio
async def test_only_the_vanished_one_of_several_duplicates_is_503(
    shop: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await asyncio.gather(shop.post(sample.captured(1), "E1"), shop.post(sample.captured(2), "E2"))
    await shop.settled("E1")
    await shop.settled("E2")
    seen = shop.parts.engine.admission._seen
    both = asyncio.Barrier(2)

    async def seen_and_one_gone(row: dict[str, Any]) -> Any:
        found = await seen(row)
        async with both:
            await shop.db.events.delete_one({"eventId": "E1"})
        return found

    monkeypatch.setattr(shop.parts.engine.admission, "_seen", seen_and_one_gone)
    gone, there = await asyncio.gather(shop.post(sample.captured(1), "E1"), shop.post(sample.captured(2), "E2"))
    assert gone[0] == 503
    assert there == answer(DUPLICATE, "E2")


@pytest.mark.asyncio
async def test_a_line_that_hangs_is_503_for_every_caller_and_the_retries_are_right(
    db: Database,
    make_settings: SettingsMaker,
    line: tuple[Proxy, str],
) -> None:
    between, uri = line
    numbers = range(1, 13)
    await db.orders.insert_many([sample.order(number) for number in numbers])
    async with endpoint(make_settings(mongodb={"uri": uri}, processing={"lease": 4.0})) as shop:
        between.hang()

        async def timed(number: int) -> tuple[int, float]:
            started = time.monotonic()
            status, _ = await shop.post(sample.captured(number), f"E{number}")
            return status, time.monotonic() - started

        answers = await asyncio.gather(*(timed(number) for number in numbers))
        assert [status for status, _ in answers] == [503] * len(numbers)
        assert max(took for _, took in answers) < ANSWERED_WITHIN
        between.resume()

        verdicts = await asyncio.gather(*(until_taken(shop, number) for number in numbers))
        assert set(verdicts) <= {ACCEPTED, DUPLICATE}
        await assert_effect_once(db, *numbers)
        assert await db.events.count_documents({}) == len(numbers)
        assert await db.events.count_documents({"duplicates.count": 0}) >= verdicts.count(ACCEPTED)
        for number in numbers:
            assert (await shop.settled(f"E{number}"))["status"] == "completed"


@pytest.mark.asyncio
async def test_a_line_that_loses_the_answers_is_503_and_what_was_stored_takes_effect_once(
    db: Database,
    make_settings: SettingsMaker,
    line: tuple[Proxy, str],
) -> None:
    """The insert arrived, its confirmation did not: the retry is a duplicate, and the row is worked on."""
    between, uri = line
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings(mongodb={"uri": uri}, processing={"lease": 4.0})) as shop:
        await warm(shop)
        between.hang_replies()
        started = time.monotonic()
        status, _ = await shop.post(sample.captured(1), "E1")
        assert (status, time.monotonic() - started < ANSWERED_WITHIN) == (503, True)
        assert await db.events.count_documents({"eventId": "E1"}) == 1
        between.resume()

        async def taken() -> dict[str, Any] | None:
            status, said = await shop.post(sample.captured(1), "E1")
            return said if status == 200 else None

        assert await eventually(taken, "the retry is taken") == {"status": DUPLICATE, "eventId": "E1"}
        await assert_effect_once(db, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("stored", [True, False], ids=["after it was stored", "before it was stored"])
async def test_a_connection_that_is_cut_while_an_insert_is_under_way_loses_and_doubles_nothing(
    db: Database,
    make_settings: SettingsMaker,
    line: tuple[Proxy, str],
    stored: bool,  # noqa: FBT001
) -> None:
    between, uri = line
    numbers = range(1, 9)
    await db.orders.insert_many([sample.order(number) for number in numbers])
    async with endpoint(make_settings(mongodb={"uri": uri}, processing={"lease": 4.0})) as shop:
        await warm(shop)
        between.hang_replies() if stored else between.hang()
        posts = [asyncio.create_task(shop.post(sample.captured(number), f"E{number}")) for number in numbers]
        if stored:
            await eventually(lambda: db.events.count_documents({"eventType": "payment.captured"}), "it is stored")
        else:
            await eventually(lambda: submitted(shop), "the first batch is under way")
        between.cut(refuse=True)
        answers = await asyncio.gather(*posts)
        assert {status for status, _ in answers} == {503}
        between.resume()

        verdicts = await asyncio.gather(*(until_taken(shop, number) for number in numbers))
        assert set(verdicts) <= {ACCEPTED, DUPLICATE}
        assert DUPLICATE in verdicts or not stored
        await assert_effect_once(db, *numbers)
        assert await db.events.count_documents({"eventType": "payment.captured"}) == len(numbers)


async def until_taken(shop: Endpoint, number: int) -> str:
    """As the provider does: again after anything but a 200."""

    async def said() -> str | None:
        status, body = await shop.post(sample.captured(number), f"E{number}")
        return str(body["status"]) if status == 200 else None

    return str(await eventually(said, f"E{number} is taken"))


async def submitted(shop: Endpoint) -> bool:
    return shop.parts.engine.admission._inserts._task is not None


@pytest.mark.asyncio
async def test_an_insert_whose_answer_was_cut_off_is_still_the_callers_own(
    db: Database,
    make_settings: SettingsMaker,
    line: tuple[Proxy, str],
) -> None:
    """The driver asks again on a new connection, and what it finds is our own row: accepted, not a duplicate."""
    between, uri = line
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings(mongodb={"uri": uri}, processing={"lease": 4.0})) as shop:
        await warm(shop)
        between.hang_replies()
        post = asyncio.create_task(shop.post(sample.captured(1), "E1"))
        await eventually(lambda: db.events.count_documents({"eventId": "E1"}), "the row is stored")
        between.cut()
        between.resume()
        assert await post == answer(ACCEPTED, "E1")
        assert (await shop.settled("E1"))["duplicates"]["count"] == 0
        await assert_effect_once(db, 1)


# --- callers that leave, work that waits ------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_caller_that_leaves_does_not_take_its_event_along(
    db: Database,
    make_settings: SettingsMaker,
    line: tuple[Proxy, str],
) -> None:
    between, uri = line
    await db.orders.insert_many([sample.order(1), sample.order(2)])
    async with (
        endpoint(make_settings(mongodb={"uri": uri}, processing={"lease": 4.0})) as shop,
        Sender(shop.url) as sender,
    ):
        between.hang()
        await sender.abandon(Sent(sample.encode(sample.captured(1)), "E1", sample.SECRET))
        await eventually(lambda: submitted(shop), "the first insert is under way")
        stays = asyncio.create_task(shop.post(sample.captured(2), "E2"))
        between.resume()
        assert await stays == answer(ACCEPTED, "E2")
        assert (await shop.settled("E1"))["outcome"]["code"] == "applied"
        await assert_effect_once(db, 1, 2)


@pytest.mark.asyncio
async def test_a_deadline_that_passes_never_cancels_the_insert(
    db: Database,
    make_settings: SettingsMaker,
    line: tuple[Proxy, str],
) -> None:
    """Nor the inserts of those who share its batch; each retry then is a duplicate."""
    between, uri = line
    numbers = (1, 2, 3)
    await db.orders.insert_many([sample.order(number) for number in numbers])
    settings = make_settings(mongodb={"uri": uri}, http={"answer_deadline": 0.3})
    async with endpoint(settings) as shop:
        between.hang()
        answers = await asyncio.gather(*(shop.post(sample.captured(number), f"E{number}") for number in numbers))
        assert [status for status, _ in answers] == [503] * 3
        between.resume()
        for number in numbers:
            assert (await shop.settled(f"E{number}"))["outcome"]["code"] == "applied"
            assert await shop.post(sample.captured(number), f"E{number}") == answer(DUPLICATE, f"E{number}")
        await assert_effect_once(db, *numbers)


@pytest.mark.asyncio
async def test_the_answer_does_not_wait_until_a_locked_order_is_free(shop: Endpoint) -> None:
    async with shop.db.client.start_session() as session:
        await session.start_transaction()
        await shop.db.orders.update_one({"_id": "ord1"}, {"$set": {"note": "mine"}}, session=session)
        started = time.monotonic()
        assert await shop.post(sample.captured(1), "E1") == answer(ACCEPTED, "E1")
        assert time.monotonic() - started < 1
        row = await shop.event("E1")
        assert row["status"] in {"processing", "failed"}
        await session.abort_transaction()

    async def redelivered() -> bool:
        """What was put off because of the conflict is due again at once when the provider asks again."""
        await shop.db.events.update_one({"eventId": "E1"}, {"$unset": {"hurriedAt": ""}})
        await shop.post(sample.captured(1), "E1")
        return bool((await shop.event("E1"))["status"] == "completed")

    assert await eventually(redelivered, "E1 is completed")
    assert (await shop.event("E1"))["attempts"] == 1  # a conflict is no attempt
    await assert_effect_once(shop.db, 1)


@pytest.mark.asyncio
async def test_the_answer_does_not_wait_for_a_free_worker(db: Database, make_settings: SettingsMaker) -> None:
    """With its one worker busy the row is stored as `received`, and claimed when the worker is free."""
    await db.orders.insert_many([sample.order(1), sample.order(2)])
    async with endpoint(make_settings(processing={"workers": 1})) as shop:
        busy = shop.parts.engine.lanes.reserve("another lane")
        assert busy is not None
        assert await shop.post(sample.captured(1), "E1") == answer(ACCEPTED, "E1")
        row = await shop.event("E1")
        assert (row["status"], row["attempts"], row.get("lease")) == ("received", 0, None)
        shop.parts.engine.lanes.release(busy)
        assert (await shop.settled("E1"))["attempts"] == 1
        await assert_effect_once(db, 1)


@pytest.mark.asyncio
async def test_an_event_that_is_accepted_right_before_the_end_is_not_lost(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    """The process ends, with all workers busy; the next one finds what was only stored."""
    numbers = range(1, 7)
    await db.orders.insert_many([sample.order(number) for number in numbers])
    async with endpoint(make_settings(processing={"workers": 1, "drain": 0.01})) as first:
        for number in numbers:
            assert await first.post(sample.captured(number), f"E{number}") == answer(ACCEPTED, f"E{number}")
    async with endpoint(make_settings()) as second:
        for number in numbers:
            assert (await second.settled(f"E{number}"))["status"] == "completed"
    await assert_effect_once(db, *numbers)


@pytest.mark.asyncio
async def test_a_failure_before_the_insert_gives_the_kept_worker_back(
    shop: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_clock(*_: object) -> Claim:
        raise Unavailable("the clock is not fresh")

    with monkeypatch.context() as patched:
        patched.setattr("webhook.admission.Claim.of", no_clock)
        status, _ = await shop.post(sample.captured(1), "E1")
    assert status == 503
    lane = sample.provider_order_id(1)
    reservation = shop.parts.engine.lanes.reserve(lane)
    assert reservation is not None, "the lane of the order would be blocked for ever"
    shop.parts.engine.lanes.release(reservation)


@pytest.mark.asyncio
async def test_more_waiting_than_the_database_takes_is_refused_at_once(
    shop: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.coalesce.Coalescer.full", True)
    status, _ = await shop.post(sample.captured(1), "E1")
    assert (status, await shop.db.events.count_documents({})) == (503, 0)
