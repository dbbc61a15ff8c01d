"""The API's client against real HTTP answers of every kind."""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from models.errors import (
    CredentialsRefused,
    PayLatchError,
    ProviderRefused,
    ProviderThrottled,
    ProviderUnavailable,
    SettingsError,
)
from models.settings import RazorpaySettings
from scripts.simulator.api import KEY_ID, KEY_SECRET, Fault
from tests.support import sample
from tests.support.provider import Provider, provider
from webhook.providers.razorpay_api import RazorpayApi

PAYMENT = sample.payment_id(1)


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[Provider]:
    """One paid order with a refund."""
    async with provider() as running:
        running.order(1)
        running.payment(1)
        running.payment(1, "failed", letter="F")
        running.refund(1)
        yield running


async def failure(fake: Provider, **changes: object) -> PayLatchError:
    async with RazorpayApi(fake.settings(**changes)) as api:
        with pytest.raises(PayLatchError) as raised:
            await api.payment(PAYMENT)
    return raised.value


@pytest.mark.asyncio
async def test_each_thing_is_found_by_its_id(fake: Provider) -> None:
    link = {"id": "plink_1", "entity": "payment_link", "status": "paid", "created_at": 1}
    fake.api.show("payment_link", link)
    async with RazorpayApi(fake.settings()) as api:
        assert await api.payment(PAYMENT) == fake.api.entities["payment"][PAYMENT]
        assert (await api.order(sample.provider_order_id(1)))["receipt"] == "TEA-1"
        assert (await api.refund(sample.refund_id(1)))["payment_id"] == PAYMENT
        assert await api.payment_link("plink_1") == link
        of_order = await api.order_payments(sample.provider_order_id(1))
        assert {payment["status"] for payment in of_order} == {"captured", "failed"}
        assert [refund["id"] async for refund in api.payment_refunds(PAYMENT)] == [sample.refund_id(1)]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ProviderRefused),
        (404, ProviderRefused),
        (409, ProviderRefused),
        (401, CredentialsRefused),
        (403, CredentialsRefused),
        (408, ProviderUnavailable),
        (429, ProviderThrottled),
        (302, ProviderUnavailable),
        (500, ProviderUnavailable),
        (502, ProviderUnavailable),
        (503, ProviderUnavailable),
        (504, ProviderUnavailable),
    ],
)
async def test_a_status_is_an_error_of_its_kind(fake: Provider, status: int, kind: type[PayLatchError]) -> None:
    fake.api.always = Fault(status)
    assert type(await failure(fake)) is kind


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "fault",
    [
        Fault(502, html=True),
        Fault(200, html=True),
        Fault(200, body=""),
        Fault(200, body="[]"),
        Fault(200, body='{"id": "pay_Other"}'),
        Fault(204, body=""),
        Fault(302, body='{"id": 1}'),
    ],
)
async def test_a_body_that_is_no_answer_is_an_outage_and_nothing_is_printed(
    fake: Provider, fault: Fault, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.api.always = fault
    assert type(await failure(fake)) is ProviderUnavailable
    assert capsys.readouterr().out == ""


@pytest.mark.asyncio
@pytest.mark.parametrize("body", ["{}", '{"items": null}', '{"items": {}}', '{"items": [1]}', '{"items": [{}]}'])
async def test_a_list_that_is_none_is_an_outage(fake: Provider, body: str) -> None:
    fake.api.always = Fault(200, body=body)
    async with RazorpayApi(fake.settings()) as api:
        with pytest.raises(ProviderUnavailable):
            await api.order_payments(sample.provider_order_id(1))


@pytest.mark.asyncio
async def test_a_slow_answer_and_a_closed_port_are_outages(fake: Provider, capsys: pytest.CaptureFixture[str]) -> None:
    fake.api.always = Fault(pause=30)
    assert "in time" in str(await failure(fake, api_read_timeout=0.05))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        fake.port = nobody.getsockname()[1]
        assert type(await failure(fake)) is ProviderUnavailable
    assert capsys.readouterr().out == ""


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", [Fault(429, retry_after="1"), Fault(429), Fault(500), Fault(503, retry_after="1")])
async def test_what_fails_for_a_moment_is_asked_again(fake: Provider, fault: Fault) -> None:
    fake.api.faults.append(fault)
    async with RazorpayApi(fake.settings(api_retries=1)) as api:
        assert (await api.payment(PAYMENT))["id"] == PAYMENT
    assert len(fake.api.requests) == 2


@pytest.mark.asyncio
async def test_the_tries_are_counted(fake: Provider) -> None:
    fake.api.always = Fault(500)
    assert type(await failure(fake, api_retries=1)) is ProviderUnavailable
    assert len(fake.api.requests) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("pause", ["600", "99999999999999999999"])
async def test_a_long_pause_is_not_waited_for_but_told(fake: Provider, pause: str) -> None:
    fake.api.always = Fault(429, retry_after=pause)
    raised = await failure(fake, api_retries=2)
    assert isinstance(raised, ProviderThrottled)
    assert raised.retry_after == float(pause)
    assert len(fake.api.requests) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("pause", ["soon", "-1", "1.5"])
async def test_a_pause_that_cannot_be_read_is_no_crash(fake: Provider, pause: str) -> None:
    fake.api.always = Fault(429, retry_after=pause)
    assert isinstance(await failure(fake, api_retries=1), ProviderUnavailable)


@pytest.mark.asyncio
async def test_other_mistakes_are_not_repeated(fake: Provider) -> None:
    fake.api.always = Fault(400)
    await failure(fake, api_retries=2)
    assert len(fake.api.requests) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("wrong", ["", "pay_1/../../settings", "pay_1?x=1", "pay 1", "..", "pay_é", "x" * 65])
async def test_what_is_no_id_is_never_sent(fake: Provider, wrong: str) -> None:
    async with RazorpayApi(fake.settings()) as api:
        with pytest.raises(ProviderRefused):
            await api.payment(wrong)
        with pytest.raises(ProviderRefused):
            await api.order_payments(wrong)
    assert fake.api.requests == []


@pytest.mark.asyncio
async def test_the_secret_is_in_no_error(fake: Provider) -> None:
    async def said() -> str:
        return "".join(traceback.format_exception(await failure(fake))) + repr(await failure(fake))

    words = []
    for status in (302, 400, 401, 429, 500):
        fake.api.always = Fault(status)
        words.append(await said())
    fake.api.always, fake.port = None, 1
    words.append(await said())
    assert not [text for text in words if KEY_SECRET in text]
    assert KEY_SECRET not in repr(RazorpayApi(fake.settings()).__dict__)


@pytest.mark.asyncio
async def test_wrong_credentials_name_the_settings(fake: Provider) -> None:
    raised = await failure(fake, key_secret="wrong")
    assert isinstance(raised, CredentialsRefused)
    assert "PAYLATCH_RAZORPAY__KEY_ID" in str(raised)
    assert "PAYLATCH_RAZORPAY__KEY_SECRET" in str(raised)


@pytest.mark.parametrize("missing", ["key_id", "key_secret"])
def test_without_a_key_nothing_starts(missing: str) -> None:
    values = {"key_id": KEY_ID, "key_secret": KEY_SECRET} | {missing: None}
    with pytest.raises(SettingsError, match="PAYLATCH_RAZORPAY__KEY_ID"):
        RazorpayApi(RazorpaySettings.model_validate(values))


@pytest.mark.parametrize(
    "address", ["http://api.razorpay.com", "ftp://127.0.0.1", "api.razorpay.com", "https://u:p@x.example", ""]
)
def test_the_secret_never_travels_in_clear(address: str) -> None:
    with pytest.raises(ValueError, match="https address"):
        RazorpaySettings(api_url=address)


@pytest.mark.asyncio
async def test_a_slow_answer_does_not_block_the_loop(fake: Provider) -> None:
    """The fake runs in this very loop: it could not answer if the client blocked it."""
    fake.api.faults.append(Fault(pause=0.3))
    ticks = 0
    async with RazorpayApi(fake.settings()) as api:
        asked = asyncio.create_task(api.payment(PAYMENT))
        while not asked.done():
            await asyncio.sleep(0)
            ticks += 1
        assert (await asked)["id"] == PAYMENT
    assert ticks > 100


@pytest.mark.asyncio
async def test_a_redirect_is_not_followed_with_the_secret(fake: Provider) -> None:
    async with provider() as elsewhere:
        fake.api.always = Fault(302)
        await failure(fake)
        assert elsewhere.api.requests == []


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 200, 250])
async def test_lists_are_read_to_their_end_and_no_further(fake: Provider, count: int) -> None:
    made = [fake.payment(number, created_at=5_000 + number)["id"] for number in range(1000, 1000 + count)]
    async with RazorpayApi(fake.settings()) as api:
        found = [payment["id"] async for payment in api.payments(6_000, 6_000 + count)]
    assert sorted(found) == sorted(made)
    assert all("count=100" in request for request in fake.api.requests)


