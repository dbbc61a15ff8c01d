"""Every refusal of the public endpoint by its code, and what is never stored; over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
import structlog
from multidict import CIMultiDict

from models.database import Database
from models.telemetry import Telemetry
from scripts.simulator.sender import sign
from tests.conftest import SettingsMaker
from tests.support import sample
from tests.support.endpoint import Endpoint, endpoint
from tests.support.wait import eventually
from webhook.observe import WebhookLog

PATH = "/webhooks/razorpay"
MEBIBYTE = 1024 * 1024


@dataclass
class Wire:
    """One connection, on which a test decides every byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
        await self.writer.drain()

    async def answer(self) -> tuple[int, CIMultiDict[str], dict[str, Any]]:
        """Status, headers and JSON of the next answer on this connection."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = CIMultiDict[str]()
            for line in head[1:-2]:
                name, _, value = line.partition(":")
                headers.add(name.strip(), value.strip())
            body = await self.reader.readexactly(int(headers["Content-Length"]))
        return int(head[0].split()[1]), headers, json.loads(body)

    async def closed(self) -> bool:
        """Whether the server hangs up now, without a further byte."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


@contextlib.asynccontextmanager
async def wire(shop: Endpoint) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", shop.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def head(*lines: tuple[str, str | bytes], length: int | None) -> bytes:
    """A request's head with these header lines, byte for byte."""
    fixed: list[tuple[str, str | bytes]] = [("Host", "shop.example")]
    if length is not None:
        fixed.append(("Content-Length", str(length)))
    written = b"".join(
        name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
        for name, value in (*fixed, *lines)
    )
    return f"POST {PATH} HTTP/1.1\r\n".encode() + written + b"\r\n"


def request(body: Any, event_id: str, *, secret: str = sample.SECRET) -> bytes:
    """A whole true request."""
    raw, headers = sample.signed(body, event_id, secret)
    return head(*headers.items(), length=len(raw)) + raw


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest_asyncio.fixture
async def shop(db: Database, make_settings: SettingsMaker) -> AsyncIterator[Endpoint]:
    """An endpoint and one pending order, `ord1`."""
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings()) as running:
        yield running


async def nothing_is_stored(shop: Endpoint) -> bool:
    return await shop.db.events.count_documents({}) == 0


