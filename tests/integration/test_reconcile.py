"""What a lost webhook left behind, found through the provider's API and put right: real HTTP, real database."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from bson import ObjectId

from models.database import Database
from models.errors import CredentialsRefused, ProviderUnavailable
from models.provider_ids import provider_ids
from models.settings import Settings
from models.telemetry import Telemetry
from scripts.simulator.api import Fault
from scripts.simulator.checkout import Life, Story, live
from scripts.simulator.shop import MongoShop
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import endpoint
from tests.support.provider import Provider, provider
from webhook.answers import fetched
from webhook.differences import Period, quiet
from webhook.engine import engine
from webhook.own_messages import callback_delivery
from webhook.providers import providers
from webhook.providers.razorpay_api import RazorpayApi
from webhook.reconcile import NOT_APPLIED, REPAIRED, Report, Round, Scope
from webhook.reconcile_duty import days, yesterday

CREATED = datetime.fromtimestamp(sample.CREATED, UTC)
DAY = Period(CREATED - timedelta(hours=12), CREATED + timedelta(hours=12))
STORIES: tuple[Story, ...] = (
    "paid",
    "failed_first",
    "failed",
    "late",
    "authorized_only",
    "partial_refund",
    "full_refund",
    "failed_refund",
)


@dataclass
class Bench:
    """The shop's database, the provider, and rounds between them."""

    db: Database
    fake: Provider
    settings: Settings

    async def round(self, *, apply: bool = True, orders: bool = True, period: Period | None = DAY) -> Report:
        telemetry = Telemetry()
        async with (
            RazorpayApi(self.settings.razorpay) as api,
            engine(self.settings, providers(self.settings), telemetry) as running,
        ):
            return await Round(running, api, telemetry, apply=apply).run(Scope(orders, period))

    async def status(self, number: int) -> str:
        found = await self.db.orders.find_one({"_id": f"ord{number}"})
        assert found is not None
        return str(found["payment"]["status"])

    async def booked(self) -> set[str]:
        return {entry["_id"] async for entry in self.db.ledger.find({})}

    async def book(self, ref: str, entry_type: str = "capture", **changes: Any) -> None:
        entry = {"entryType": entry_type, "refId": ref, "amount": sample.AMOUNT, "currency": "INR", "orderId": "ord9"}
        times = {"createdAt": CREATED, "updatedAt": CREATED}
        await self.db.ledger.insert_one({"_id": f"{entry_type}:{ref}", **entry, **times, **changes})

    async def alerted(self) -> set[str]:
        return {alert["_id"] async for alert in self.db.alerts.find({})}

    async def everything(self) -> dict[str, list[Any]]:
        """All that is stored, but for the indexes."""
        names = ("orders", "webhook_events", "ledger_entries", "fulfilments", "alerts", "audit_log", "watcher_state")
        return {name: await self.db.handle[name].find({}).sort("_id", 1).to_list() for name in names}


def results(report: Report) -> dict[str, str]:
    return {line.difference.ref: line.result for line in report.lines}


def found(report: Report) -> dict[str, str]:
    return {line.difference.ref: line.difference.missing for line in report.lines}


@pytest_asyncio.fixture
async def bench(db: Database, make_settings: SettingsMaker) -> AsyncIterator[Bench]:
    async with provider() as fake:
        yield Bench(db, fake, make_settings(razorpay={**fake.section, "api_retries": 1}))


@pytest.mark.asyncio
async def test_an_order_whose_webhook_was_lost_completes(bench: Bench) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.order(1)
    bench.fake.payment(1)
    report = await bench.round()
    assert results(report) == {sample.payment_id(1): REPAIRED}
    assert await bench.status(1) == "completed"
    assert await bench.booked() == {f"capture:{sample.payment_id(1)}"}
    assert await bench.db.fulfilments.count_documents({}) == 1
    order = await bench.db.orders.find_one({"_id": "ord1"})
    assert order
    assert order["history"][0]["cause"]["origin"] == "reconcile"


@pytest.mark.asyncio
async def test_a_second_round_finds_nothing_and_writes_nothing(bench: Bench) -> None:
    await bench.db.orders.insert_many([sample.order(1), sample.order(2)])
    for number in (1, 2):
        bench.fake.order(number)
    bench.fake.payment(1)
    bench.fake.payment(2, "failed")
    bench.fake.refund(1)
    assert (await bench.round()).repaired == 3
    before = await bench.everything()
    assert (await bench.round()).lines == []
    assert await bench.everything() == before