@pytest.mark.asyncio
async def test_a_short_page_is_not_taken_for_the_last(fake: Provider) -> None:
    made = {fake.payment(number, created_at=5_000 + number)["id"] for number in range(1000, 1130)}
    fake.api.most = 50
    async with RazorpayApi(fake.settings()) as api:
        assert {payment["id"] async for payment in api.payments(6_000, 7_000)} == made


@pytest.mark.asyncio
async def test_the_period_includes_its_start_and_not_its_end(fake: Provider) -> None:
    for number, second in ((10, 999), (11, 1000), (12, 1999), (13, 2000)):
        fake.payment(number, created_at=second)
        fake.refund(number, created_at=second)
    async with RazorpayApi(fake.settings()) as api:
        assert {payment["created_at"] async for payment in api.payments(1000, 2000)} == {1000, 1999}
        assert {refund["created_at"] async for refund in api.refunds(1000, 2000)} == {1000, 1999}


@pytest.mark.asyncio
async def test_what_appears_while_paging_hides_nothing(fake: Provider) -> None:
    made = {fake.payment(number, created_at=1_000 + number)["id"] for number in range(100, 300)}
    fresh = iter(range(400, 600))

    def one_more(_path: str) -> None:
        """Newest first: each new payment pushes the others one place down."""
        fake.payment(next(fresh), created_at=9_000)

    fake.api.answered = one_more
    async with RazorpayApi(fake.settings()) as api:
        found = [payment["id"] async for payment in api.payments(0, 10_000)]
    assert made <= set(found)
    assert len(found) == len(set(found))


@pytest.mark.asyncio
async def test_more_than_a_page_of_refunds_of_one_payment(fake: Provider) -> None:
    made = {fake.refund(1, nth=nth, amount=1)["id"] for nth in range(1, 131)}
    async with RazorpayApi(fake.settings()) as api:
        assert {refund["id"] async for refund in api.payment_refunds(PAYMENT)} == made


@pytest.mark.asyncio
async def test_an_api_on_this_machine_is_behind_no_proxy(fake: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    async with RazorpayApi(fake.settings()) as api:
        assert (await api.payment(PAYMENT))["id"] == PAYMENT


def test_certificates_are_checked_against_the_authorities_of_today(fake: Provider) -> None:
    assert RazorpayApi(fake.settings())._client.cert_path is True
