"""Signed webhooks: what arrives, how it is signed, and where they never go."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from models.errors import SettingsError
from models.settings import Settings
from tests.support.receiver import Behaviour, Receiver, Reply, receiver, reply
from tests.support.stages import SIGNING, sections_of
from watcher.channels import Message, NoAddress, NotSent, Rejected, SendError, Sent
from watcher.channels.http import Http
from watcher.channels.targets import PublicResolver, public_socket
from watcher.channels.webhook import WebhookChannel

TEXT = '{"amount": 49900, "currency": "INR", "refs": {"paymentId": "pay_1"}, "happenedAt": "2026-01-02T03:04:05.000Z"}'
DATA = {"notice": "payment_completed", "order_id": "ord1", "role": "admin", "user_id": "u1"}
MESSAGE = Message("admin", "", TEXT, data=DATA)
OTHER = "whsec_" + "b3RoZXIw" * 5


def settings(place: str = "127.0.0.1:1", **own: Any) -> Settings:
    sections: dict[str, Any] = sections_of("webhook", place, **own)
    sections["mongodb"] = {"uri": "mongodb://127.0.0.1:1"}
    return Settings(**sections, _env_file=None)


async def told(box: Receiver, message: Message = MESSAGE, **own: Any) -> Sent:
    async with WebhookChannel(settings(f"127.0.0.1:{box.port}", **own)) as channel:
        return await channel.send("order:ord1:payment_completed:webhook:admin", message)


async def failure(answer: Behaviour, message: Message = MESSAGE, **own: Any) -> SendError:
    async with receiver(answer) as box:
        with pytest.raises(SendError) as caught:
            await told(box, message, **own)
    return caught.value


@pytest.mark.asyncio
async def test_the_body_says_what_happened_and_the_signature_proves_it() -> None:
    async with receiver() as box:
        sent = await told(box)
    (request,) = box.requests
    assert request.document == {
        "type": "payment.completed",
        "timestamp": "2026-01-02T03:04:05.000Z",
        "data": {
            "orderId": "ord1",
            "notice": "payment_completed",
            "amount": 49900,
            "currency": "INR",
            "refs": {"paymentId": "pay_1"},
        },
    }
    assert request.headers["webhook-id"] == sent.provider_message_id
    assert Webhook(SIGNING).verify(request.body, dict(request.headers)) == request.document
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(request.body, dict(request.headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(SIGNING).verify(request.body.replace(b"49900", b"1"), dict(request.headers))


@pytest.mark.asyncio
async def test_while_a_secret_is_replaced_both_prove_it() -> None:
    async with receiver() as box:
        await told(box, secrets={"new": OTHER, "old": SIGNING})
    (request,) = box.requests
    for secret in (SIGNING, OTHER):
        Webhook(secret).verify(request.body, dict(request.headers))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "kind"),
    [(301, NotSent), (302, NotSent), (307, NotSent), (401, Rejected), (404, Rejected), (408, NotSent), (410, Rejected)],
)
async def test_a_redirect_is_not_followed_and_a_refusal_is_final_by_its_status(
    status: int, kind: type[SendError]
) -> None:
    async with receiver() as elsewhere:
        location = (("Location", f"http://127.0.0.1:{elsewhere.port}/"),)
        error = await failure(reply(status, headers=location))
    assert (type(error), error.reason) == (kind, f"http_{status}")
    assert elsewhere.connections == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [Reply(204, b""), Reply(200, b"x" * 1_000_000), Reply(200, b"{", cut=True)])
async def test_any_2xx_is_enough_whatever_follows_it(answer: Reply) -> None:
    async with receiver(answer) as box:
        assert isinstance(await told(box), Sent)


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["", "Thank you", "[]", "{", '{"a": NaN}'])
async def test_a_template_of_the_shops_that_writes_no_object_is_rejected(text: str) -> None:
    error = await failure(Reply(), Message("admin", "", text, data=DATA))
    assert (type(error), error.reason) == (Rejected, "template_not_json")


def test_only_the_shops_own_systems_are_told() -> None:
    channel = WebhookChannel(settings())
    assert channel.address({}, "admin") == "admin"
    for recipient in ("customer", "user"):
        with pytest.raises(NoAddress, match="admin_only"):
            channel.address({}, recipient)


PUBLIC = "93.184.215.14"
HOST = "erp.example.com"


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """`HOST` has these addresses; the names that were asked for."""
    asked: list[str] = []

    def lookup(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        asked.append(str(host))
        tcp = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [
            (socket.AF_INET6, *tcp, (each, port, 0, 0)) if ":" in each else (socket.AF_INET, *tcp, (each, port))
            for each in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return asked


def connecting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Nobody answers anywhere; the addresses that were tried."""
    tried: list[Any] = []

    async def connect(_socket: socket.socket, address: Any) -> None:
        tried.append(address[:2])
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", connect)
    return tried


