"""`paylatch orders review`, run as an operator runs it: real processes on a shop's database."""

from __future__ import annotations

import asyncio
import getpass
import os
import pty
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from models.database import Database
from models.facts import DecisionFact
from scripts.decide import decide
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.desk import Desk, Said
from tests.support.endpoint import endpoint
from webhook.own_messages import review_event_id

ME = getpass.getuser()
WHY = ("--why", "agreed by phone")
LESS, OTHER, LATE, TWICE = (sample.payment_id(number) for number in (1, 2, 3, 4))
BOTH = f"`amount_mismatch {LESS}`, `paid_after_link_expired {LESS}`"


class ReviewDesk(Desk):
    """An operator who decides."""

    async def review(self, *arguments: str, stdin: int | None = None) -> Said:
        return await self.run("orders", "review", *arguments, stdin=stdin)

    async def payment(self, number: int) -> Any:
        order = await self.db.orders.find_one({"_id": f"ord{number}"})
        assert order is not None
        return order["payment"]

    async def state(self, number: int, nth: int = 0) -> tuple[Any, ...]:
        payment = await self.payment(number)
        entry = payment["review"][nth]
        return payment["status"], entry["state"], entry.get("by"), entry.get("why")


@dataclass(frozen=True)
class Dying(ReviewDesk):
    """An operator whose process is killed on its way; its leases are short."""

    point: str = "webhook.claimed"

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "PAYLATCH_PROCESSING__LEASE": "1", "PAYLATCH_CRASH_POINT": self.point}


@pytest_asyncio.fixture
async def desk(db: Database, make_settings: SettingsMaker, tmp_path: Path) -> AsyncIterator[ReviewDesk]:
    """1: less money, 2: another currency, 3: cancelled before it came, 4: paid twice, 5: unreadable, 6: nothing."""
    await db.orders.insert_many([sample.order(number) for number in (1, 2, 4, 5, 6)])
    await db.orders.insert_one(sample.order(3, status="cancelled"))
    async with endpoint(make_settings()) as shop:
        for number, changes in (
            (1, {"amount": 49_000}),
            (2, {"currency": "USD"}),
            (3, {}),
            (4, {}),
            (4, {"letter": "B", "created_at": sample.CREATED + 60}),
            (5, {"amount": "499.00"}),
        ):
            event_id = f"E{number}{changes.get('letter', 'A')}"
            assert await shop.processed(sample.captured(number, **changes), event_id) == "completed/applied"
    yield ReviewDesk(db, make_settings(), tmp_path)


# --- list and show ----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_open_entries_of_all_orders_are_listed(desk: ReviewDesk) -> None:
    listed = (await desk.review("list", "--json")).json
    assert {(each["orderId"], each["reason"], each["ref"], each["state"]) for each in listed} == {
        ("ord1", "amount_mismatch", LESS, "open"),
        ("ord2", "currency_mismatch", OTHER, "open"),
        ("ord3", "paid_after_cancelled", LATE, "open"),
        ("ord4", "duplicate_capture", sample.payment_id(4, "B"), "open"),
        ("ord5", "amount_unreadable", sample.payment_id(5), "open"),
    }
    less = next(each for each in listed if each["orderId"] == "ord1")
    assert (less["orderNumber"], less["amount"], less["expectedAmount"]) == ("TEA-1", 49_000, 49_900)
    assert less["since"]
    for_people = await desk.review("list")
    assert for_people.out.startswith("5 review entries")
    assert len((await desk.review("list", "--limit", "1", "--json")).json) == 1


@pytest.mark.asyncio
async def test_closed_entries_are_listed_only_when_asked_for(desk: ReviewDesk) -> None:
    assert (await desk.review("reject", "ord1", *WHY, "--yes")).code == 0
    assert "ord1" not in {each["orderId"] for each in (await desk.review("list", "--json")).json}
    every = {each["orderId"]: each for each in (await desk.review("list", "--all", "--json")).json}
    assert (every["ord1"]["state"], every["ord1"]["by"], every["ord1"]["why"]) == ("rejected", ME, WHY[1])
    assert "agreed by phone" in (await desk.review("list", "--all")).out


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("order", "does"),
    [
        ("ord1", "completes the order with ₹490.00"),
        ("ord2", "completes the order with $499.00"),
        ("ord3", "completes the order with ₹499.00"),
        ("ord4", "only closes the entry: the order is paid by another payment"),
        ("ord5", "only closes the entry: its amount cannot be counted"),
    ],
)
async def test_show_says_what_accepting_would_do(desk: ReviewDesk, order: str, does: str) -> None:
    (told,) = (await desk.review("show", order, "--json")).json
    assert told["accepting"] == does
    assert does in (await desk.review("show", order)).out