GOOD = sign(sample.SECRET, sample.encode(sample.captured(1)))
ILL_FORMED: dict[str, tuple[str | bytes, ...]] = {
    "missing": (),
    "empty": ("",),
    "one character": ("a",),
    "odd length": (GOOD[:-1],),
    "too long": (GOOD + "00",),
    "not hex": ("g" * 64,),
    "non-ASCII": ("é".encode() * 32,),
    "not UTF-8": (b"\xff" * 64,),
    "full-width digits": ("１".encode() * 64,),
    "two, both true": (GOOD, GOOD),
    "two, one of them false": (GOOD, "0" * 64),
    "two in one line": (f"{GOOD}, {GOOD}",),
    "with a prefix": (f"sha256={GOOD}",),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("values", ILL_FORMED.values(), ids=ILL_FORMED.keys())
async def test_a_signature_header_that_cannot_be_one_is_400_and_the_connection_stays_usable(
    shop: Endpoint,
    values: tuple[str | bytes, ...],
) -> None:
    raw = sample.encode(sample.captured(1))
    lines = [("X-Razorpay-Signature", value) for value in values]
    async with wire(shop) as connection:
        await connection.send(head(*lines, length=len(raw)), raw)
        status, _, said = await connection.answer()
        assert (status, said["error"]) == (400, "no_signature")
        assert await nothing_is_stored(shop)

        await connection.send(request(sample.captured(1), "E1"))
        status, _, said = await connection.answer()
    assert (status, said) == (200, {"status": "accepted", "eventId": "E1"})


@pytest.mark.asyncio
async def test_the_hex_of_a_signature_may_be_upper_case(shop: Endpoint) -> None:
    assert await shop.post(sample.captured(1), "E1", headers={"X-Razorpay-Signature": GOOD.upper()}) == (
        200,
        {"status": "accepted", "eventId": "E1"},
    )


@pytest.mark.asyncio
async def test_two_requests_in_one_packet_are_read_apart_when_the_first_is_refused(shop: Endpoint) -> None:
    """The refused body holds a whole true request: if it were not drained it would be read as one."""
    smuggled = request(sample.captured(1), "SMUGGLED")
    async with wire(shop) as connection:
        await connection.send(head(length=len(smuggled)) + smuggled + request(sample.failed(1), "E2"))
        assert (await connection.answer())[0] == 400
        status, _, said = await connection.answer()
    assert (status, said["eventId"]) == (200, "E2")
    assert await shop.db.events.count_documents({"eventId": "SMUGGLED"}) == 0


@pytest.mark.asyncio
async def test_a_large_body_without_a_signature_is_not_read_to_its_end_and_the_connection_is_closed(
    shop: Endpoint,
) -> None:
    async with wire(shop) as connection:
        await connection.send(head(length=MEBIBYTE), b"x" * (65 * 1024))  # the rest never comes
        status, headers, _ = await connection.answer()
        assert status == 400
        assert headers["Connection"].lower() == "close"
        assert await connection.closed()
    assert await nothing_is_stored(shop)


@pytest.mark.asyncio
async def test_a_body_without_a_signature_that_never_comes_does_not_hold_the_answer_back(shop: Endpoint) -> None:
    async with wire(shop) as connection:
        await connection.send(head(length=10))
        status, headers, _ = await connection.answer()
    assert status == 400
    assert headers["Connection"].lower() == "close"


@pytest.mark.asyncio
@pytest.mark.parametrize("encoding", ["gzip", "identity", "br", ""])
async def test_any_content_encoding_is_415(shop: Endpoint, encoding: str) -> None:
    """Even with a body that is signed as it stands, since nobody may have to guess what was signed."""
    status, said = await shop.post(sample.captured(1), "E1", headers={"Content-Encoding": encoding})
    assert (status, said["error"]) == (415, "encoded")
    assert await nothing_is_stored(shop)


@pytest.mark.asyncio
async def test_a_body_that_says_it_is_too_large_is_413_before_it_comes(shop: Endpoint) -> None:
    async with wire(shop) as connection:
        await connection.send(head(("X-Razorpay-Signature", GOOD), length=MEBIBYTE + 1))
        status, headers, said = await connection.answer()
        assert (status, said["error"]) == (413, "too_large")
        assert headers["Connection"].lower() == "close"
        assert await connection.closed()


@pytest.mark.asyncio
async def test_a_chunked_body_is_413_as_soon_as_it_is_too_large(shop: Endpoint) -> None:
    async with wire(shop) as connection:
        await connection.send(head(("X-Razorpay-Signature", GOOD), ("Transfer-Encoding", "chunked"), length=None))
        for _ in range(17):
            await connection.send(chunk(b" " * 65536))  # it never ends
        status, headers, said = await connection.answer()
        assert (status, said["error"]) == (413, "too_large")
        assert headers["Connection"].lower() == "close"
    assert await nothing_is_stored(shop)


@pytest.mark.asyncio
async def test_a_body_of_exactly_the_most_bytes_is_taken(shop: Endpoint) -> None:
    raw = sample.encode(sample.captured(1))
    status, said = await shop.post(raw + b" " * (MEBIBYTE - len(raw)), "E1")
    assert (status, said["status"]) == (200, "accepted")


@pytest.mark.asyncio
async def test_a_chunked_body_is_taken_like_any_other(shop: Endpoint) -> None:
    raw, headers = sample.signed(sample.captured(1), "E1")
    async with wire(shop) as connection:
        await connection.send(head(*headers.items(), ("Transfer-Encoding", "chunked"), length=None))
        await connection.send(chunk(raw[:100]), chunk(raw[100:]), b"0\r\n\r\n")
        status, _, said = await connection.answer()
    assert (status, said["status"]) == (200, "accepted")
    assert (await shop.event("E1"))["rawBody"] == raw


@pytest.mark.asyncio
async def test_a_slow_body_is_408(db: Database, make_settings: SettingsMaker) -> None:
    async with endpoint(make_settings(http={"body_timeout": 0.2})) as shop, wire(shop) as connection:
        await connection.send(head(("X-Razorpay-Signature", GOOD), length=1000), b"{")
        status, headers, said = await connection.answer()
        assert (status, said["error"]) == (408, "slow_body")
        assert headers["Connection"].lower() == "close"
        assert await nothing_is_stored(shop)


@pytest.mark.asyncio
async def test_too_many_bytes_in_flight_are_503_and_are_given_back(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(sample.order(1))
    raw = sample.encode(sample.captured(1))
    limits = {"max_inflight_bytes": len(raw) + 100, "body_timeout": 2.0}
    async with endpoint(make_settings(http=limits)) as shop:
        async with wire(shop) as slow:
            await slow.send(head(("X-Razorpay-Signature", GOOD), length=1000), b"x" * 500)

            async def refused() -> bool:
                status, said = await shop.post(sample.captured(1), "E1", secret="nobody's")
                return (status, said["error"]) == (503, "overloaded")

            assert await eventually(refused, "the slow body's bytes are counted")
        # the slow caller has left, and with it go its bytes

        async def taken() -> bool:
            return (await shop.post(sample.captured(1), "E1"))[0] == 200

        assert await eventually(taken, "the bytes are given back")
        for _ in range(3):
            assert (await shop.post(sample.captured(1), "E1"))[0] == 200  # and are given back each time


@pytest.mark.asyncio
async def test_a_chunked_body_that_breaks_while_it_is_read_is_refused_and_no_error_of_ours(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    """The HTTP library's fast parser forgets to tell the reader (then it is 408); its slow one does (then 400)."""
    lines = [("X-Razorpay-Signature", GOOD), ("Transfer-Encoding", "chunked"), ("Expect", "100-continue")]
    async with endpoint(make_settings(http={"body_timeout": 0.3})) as shop, wire(shop) as connection:
        await connection.send(head(*lines, length=None))
        assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")  # it is being handled
        await connection.send(chunk(b"{}"), b"zz\r\nnot a chunk\r\n")
        status, headers, said = await connection.answer()
        assert (status, said["error"]) in {(400, "broken_body"), (408, "slow_body")}
        assert headers["Connection"].lower() == "close"
        assert await nothing_is_stored(shop)


@pytest.mark.asyncio
async def test_a_chunked_body_that_is_broken_from_the_start_is_400_and_the_connection_is_closed(
    shop: Endpoint,
) -> None:
    lines = [("X-Razorpay-Signature", GOOD), ("Transfer-Encoding", "chunked")]
    async with wire(shop) as connection:
        await connection.send(head(*lines, length=None) + b"zz\r\nnot a chunk\r\n")
        assert (await connection.reader.readuntil(b"\r\n")).split()[1] == b"400"
        async with asyncio.timeout(10):
            await connection.reader.read()  # to the end of the connection
    assert await nothing_is_stored(shop)


@pytest.mark.asyncio
async def test_a_body_that_breaks_off_is_not_stored(shop: Endpoint) -> None:
    raw, headers = sample.signed(sample.captured(1), "E1")
    async with wire(shop) as connection:
        await connection.send(head(*headers.items(), length=len(raw) + 1), raw)

    async def said() -> list[str]:
        return [fields["outcome"] for name, fields in shop.emitted if name == "webhook.answered"]

    assert await eventually(said, "the request is over") == ["broken_body"] or await said() == ["caller_gone"]
    assert await nothing_is_stored(shop)


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
async def test_other_methods_are_405(shop: Endpoint, method: str) -> None:
    async with shop.http.request(method, shop.url) as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"


@pytest.mark.asyncio
async def test_other_paths_are_404_and_store_nothing(shop: Endpoint) -> None:
    raw, headers = sample.signed(sample.captured(1), "E1")
    async with shop.http.post(f"http://127.0.0.1:{shop.port}/", data=raw, headers=headers) as response:
        assert response.status == 404
    assert await nothing_is_stored(shop)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("secret", "body"),
    [("somebody-else", sample.captured(1)), ("", b""), (sample.SECRET.upper(), b"{}"), (f"{sample.SECRET} ", b"[]")],
    ids=["another secret", "an empty secret and body", "another case", "a space more"],
)
async def test_what_is_not_signed_with_a_secret_of_ours_is_400_and_never_stored(
    shop: Endpoint,
    secret: str,
    body: Any,
) -> None:
    status, said = await shop.post(body, "E1", secret=secret)
    assert (status, said["error"]) == (400, "bad_signature")
    assert await nothing_is_stored(shop)
    assert await shop.db.alerts.count_documents({}) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "changed",
    [
        lambda raw: raw.replace(b"49900", b"49901"),
        lambda raw: raw + b"\n",
        lambda raw: raw.replace(b",", b", ", 1),
        lambda raw: b"\xef\xbb\xbf" + raw,
        lambda raw: raw[:-1],
    ],
    ids=["amount", "newline", "space", "byte order mark", "cut off"],
)
async def test_a_body_that_differs_from_what_was_signed_is_400_and_never_stored(shop: Endpoint, changed: Any) -> None:
    raw = changed(sample.encode(sample.captured(1)))
    assert (await shop.post(raw, "E1", headers={"X-Razorpay-Signature": GOOD}))[0] == 400
    assert await nothing_is_stored(shop)


@pytest.mark.asyncio
async def test_a_bad_signature_leaves_the_connection_usable(shop: Endpoint) -> None:
    async with wire(shop) as connection:
        for _ in range(3):
            await connection.send(request(sample.captured(1), "E1", secret="wrong"))
            assert (await connection.answer())[0] == 400
        await connection.send(request(sample.captured(1), "E1"))
        assert (await connection.answer())[2]["status"] == "accepted"


@pytest.mark.asyncio
@pytest.mark.parametrize(("secret", "label"), [(sample.SECRET, "new"), (sample.OLD_SECRET, "old")])
async def test_every_live_secret_counts_and_its_label_is_kept(shop: Endpoint, secret: str, label: str) -> None:
    status, said = await shop.post(sample.captured(1), "E1", secret=secret)
    assert (status, said["status"]) == (200, "accepted")
    row = await shop.settled("E1")
    assert row["signedWith"] == label
    assert row["outcome"]["code"] == "applied"


@pytest.mark.asyncio
async def test_what_is_stored_is_the_exact_body_and_what_it_names(shop: Endpoint) -> None:
    raw = json.dumps(sample.captured(1), indent=3).encode() + b"\n"
    assert (await shop.post(raw, "E1"))[0] == 200
    row = await shop.event("E1")
    assert row["rawBody"] == raw
    assert row["bodyHash"] == hashlib.sha256(raw).hexdigest()
    assert row["payload"] == sample.captured(1)
    assert row["eventType"] == "payment.captured"
    assert row["accountId"] == sample.ACCOUNT
    assert row["origin"] == "webhook"
    assert row["refs"]["orderId"] == sample.provider_order_id(1)
    assert row["refs"]["paymentId"] == sample.payment_id(1)
    assert row["occurredAt"].timestamp() == sample.CREATED + 5


@pytest.mark.asyncio
async def test_extra_paths_are_the_same_endpoint(db: Database, make_settings: SettingsMaker) -> None:
    await db.orders.insert_one(sample.order(1))
    async with endpoint(make_settings(http={"extra_paths": ("/api/razorpay/webhook",)})) as shop:
        raw, headers = sample.signed(sample.captured(1), "E1")
        extra = f"http://127.0.0.1:{shop.port}/api/razorpay/webhook"
        async with shop.http.post(extra, data=raw, headers=headers) as response:
            assert await response.json() == {"status": "accepted", "eventId": "E1"}
        assert await shop.post(raw, "E1") == (200, {"status": "duplicate", "eventId": "E1"})
        async with shop.http.post(extra, data=raw) as response:
            assert response.status == 400
        async with shop.http.get(extra) as response:
            assert response.status == 405


@pytest.mark.asyncio
async def test_an_answer_says_nothing_about_the_body_or_the_secret(shop: Endpoint) -> None:
    async with shop.http.post(
        shop.url,
        data=sample.encode(sample.captured(1)),
        headers={"X-Razorpay-Signature": "0" * 64},
    ) as response:
        said = await response.text()
        assert response.content_type == "application/json"
    assert sample.payment_id(1) not in said
    assert sample.SECRET not in said
    assert GOOD not in said


@pytest.mark.asyncio
async def test_bad_signatures_are_all_counted_but_logged_at_most_once_a_second(
    db: Database,
    make_settings: SettingsMaker,
) -> None:
    async with endpoint(make_settings()) as shop:
        shop.parts.telemetry._subscribers = (*shop.parts.telemetry._subscribers, WebhookLog())
        with structlog.testing.capture_logs() as lines:
            for _ in range(20):
                assert (await shop.post(sample.captured(1), "E1", secret="wrong"))[0] == 400
        answered = [line for line in lines if line["event"] == "webhook.answered"]
        counted = shop.parts.registry.get_sample_value(
            "paylatch_webhook_requests_total", {"provider": "razorpay", "outcome": "bad_signature"}
        )
    taken = [fields["duration_ms"] for name, fields in shop.emitted if name == "webhook.answered"]
    assert len(taken) == 20
    assert counted == 20
    assert 1 <= len(answered) <= 1 + sum(taken) / 1000 + 1
    assert len(answered) < 20


def test_a_refusal_that_was_not_logged_is_counted_in_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([100.0, 100.3, 100.6, 101.5, 101.6])
    monkeypatch.setattr("webhook.observe.time.monotonic", lambda: next(seconds))
    telemetry = Telemetry(WebhookLog())
    with structlog.testing.capture_logs() as lines:
        for _ in range(5):
            telemetry.emit("webhook.answered", outcome="bad_signature", status=400)
        telemetry.emit("webhook.answered", outcome="accepted", status=200)
    assert [line.get("unlogged") for line in lines] == [0, 2, None]


@pytest.mark.asyncio
async def test_every_refusal_is_counted_under_its_own_outcome(shop: Endpoint) -> None:
    await shop.post(sample.captured(1), "E1", secret="wrong")
    await shop.post(sample.captured(1), "E1", headers={"X-Razorpay-Signature": "x"})
    await shop.post(sample.captured(1), "E1", headers={"Content-Encoding": "gzip"})
    async with wire(shop) as connection:
        await connection.send(head(("X-Razorpay-Signature", GOOD), length=MEBIBYTE + 1))
        await connection.answer()
    outcomes = [fields["outcome"] for name, fields in shop.emitted if name == "webhook.answered"]
    assert outcomes == ["bad_signature", "no_signature", "encoded", "too_large"]
    for outcome in outcomes:
        labels = {"provider": "razorpay", "outcome": outcome}
        assert shop.parts.registry.get_sample_value("paylatch_webhook_requests_total", labels) == 1


@pytest.mark.asyncio
async def test_headers_of_any_kind_are_never_a_500(shop: Endpoint) -> None:
    """A true body under odd headers: whatever is not the signature or the encoding does not matter."""
    raw, headers = sample.signed(sample.captured(1), None)
    signature = ("X-Razorpay-Signature", headers["X-Razorpay-Signature"])
    odd: list[tuple[str, str | bytes]] = [
        ("X-Razorpay-Event-Id", b"\xff\xfe"),
        ("Content-Type", b"\xff/\xff; charset=\xff"),
        ("Cookie", "=" * 500),
        ("X-Empty", ""),
    ]
    for number, line in enumerate(odd):
        async with wire(shop) as connection:
            body = raw + b" " * number
            signed = sign(sample.SECRET, body)
            await connection.send(head((signature[0], signed), line, length=len(body)), body)
            status, _, said = await connection.answer()
        assert (status, said["status"]) == (200, "accepted"), line