def guarded(url: str = f"https://{HOST}/hook") -> WebhookChannel:
    return WebhookChannel(settings(url=url, private_targets=False))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.1",),
        ("10.1.2.3",),
        ("169.254.169.254",),
        ("::1",),
        ("::ffff:127.0.0.1",),
        ("fd00:ec2::254",),
        (PUBLIC, "192.168.1.1"),
        ("2606:4700::1", "::1"),
    ],
)
async def test_a_name_that_leads_inside_is_never_called(
    addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = connecting(monkeypatch)
    resolving(monkeypatch, *addresses)
    async with guarded() as channel:
        with pytest.raises(NotSent, match=r"^connect_forbidden$"):
            await channel.send("key", MESSAGE)
    assert tried == []


@pytest.mark.asyncio
async def test_a_name_without_an_address_is_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch)
    async with guarded() as channel:
        with pytest.raises(NotSent, match=r"^connect_dns_failed$"):
            await channel.send("key", MESSAGE)


@pytest.mark.asyncio
async def test_what_was_checked_is_what_is_called_and_every_try_checks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = connecting(monkeypatch)
    asked = resolving(monkeypatch, PUBLIC)
    async with guarded() as channel:
        with pytest.raises(NotSent, match=r"^connect_refused$"):
            await channel.send("key", MESSAGE)
        assert (asked, tried) == ([HOST], [(PUBLIC, 443)])
        resolving(monkeypatch, "127.0.0.1")
        with pytest.raises(NotSent, match=r"^connect_forbidden$"):
            await channel.send("key", MESSAGE)
    assert tried == [(PUBLIC, 443)]


@pytest.mark.asyncio
async def test_an_address_that_needs_no_resolving_is_checked_at_the_connection() -> None:
    async with receiver() as box, Http(5, PublicResolver(), public_socket) as http:
        with pytest.raises(NotSent, match=r"^connect_forbidden$"):
            await http.post(f"http://127.0.0.1:{box.port}/", b"{}", {})
    assert box.connections == 0


@pytest.mark.asyncio
async def test_a_fault_of_a_library_leaves_the_message_with_a_known_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError(HOST)

    monkeypatch.setattr(socket, "getaddrinfo", broken)
    async with guarded() as channel:
        with pytest.raises(NotSent, match=r"^connect_failed$"):
            await channel.send("key", MESSAGE)


@pytest.mark.parametrize(
    "url",
    [
        "http://erp.example.com/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:10.0.0.1]/",
        "https://169.254.169.254/latest",
        "https://2130706433/",
        "https://127.1/",
    ],
)
def test_an_address_that_is_not_public_needs_the_explicit_setting(url: str) -> None:
    with pytest.raises(SettingsError, match="PAYLATCH_OUTGOING_WEBHOOK__PRIVATE_TARGETS=true") as refused:
        guarded(url)
    assert url not in str(refused.value)
    WebhookChannel(settings(url=url, private_targets=True))


@pytest.mark.parametrize(
    "url",
    [
        "erp.example.com",
        "ftp://erp.example.com/",
        "https://",
        "https://a:b@erp.example.com/",
        "https://x:99999/",
        "https://erp.example.com/\r\nX: y",
        "https://erp.example.com/a b",
        "javascript:alert(1)",
        "",
    ],
)
@pytest.mark.parametrize("private", [False, True])
def test_what_is_no_web_address_is_refused_at_start(url: str, private: bool) -> None:  # noqa: FBT001
    with pytest.raises(SettingsError, match="PAYLATCH_OUTGOING_WEBHOOK__URL is not an address"):
        WebhookChannel(settings(url=url, private_targets=private))


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "not base64 !", "whsec_" + "A" * 120])
def test_a_weak_or_unreadable_secret_is_refused_by_its_label(secret: str) -> None:
    with pytest.raises(SettingsError, match="PAYLATCH_OUTGOING_WEBHOOK__SECRETS: the one labelled 'old'") as refused:
        WebhookChannel(settings(secrets={"new": SIGNING, "old": secret}))
    assert len(secret) < 8 or secret not in str(refused.value)


def test_unsigned_webhooks_do_not_exist() -> None:
    with pytest.raises(SettingsError, match="PAYLATCH_OUTGOING_WEBHOOK__SECRETS is empty"):
        WebhookChannel(settings(secrets={}))


@pytest.mark.asyncio
async def test_an_order_id_of_any_type_can_be_told() -> None:
    from bson import ObjectId

    async with receiver() as box:
        for order_id in ("A-1", 7, ObjectId("65a000000000000000000002"), True, None):
            await told(box, Message("admin", "", "{}", data={**DATA, "order_id": order_id}))
    ids = [json.loads(request.body)["data"]["orderId"] for request in box.requests]
    assert ids == ["A-1", 7, "65a000000000000000000002", "True", "None"]