@pytest.mark.asyncio
async def test_a_dry_run_finds_all_and_changes_nothing(bench: Bench) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.order(1)
    bench.fake.payment(1)
    bench.fake.payment(1, "failed", letter="F")
    bench.fake.refund(1)
    await bench.book(sample.payment_id(9))
    before = await bench.everything()
    report = await bench.round(apply=False)
    assert found(report) == {
        sample.payment_id(1): "here",
        sample.payment_id(1, "F"): "here",
        sample.refund_id(1): "here",
        sample.payment_id(9): "there",
    }
    assert set(results(report).values()) == {NOT_APPLIED}
    assert report.remaining == 4
    assert await bench.everything() == before


@pytest.mark.asyncio
@pytest.mark.parametrize("story", STORIES)
async def test_every_story_ends_as_if_no_webhook_had_been_lost(bench: Bench, story: Story) -> None:
    """Half of the events never arrive, in every story: the round brings the rest."""
    rng = random.Random(story)
    lives = [live(rng, f"PL-{n}", sample.CREATED, sample.ACCOUNT, story) for n in range(2)]
    bench.fake.api.live(lives)
    shop = MongoShop(bench.db, rng)
    await shop.insert([life.order for life in lives])
    async with endpoint(bench.settings) as webhook:
        for n, body in enumerate(_lost_every_other(lives)):
            await webhook.post(body, f"EVENT{n}")
            await webhook.settled(f"EVENT{n}")
    report = await bench.round()
    assert report.remaining == 0
    truth = {life.order["_id"]: life.truth for life in lives}
    assert await shop.differing(truth) == []
    captures = {entry for known in truth.values() for entry in known.ledger}
    assert {entry for entry in await bench.booked() if not entry.startswith("refund_reversal")} >= captures


def _lost_every_other(lives: list[Life]) -> list[dict[str, Any]]:
    return [body for life in lives for body in life.bodies][::2]


@pytest.mark.asyncio
async def test_an_order_that_lists_lag_behind_is_repaired_by_its_id(bench: Bench) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.order(1)
    bench.fake.payment(1)
    bench.fake.api.lag = 10
    until_now = Period(DAY.since, datetime.now(UTC) + timedelta(hours=1))
    assert results(await bench.round(period=until_now)) == {sample.payment_id(1): REPAIRED}
    again = await bench.round(period=until_now)
    assert again.looked["ledger"] == 1
    assert again.lines == [], "the list lacks it still, but by its id it is there"
    assert await bench.alerted() == set()


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [99, 100, 101, 200])
async def test_the_ledger_and_a_long_list_are_compared_to_the_last_item(bench: Bench, count: int) -> None:
    made = [bench.fake.payment(n, created_at=sample.CREATED + n)["id"] for n in range(1, count + 1)]
    for payment_id in made[1:-1]:
        await bench.book(payment_id)
    report = await bench.round(apply=False, orders=False)
    assert found(report) == {made[0]: "here", made[-1]: "here"}
    assert (report.looked["payments"], report.looked["ledger"]) == (count, count - 2)


@pytest.mark.asyncio
async def test_money_that_is_booked_here_and_unknown_there_is_an_alert_and_stays(bench: Bench) -> None:
    await bench.book(sample.payment_id(9))
    await bench.book(sample.refund_id(9), "refund")
    await bench.book("ch_of_another_provider")
    report = await bench.round()
    assert found(report) == {sample.payment_id(9): "there", sample.refund_id(9): "there"}
    assert report.remaining == 2
    kind = "ledger_unknown_to_provider"
    assert await bench.alerted() == {f"{kind}:{sample.payment_id(9)}", f"{kind}:{sample.refund_id(9)}"}
    assert len(await bench.booked()) == 3


@pytest.mark.asyncio
@pytest.mark.parametrize("lag", [0, 1], ids=["listed", "by id"])
@pytest.mark.parametrize(
    ("booked", "there"),
    [({"amount": 1}, {}), ({"currency": "USD"}, {}), ({}, {"status": "authorized", "captured": True})],
)
async def test_what_both_know_differently_is_an_alert(
    bench: Bench, booked: dict[str, Any], there: dict[str, Any], lag: int
) -> None:
    await bench.book(sample.payment_id(1), **booked)
    bench.fake.order(1)
    bench.fake.payment(1, **there)
    bench.fake.api.lag = lag
    report = await bench.round(orders=False)
    assert found(report) == {sample.payment_id(1): "differs"}
    assert report.remaining == 1
    assert await bench.alerted() == {f"ledger_differs:{sample.payment_id(1)}"}


