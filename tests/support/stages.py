"""For every channel a stage: the channel as configured against a real receiver that behaves as a case wants."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from models.database import database
from models.settings import Settings
from scripts.embedded import free_port
from tests.support import mailbox
from tests.support.proxy import proxy
from tests.support.receiver import HANG, RESET, Behaviour, Receiver, receiver, reply, retry_at
from watcher.channels import Channel, Message, Stores
from watcher.channels.registry import channels

ACCEPTED, SLOW = "accepted", "a slow answer"
REFUSED, CLIENT_ERROR = "refused for good", "a 4xx"
TOO_MANY, TOO_MANY_UNTIL = "too many, seconds", "too many, a date"
SERVER_ERROR = "a 5xx"
SILENCE, BROKEN = "silence after the request", "a reset after the request"
UNGREETED = "silence before the request"
NOBODY, NO_HOST, NO_PROOF = "connection refused", "no such host", "a bad certificate"
CASES: tuple[str, ...] = (ACCEPTED, SLOW, REFUSED, CLIENT_ERROR, TOO_MANY, TOO_MANY_UNTIL, SERVER_ERROR)
CASES += (SILENCE, BROKEN, UNGREETED, NOBODY, NO_HOST, NO_PROOF)

RETRY_AFTER = 120
HOST = "provider.example.com"
PHONE, ADDRESS = "+919876543210", "priya@example.com"
TOKEN, AUTH_KEY, SIGNING = "EAAtoken0secret", "key0secret", "whsec_" + "c2VjcmV0" * 5
PASSWORD, PATH = "smtp0secret", "path0secret"
SECRETS = (PHONE, PHONE[1:], ADDRESS, TOKEN, AUTH_KEY, SIGNING[6:], PASSWORD, PATH, HOST, "127.0.0.1")
"""What may stand in no exception and no log line."""

_SEND: Mapping[str, Any] = {"notice": "payment_completed", "order_id": "ord1", "role": "customer", "user_id": "u1"}
MESSAGES: Mapping[str, Message] = {
    "email": Message(ADDRESS, "Paid", "Thank you.\n", "<p>Thank you.</p>", _SEND),
    "inapp": Message("u1", "Paid", "Thank you.", data=_SEND),
    "whatsapp": Message(PHONE, "", "Priya\nA-1\n₹499.00", data=_SEND),
    "sms": Message(PHONE, "", "A-1\nRs 499.00", data=_SEND),
    "webhook": Message("admin", "", '{"amount": 49900}', data=_SEND),
    "apprise": Message("admin", "Paid: A-1", "An order is paid.", data=_SEND),
}
_TAKEN: Mapping[str, Any] = {
    "whatsapp": {"messaging_product": "whatsapp", "messages": [{"id": "wamid.1"}]},
    "sms": {"type": "success", "message": "3763646c3058373530393938"},
    "webhook": {},
    "apprise": {},
}
_REFUSALS: Mapping[str, Behaviour] = {
    "whatsapp": reply(400, {"error": {"code": 131026, "message": f"Message undeliverable to {PHONE}"}}),
    "sms": reply(200, {"type": "error", "code": "202", "message": f"Invalid mobile number {PHONE}"}),
    "webhook": reply(410),
    "apprise": reply(410),
}
MAIL_CASES = {
    ACCEPTED: mailbox.OK,
    SLOW: mailbox.HANG,
    REFUSED: f"550 no such user <{ADDRESS}>",
    CLIENT_ERROR: "552 too large",
    SERVER_ERROR: "451 later",
    SILENCE: mailbox.HANG,
    BROKEN: mailbox.RESET,
}
STORE_CASES = (ACCEPTED, SILENCE, NOBODY)


@dataclass
class Stage:
    """The channel, open; `box` is its receiver where it talks HTTP, `stored` what a channel that stores has stored."""

    channel: Channel
    message: Message
    box: Receiver | None = None
    stored: Callable[[], Any] | None = None


@dataclass
class Surroundings:
    """What stages need from their test."""

    settings: Callable[..., Settings]
    certificate: ssl.SSLContext
    patch: pytest.MonkeyPatch


@contextlib.asynccontextmanager
async def stage(name: str, case: str, given: Surroundings) -> AsyncIterator[Stage]:
    """The stage of one channel for one case."""
    make = {"email": _mail_stage, "inapp": _store_stage}.get(name)
    async with make(case, given) if make else _http_stage(name, case, given) as staged:
        yield staged


def _behaviour(name: str, case: str) -> Behaviour:
    taken = _TAKEN[name]
    return {
        ACCEPTED: reply(200, taken),
        SLOW: reply(200, taken, pause=0.3),
        REFUSED: _REFUSALS[name],
        CLIENT_ERROR: reply(400),
        TOO_MANY: reply(429, headers=(("Retry-After", str(RETRY_AFTER)),)),
        TOO_MANY_UNTIL: reply(429, headers=retry_at(RETRY_AFTER)),
        SERVER_ERROR: reply(503),
        SILENCE: HANG,
        BROKEN: RESET,
    }.get(case, reply(200, taken))


def _timeout(case: str) -> float:
    return 0.5 if case in {SILENCE, UNGREETED} else 5.0


@contextlib.asynccontextmanager
async def _http_stage(name: str, case: str, given: Surroundings) -> AsyncIterator[Stage]:
    tls = given.certificate if case == NO_PROOF else None
    async with receiver(_behaviour(name, case), tls) as box, mailbox.silent_server() as silent:
        _no_such_host(given.patch)
        ports = {NOBODY: free_port(), UNGREETED: silent}
        place = f"{HOST}:443" if case == NO_HOST else f"127.0.0.1:{ports.get(case, box.port)}"
        secure = case in {NO_HOST, NO_PROOF, UNGREETED}
        sections = sections_of(name, place, secure=secure, timeout=_timeout(case))
        async with _channel(name, given.settings(**sections)) as channel:
            yield Stage(channel, MESSAGES[name], box)


def sections_of(name: str, place: str, *, secure: bool = False, **own: Any) -> dict[str, Any]:
    """The settings that make a channel talk to `place`, a host and a port."""
    address = f"{'https' if secure else 'http'}://{place}"
    match name:
        case "whatsapp":
            return {"whatsapp": {"phone_number_id": "106", "access_token": TOKEN, "base_url": address, **own}}
        case "sms":
            return {"sms": {"auth_key": AUTH_KEY, "base_url": address, "templates": {"payment_completed": "t1"}, **own}}
        case "webhook":
            given = {"url": f"{address}/{PATH}", "secrets": {"a": SIGNING}, "private_targets": True}
            return {"outgoing_webhook": {**given, **own}}
        case _:
            return {"apprise": {"urls": [f"{'jsons' if secure else 'json'}://{place}/{PATH}"], **own}}


@contextlib.asynccontextmanager
async def _channel(name: str, settings: Settings, stores: Stores | None = None) -> AsyncIterator[Channel]:
    nobody: Any = stores
    async with channels(settings, nobody)[name] as channel:
        yield channel


@contextlib.asynccontextmanager
async def _mail_stage(case: str, given: Surroundings) -> AsyncIterator[Stage]:
    _no_such_host(given.patch)
    own: dict[str, Any] = {"tls": "none", "timeout": _timeout(case)}
    async with (
        mailbox.mailbox(started=case != NOBODY) as box,
        receiver(tls=given.certificate) as stranger,
        mailbox.silent_server() as silent,
    ):
        own["port"] = silent if case == UNGREETED else box.port
        if case == NO_HOST:
            own |= {"host": HOST}
        if case == NO_PROOF:
            own |= {"port": stranger.port, "tls": "tls", "username": "shop", "password": PASSWORD}
        if answer := MAIL_CASES.get(case):
            (box.at_rcpt if answer[0] in "45" else box.at_data).append(answer)
        if case == SLOW:
            asyncio.get_running_loop().call_later(0.3, box.release)
        async with _channel("email", given.settings(email=own)) as channel:
            yield Stage(channel, MESSAGES["email"])


@contextlib.asynccontextmanager
async def _store_stage(case: str, given: Surroundings) -> AsyncIterator[Stage]:
    plain = given.settings()
    async with proxy(plain.mongodb.uri.get_secret_value()) as (line, address):
        mongodb = {"uri": address, "server_selection_seconds": 0.5}
        async with database(given.settings(mongodb=mongodb)) as db, _channel("inapp", plain, db) as channel:
            await db.client.admin.command("ping")
            if case == SILENCE:
                channel.timeout = 1.0
                line.hang_replies()
            if case == NOBODY:
                channel.timeout = 1.0
                line.cut(refuse=True)
            yield Stage(channel, MESSAGES["inapp"], stored=lambda: db.notifications.find().to_list())
            line.resume()


def _no_such_host(patch: pytest.MonkeyPatch) -> None:
    """The test's own host is known nowhere; no test asks the network."""
    known = socket.getaddrinfo

    def lookup(host: Any, *more: Any, **options: Any) -> Any:
        if host == HOST:
            raise socket.gaierror(socket.EAI_NONAME, f"{HOST} is unknown")
        return known(host, *more, **options)

    patch.setattr(socket, "getaddrinfo", lookup)