@pytest.mark.asyncio
async def test_accepting_wrong_money_of_a_cancelled_order_says_that_another_decision_follows(desk: ReviewDesk) -> None:
    await desk.db.orders.update_one({"_id": "ord1"}, {"$set": {"payment.status": "cancelled"}})
    (told,) = (await desk.review("show", "ord1", "--json")).json
    assert told["accepting"] == f"closes the entry; then paid_after_cancelled of {LESS} is to be decided"
    assert (await desk.review("accept", "ord1", *WHY, "--yes")).code == 0
    assert (await desk.review("accept", "ord1", "paid_after_cancelled", *WHY, "--yes")).code == 0
    assert (await desk.payment(1))["status"] == "completed"


# --- accept and reject ------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_accepted_money_completes_the_order_once_and_leaves_its_trace(desk: ReviewDesk) -> None:
    said = await desk.review("accept", "TEA-1", "amount_mismatch", LESS, *WHY, "--yes")
    assert (said.code, said.out.splitlines()[-1]) == (0, f"accepted amount_mismatch of {LESS}; the order is completed")
    assert await desk.state(1) == ("completed", "accepted", ME, WHY[1])
    assert (await desk.payment(1))["amountPaid"] == 49_000
    assert await desk.db.fulfilments.count_documents({"_id": "ord1"}) == 1
    row = await desk.event(review_event_id("ord1", "amount_mismatch", LESS))
    assert (row["origin"], row["provider"], row["status"]) == ("operator", "paylatch", "completed")
    (entry,) = await desk.audited()
    assert (entry["actor"], entry["command"], entry["count"]) == (ME, "orders review accept", 1)
    assert entry["filter"] == {"orderId": "ord1", "reason": "amount_mismatch", "ref": LESS, "why": WHY[1]}
    again = await desk.review("accept", "TEA-1", *WHY, "--yes")
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith(f"paylatch: amount_mismatch of {LESS} is closed already: {ME} accepted it on 20")
    assert await desk.db.ledger.count_documents({"orderId": "ord1"}) == 1
    assert len(await desk.audited()) == 1


@pytest.mark.asyncio
async def test_a_rejected_entry_is_closed_and_moves_nothing(desk: ReviewDesk) -> None:
    said = await desk.review("reject", LESS, *WHY, "--yes", "--json")
    assert (said.code, said.json["applied"], said.json["decision"]) == (0, True, "rejected")
    assert await desk.state(1) == ("pending", "rejected", ME, WHY[1])
    assert await desk.db.fulfilments.count_documents({"_id": "ord1"}) == 0


@pytest.mark.asyncio
async def test_money_of_a_cancelled_order_completes_it_when_accepted(desk: ReviewDesk) -> None:
    assert (await desk.review("accept", "ord3", *WHY, "--yes")).code == 0
    assert await desk.state(3) == ("completed", "accepted", ME, WHY[1])
    assert await desk.db.fulfilments.count_documents({"_id": "ord3"}) == 1


@pytest.mark.asyncio
async def test_what_can_only_be_closed_completes_nothing(desk: ReviewDesk) -> None:
    said = await desk.review("accept", "ord5", *WHY, "--yes", "--json")
    assert (said.code, said.json["does"]) == (0, "only closes the entry: its amount cannot be counted")
    assert await desk.state(5) == ("pending", "accepted", ME, WHY[1])