@pytest.mark.asyncio
async def test_a_refund_that_nobody_heard_of_is_booked_with_its_capture(bench: Bench) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.order(1)
    bench.fake.payment(1, "refunded", captured=True, amount_refunded=sample.AMOUNT)
    bench.fake.refund(1)
    report = await bench.round(orders=False)
    assert report.remaining == 0
    assert await bench.booked() == {f"capture:{sample.payment_id(1)}", f"refund:{sample.refund_id(1)}"}
    assert await bench.status(1) == "refunded"


@pytest.mark.asyncio
async def test_a_booked_refund_that_failed_later_is_reversed(bench: Bench) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.order(1)
    bench.fake.payment(1)
    bench.fake.refund(1)
    await bench.round()
    assert await bench.status(1) == "refunded"
    bench.fake.refund(1, "failed")
    report = await bench.round()
    assert results(report) == {sample.refund_id(1): REPAIRED}
    assert f"refund_reversal:{sample.refund_id(1)}" in await bench.booked()
    assert await bench.status(1) == "completed"
    assert (await bench.round()).lines == []


@pytest.mark.asyncio
async def test_webhook_and_round_in_the_same_moment_credit_once(bench: Bench) -> None:
    numbers = range(1, 9)
    await bench.db.orders.insert_many([sample.order(number) for number in numbers])
    for number in numbers:
        bench.fake.order(number)
        bench.fake.payment(number)
    async with endpoint(bench.settings) as webhook:
        posts = (webhook.post(sample.captured(number), f"EVENT{number}") for number in numbers)
        report, *_ = await asyncio.gather(bench.round(), *posts)
        for number in numbers:
            await webhook.settled(f"EVENT{number}")
    assert report.remaining == 0
    async for order in bench.db.orders.find({}):
        assert [entry["fact"] for entry in order["history"]].count("payment_completed") == 1
    assert await bench.db.ledger.count_documents({}) == len(numbers)
    assert await bench.db.fulfilments.count_documents({}) == len(numbers)


@pytest.mark.asyncio
async def test_a_restored_order_is_repaired_by_the_event_that_is_completed_already(bench: Bench) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.order(1)
    bench.fake.payment(1)
    await bench.round()
    await bench.db.orders.replace_one({"_id": "ord1"}, sample.order(1))
    await bench.db.ledger.delete_many({})
    assert results(await bench.round()) == {sample.payment_id(1): REPAIRED}
    assert await bench.status(1) == "completed"
    assert await bench.db.events.count_documents({}) == 1


@pytest.mark.asyncio
async def test_money_of_no_order_waits_for_it_and_keeps_its_deadline(bench: Bench) -> None:
    bench.fake.order(7)
    bench.fake.payment(7)
    report = await bench.round()
    assert results(report) == {sample.payment_id(7): "parked: waiting_for_order"}
    first = await bench.db.events.find_one({})
    assert first
    await bench.round()
    again = await bench.db.events.find_one({})
    assert again
    assert again["parkedUntil"] == first["parkedUntil"]
    await bench.db.orders.insert_one(sample.order(7))
    assert results(await bench.round()) == {sample.payment_id(7): REPAIRED}
    assert await bench.status(7) == "completed"


@pytest.mark.asyncio
async def test_money_that_names_no_order_is_of_another_product(bench: Bench) -> None:
    bench.fake.payment(8, order_id=None)
    report = await bench.round()
    assert report.lines == []
    assert report.looked["foreign"] == 1
    assert await bench.db.events.count_documents({}) == 0


@pytest.mark.asyncio
async def test_configured_accounts_do_not_shut_our_own_messages_out(bench: Bench, make_settings: SettingsMaker) -> None:
    bench.settings = make_settings(razorpay={**bench.fake.section, "account_ids": ("acc_Ours",)})
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.order(1)
    bench.fake.payment(1)
    assert (await bench.round()).repaired == 1


@pytest.mark.asyncio
async def test_a_deleted_ledger_entry_is_for_a_person(bench: Bench) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.order(1)
    bench.fake.payment(1)
    await bench.round()
    await bench.db.ledger.delete_many({})
    report = await bench.round()
    assert found(report) == {sample.payment_id(1): "here"}
    assert report.remaining == 1


@pytest.mark.asyncio
async def test_money_that_does_not_fit_goes_to_review_and_is_known_then(bench: Bench) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.order(1)
    bench.fake.payment(1, amount=100)
    assert results(await bench.round()) == {sample.payment_id(1): REPAIRED}
    assert await bench.status(1) == "pending"
    assert f"payment_review:amount_mismatch:{sample.payment_id(1)}" in await bench.alerted()
    assert (await bench.round()).lines == []


@pytest.mark.asyncio
async def test_known_captures_complete_once_the_providers_order_says_that_it_is_paid(
    bench: Bench, make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paid in two parts by a link of which nothing was heard: only the provider's order says that both belong."""
    bench.settings = make_settings(razorpay=bench.fake.section, reconcile={"older_than": 0.001})
    monkeypatch.setattr("webhook.processing.PATIENCE", 0)
    await bench.db.orders.insert_one(sample.order(1, paymentLinkId=sample.link_id(1)))
    bench.fake.api.show("payment_link", sample.link(1))
    parts = {"A": 20_000, "B": sample.AMOUNT - 20_000}
    async with endpoint(bench.settings) as webhook:
        for letter, amount in parts.items():
            await webhook.processed(sample.captured(1, letter=letter, amount=amount), f"PART{letter}")
            bench.fake.payment(1, letter=letter, amount=amount)
    assert await bench.status(1) == "pending"
    bench.fake.order(1, status="paid", amount_paid=sample.AMOUNT, amount_due=0)
    assert (await bench.round()).remaining == 0
    assert await bench.status(1) == "completed"


@pytest.mark.asyncio
async def test_an_order_that_the_provider_does_not_know_is_reported(bench: Bench) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    report = await bench.round()
    assert found(report) == {sample.provider_order_id(1): "there"}
    assert report.remaining == 1


@pytest.mark.asyncio
async def test_only_quiet_unpaid_orders_are_asked_for(bench: Bench) -> None:
    now = datetime.now(UTC)
    ages = {1: timedelta(minutes=1), 2: timedelta(hours=1), 3: timedelta(days=30)}
    for number, age in ages.items():
        await bench.db.orders.insert_one({**sample.order(number), "createdAt": now - age})
    await bench.db.orders.insert_one({**sample.order(4), "_id": ObjectId.from_datetime(now - timedelta(days=30))})
    await bench.db.orders.insert_one({**sample.order(5, status="completed"), "createdAt": now - timedelta(hours=1)})
    await bench.db.orders.insert_one({**sample.order(6, status="failed")})
    report = await bench.round(period=None)
    asked = {sample.provider_order_id(number) for number in (2, 6)}
    assert {path.split("/")[3] for path in bench.fake.api.requests} == asked
    assert report.looked["orders"] == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", [Fault(429, retry_after="0"), Fault(500), Fault(502, html=True)])
async def test_an_answer_that_fails_once_does_not_end_the_round(bench: Bench, fault: Fault) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.order(1)
    bench.fake.payment(1)
    bench.fake.api.faults.append(fault)
    assert (await bench.round()).repaired == 1


@pytest.mark.asyncio
async def test_what_was_repaired_before_an_outage_stays_and_the_next_round_goes_on(bench: Bench) -> None:
    await bench.db.orders.insert_many([sample.order(1), sample.order(2)])
    for number in (1, 2):
        bench.fake.order(number)
        bench.fake.payment(number)

    def outage(path: str) -> None:
        if path == "/v1/payments":
            bench.fake.api.always = Fault(503)

    bench.fake.api.answered = outage
    with pytest.raises(ProviderUnavailable):
        await bench.round()
    bench.fake.api.always = bench.fake.api.answered = None
    assert await bench.status(1) == await bench.status(2) == "completed"
    assert (await bench.round()).lines == []


@pytest.mark.asyncio
async def test_a_wrong_key_ends_the_round_before_anything_is_said_about_orders(bench: Bench) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.api.key_secret = "another"
    with pytest.raises(CredentialsRefused):
        await bench.round()
    assert await bench.alerted() == set()


@pytest.mark.asyncio
async def test_hostile_answers_are_differences_and_never_a_crash(bench: Bench) -> None:
    await bench.db.orders.insert_one(sample.order(1))
    bench.fake.order(1)
    oddities: tuple[dict[str, Any], ...] = ({"status": None}, {"status": 7}, {"amount": "499.00"}, {"order_id": [1]})
    for letter, changes in zip("ABCD", oddities, strict=True):
        bench.fake.payment(1, letter=letter, **changes)
    bench.fake.refund(1, payment_id="../../x")
    report = await bench.round()
    assert sample.payment_id(1, "A") in found(report)


@pytest.mark.asyncio
async def test_a_payment_that_completed_another_order_is_no_difference_for_ever(bench: Bench) -> None:
    await bench.db.orders.insert_many([sample.order(1), sample.order(2)])
    bench.fake.order(2)
    bench.fake.payment(2)
    async with endpoint(bench.settings) as shop:
        await shop.processed(sample.captured(1, id=sample.payment_id(2)), "E1")
        await shop.processed(sample.captured(2), "E2")
    assert await bench.status(2) == "pending"
    await bench.db.orders.update_one({"_id": "ord2"}, {"$unset": {"payment.changedAt": ""}})  # long ago
    assert results(await bench.round(apply=False)) == {}


@pytest.mark.asyncio
async def test_a_callbacks_payment_is_fetched_with_its_order(bench: Bench) -> None:
    bench.fake.order(1)
    bench.fake.payment(1)
    razorpay = providers(bench.settings)["razorpay"]
    named = {"order_id": sample.provider_order_id(1), "payment_id": sample.payment_id(1), "signature": "a" * 64}
    callback = callback_delivery(razorpay, named).event
    other = callback_delivery(razorpay, {**named, "order_id": sample.provider_order_id(2)}).event
    unknown = callback_delivery(razorpay, {**named, "payment_id": sample.payment_id(5)}).event
    assert callback
    assert other
    assert unknown
    async with RazorpayApi(bench.settings.razorpay) as api:
        event = await fetched(api, razorpay, callback)
        assert event
        assert [(fact.id, fact.captured, fact.amount) for fact in event.payments] == [
            (sample.payment_id(1), True, sample.AMOUNT)
        ]
        assert event.refs.receipt == "TEA-1"
        assert await fetched(api, razorpay, other) is None
        assert await fetched(api, razorpay, unknown) is None


def test_the_days_are_whole_ones_of_the_shops_timezone() -> None:
    period = days(date(2026, 7, 1), date(2026, 7, 2), "Asia/Kolkata")
    assert period.since.isoformat() == "2026-06-30T18:30:00+00:00"
    assert period.until.isoformat() == "2026-07-02T18:30:00+00:00"
    changed = days(date(2026, 3, 29), date(2026, 3, 29), "Europe/Berlin")
    assert changed.until - changed.since == timedelta(hours=23)
    assert yesterday(datetime(2026, 7, 1, 18, 31, tzinfo=UTC), "Asia/Kolkata") == date(2026, 7, 1)


def test_the_last_sign_of_life_decides_whether_an_order_is_quiet() -> None:
    until = datetime(2026, 7, 8, tzinfo=UTC)
    since, before, within = until - timedelta(days=7), until - timedelta(days=8), until - timedelta(days=1)
    assert quiet({"_id": 1}, since, until)
    assert quiet({"_id": 1, "createdAt": "2020-01-01", "payment": "odd"}, since, until)
    assert not quiet({"_id": 1, "createdAt": before}, since, until)
    assert quiet({"_id": 1, "createdAt": before, "payment": {"changedAt": within}}, since, until)
    assert not quiet({"_id": 1, "createdAt": within, "payment": {"changedAt": until + timedelta(1)}}, since, until)
    assert not quiet({"_id": ObjectId.from_datetime(before)}, since, until)


def test_every_id_under_which_the_provider_knows_an_order_is_asked_for_once() -> None:
    refs = [
        {"provider": "razorpay", "kind": "order", "id": "order_2"},
        {"provider": "razorpay", "kind": "order", "id": "order_1"},
        {"provider": "razorpay", "kind": "payment_link", "id": "plink_1"},
        {"provider": "stripe", "kind": "order", "id": "order_3"},
        "odd",
        {},
    ]
    payment = {"razorpayOrderId": "order_1", "refs": refs}
    assert provider_ids(payment, "order", "razorpay") == ["order_1", "order_2"]
    assert provider_ids(payment, "order") == ["order_1", "order_2", "order_3"]
    assert provider_ids(payment, "payment_link") == ["plink_1"]
    for odd in (None, "odd", {}, {"razorpayOrderId": 7, "refs": "odd"}):
        assert provider_ids(odd, "order") == []