@pytest.mark.asyncio
async def test_a_dry_run_or_nobody_to_confirm_changes_nothing(desk: ReviewDesk) -> None:
    before = await desk.payment(1)
    dry = await desk.review("accept", "ord1", *WHY, "--dry-run", "--json")
    assert (dry.code, dry.json["does"], dry.json["applied"]) == (0, "completes the order with ₹490.00", False)
    shown = await desk.review("reject", "ord1", *WHY, "--dry-run")
    assert (shown.code, "closes the entry and moves nothing" in shown.out) == (0, True)
    nobody = await desk.review("accept", "ord1", *WHY)
    assert (nobody.code, "add --yes" in nobody.err) == (1, True)
    assert await desk.payment(1) == before
    assert await desk.audited() == []
    assert await desk.db.events.count_documents({"origin": "operator"}) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(("typed", "code", "state"), [("y\n", 0, "accepted"), ("\n", 1, "open")])
async def test_on_a_terminal_it_asks(desk: ReviewDesk, typed: str, code: int, state: str) -> None:
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, typed.encode())
        said = await desk.review("accept", "ord1", *WHY, stdin=terminal)
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert (said.code, (await desk.state(1))[1]) == (code, state)


@pytest.mark.asyncio
async def test_what_cannot_be_decided_is_one_sentence_and_exit_1(desk: ReviewDesk) -> None:
    more = {"reason": "paid_after_link_expired", "ref": LESS, "state": "open", "amount": 49_000, "currency": "INR"}
    await desk.db.orders.update_one({"_id": "ord1"}, {"$push": {"payment.review": more}})
    for arguments, sentence in (
        (("ord6",), "order ord6 has no review entry"),
        (("nobody",), "there is no order nobody"),
        (
            ("ord1",),
            f"order ord1 has 2 open review entries, say which: {BOTH}",
        ),
        (
            ("ord2", "amount_mismatch"),
            f"order ord2 has no such review entry; open are: `currency_mismatch {OTHER}`",
        ),
    ):
        said = await desk.review("accept", *arguments, *WHY, "--yes")
        assert (said.code, said.out, said.err) == (1, "", f"paylatch: {sentence}\n")
    assert (await desk.review("accept", "ord2", "--yes")).code == 2, "why is required"
    empty = await desk.review("accept", "ord2", "--why", " ", "--yes")
    assert (empty.code, "--why" in empty.err) == (2, True)
    assert await desk.audited() == []


# --- once ------------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_of_two_operators_at_once_the_first_counts_and_the_other_is_told(desk: ReviewDesk) -> None:
    both = await asyncio.gather(
        desk.review("accept", "ord1", "--why", "good enough", "--yes", "--json"),
        desk.review("reject", "ord1", "--why", "too little", "--yes", "--json"),
    )
    assert sorted(said.code for said in both) == [0, 1]
    loser = next(said for said in both if said.code == 1)
    assert "is closed already: " in (loser.json["says"] if loser.out else loser.err)
    accepted = both[0].code == 0
    assert (await desk.state(1))[:2] == (("completed", "accepted") if accepted else ("pending", "rejected"))
    assert await desk.db.events.count_documents({"origin": "operator"}) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("point", ["webhook.inserted", "webhook.claimed", "webhook.in_transaction"])
async def test_a_decision_killed_in_between_is_finished_by_any_webhook_process(
    desk: ReviewDesk, make_settings: SettingsMaker, point: str
) -> None:
    dying = Dying(desk.db, make_settings(), desk.folder, point)
    assert (await dying.review("accept", "ord1", *WHY, "--yes")).code == -9
    async with endpoint(make_settings()) as shop:
        await shop.settled(review_event_id("ord1", "amount_mismatch", LESS))
    assert await desk.state(1) == ("completed", "accepted", ME, WHY[1])
    assert await desk.db.fulfilments.count_documents({"_id": "ord1"}) == 1


@pytest.mark.asyncio
async def test_a_decision_killed_in_between_is_finished_by_the_next_operator_too(
    desk: ReviewDesk, make_settings: SettingsMaker
) -> None:
    dying = Dying(desk.db, make_settings(), desk.folder)
    assert (await dying.review("accept", "ord1", *WHY, "--yes")).code == -9
    assert (await desk.state(1))[1] == "open"
    said = await desk.review("reject", "ord1", "--why", "too little", "--yes")
    assert (said.code, f"{ME} accepted it on " in said.out, "the first decision counts" in said.out) == (1, True, True)
    assert await desk.state(1) == ("completed", "accepted", ME, WHY[1])


@pytest.mark.asyncio
async def test_a_decision_that_another_process_holds_is_said_to_be_stored(
    desk: ReviewDesk, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await Dying(desk.db, make_settings(), desk.folder).review("accept", "ord1", *WHY, "--yes")).code == -9
    event_id = review_event_id("ord1", "amount_mismatch", LESS)
    later = datetime.now(UTC) + timedelta(hours=1)
    held = {"lease.until": later, "nextAttemptAt": later}
    await desk.db.events.update_one({"eventId": event_id}, {"$set": held})
    monkeypatch.setattr("scripts.decide.SETTLED_WITHIN", 0.0)
    fact = DecisionFact("amount_mismatch", LESS, "rejected", by="asha", why="too little", at=sample.CREATED)
    made = await decide(make_settings(), "ord1", fact)
    assert (made.first, made.counts.state) == (False, "accepted")
    assert made.trouble.startswith("the decision is stored and takes effect by itself")
    assert f"`paylatch events show {event_id}`" in made.trouble


@pytest.mark.asyncio
async def test_a_decision_that_somebodys_old_copy_undid_can_be_applied_again(desk: ReviewDesk) -> None:
    before = await desk.db.orders.find_one({"_id": "ord1"})
    assert before is not None
    assert (await desk.review("accept", "ord1", *WHY, "--yes")).code == 0
    await desk.db.orders.replace_one({"_id": "ord1"}, before)
    said = await desk.review("reject", "ord1", *WHY, "--yes")
    assert said.code == 1
    event_id = review_event_id("ord1", "amount_mismatch", LESS)
    assert f"`paylatch events requeue {event_id} --force` applies it again" in said.out
    (entry,) = [entry for entry in await desk.audited() if entry["command"] == "orders review reject"]
    assert entry["count"] == 0


@pytest.mark.asyncio
async def test_a_decision_whose_order_cannot_be_read_stays_stored(desk: ReviewDesk) -> None:
    await desk.db.orders.update_one({"_id": "ord1"}, {"$set": {"payment.attempts": "gone"}})
    said = await desk.review("accept", "ord1", *WHY, "--yes")
    assert (said.code, "mend it in the shop" in said.err) == (1, True)
    rejected = await desk.review("reject", "ord1", *WHY, "--yes")
    assert (rejected.code, "its event is dead (order_unreadable" in rejected.out) == (1, True)


# --- corrected by the shop -------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("number", "event_id", "corrected", "paid"),
    [(1, "E1A", {"payment.amount": 49_000}, 49_000), (2, "E2A", {"payment.currency": "USD"}, 49_900)],
)
async def test_a_corrected_expectation_completes_the_order_and_closes_its_entry(
    desk: ReviewDesk, make_settings: SettingsMaker, number: int, event_id: str, corrected: dict[str, Any], paid: int
) -> None:
    await desk.db.orders.update_one({"_id": f"ord{number}"}, {"$set": corrected})
    for _ in range(2):
        assert (await desk.run("events", "requeue", event_id, "--force", "--yes")).code == 0
        async with endpoint(make_settings()) as shop:
            await shop.settled(event_id)
    payment = await desk.payment(number)
    assert (payment["status"], payment["amountPaid"], payment["review"][0]["state"]) == ("completed", paid, "resolved")
    assert payment["review"][0]["by"] == "the shop"
    assert await desk.db.fulfilments.count_documents({"_id": f"ord{number}"}) == 1
    late = await desk.review("accept", f"ord{number}", *WHY, "--yes")
    assert (late.code, "the shop resolved it on " in late.err) == (1, True)


@pytest.mark.asyncio
async def test_parts_allowed_after_all_complete_the_order(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings()) as shop:
        first, second = sample.captured(1, amount=20_000), sample.captured(1, letter="B", amount=29_900)
        assert await shop.processed(first, "A") == "completed/applied"
        assert await shop.processed(second, "B") == "completed/applied"
        await db.orders.update_one({"_id": "ord1"}, {"$set": {"payment.acceptPartial": True}})
        due = {"$set": {"status": "received", "nextAttemptAt": shop.parts.engine.clock.now()}}
        await db.events.update_one({"eventId": "A"}, due)
        await shop.settled("A")

        payment = (await shop.order(1))["payment"]
        assert (payment["status"], payment["amountPaid"]) == ("completed", 49_900)
        assert {entry["state"] for entry in payment["review"]} == {"resolved"}
