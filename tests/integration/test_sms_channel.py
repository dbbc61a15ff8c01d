"""Text messages to a receiver that answers as MSG91's flow API does."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from models.errors import SettingsError
from models.settings import Settings
from tests.support.receiver import Behaviour, Reply, Request, receiver, reply
from tests.support.stages import AUTH_KEY, PHONE, sections_of
from watcher.channels import Message, NotSent, Rejected, SendError, Unknown
from watcher.channels.sms import SmsChannel

DATA = {"notice": "payment_completed", "order_id": "ord1"}
MESSAGE = Message(PHONE, "", "A-1\n\nRs  499.00\nChai\n", data=DATA)
TAKEN = reply(200, {"type": "success", "message": "3763646c3058373530393938"})


def settings(place: str = "127.0.0.1:1", routes: dict[str, Any] | None = None, **own: Any) -> Settings:
    sections: dict[str, Any] = sections_of("sms", place, **own)
    sections |= {"mongodb": {"uri": "mongodb://127.0.0.1:1"}, "notifications": {"routes": routes or {}}}
    return Settings(**sections, _env_file=None)


async def told(message: Message = MESSAGE, answer: Behaviour = TAKEN, **own: Any) -> tuple[str, Request]:
    async with receiver(answer) as box, SmsChannel(settings(f"127.0.0.1:{box.port}", **own)) as channel:
        sent = await channel.send("key", message)
    (request,) = box.requests
    return sent.provider_message_id, request


async def failure(answer: Behaviour, message: Message = MESSAGE) -> SendError:
    with pytest.raises(SendError) as caught:
        await told(message, answer)
    return caught.value


@pytest.mark.asyncio
async def test_a_message_is_a_registered_template_with_the_texts_lines_as_its_variables() -> None:
    message_id, request = await told()
    assert message_id == "3763646c3058373530393938"
    assert request.line == "POST /api/v5/flow HTTP/1.1"
    assert request.headers["authkey"] == AUTH_KEY
    assert request.document == {
        "template_id": "t1",
        "short_url": "0",
        "recipients": [{"mobiles": PHONE[1:], "var1": "A-1", "var2": "Rs 499.00", "var3": "Chai"}],
    }


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "document", "kind", "reason"),
    [
        (200, {"type": "error", "code": "202"}, Rejected, "msg91_202"),
        (200, {"type": "error", "code": 101}, Rejected, "msg91_101"),
        (400, {"type": "error", "apiError": "310", "code": "400"}, Rejected, "msg91_310"),
        (200, {"type": "error", "code": "301"}, NotSent, "msg91_301"),
        (200, {"type": "error", "code": "207"}, NotSent, "msg91_207"),
        (401, {"status": "fail", "hasError": True, "code": "401", "apiError": "418"}, NotSent, "msg91_418"),
        (401, {"status": "fail", "hasError": True, "errors": "Unauthorized"}, NotSent, "msg91_401"),
        (403, {}, NotSent, "msg91_403"),
        (200, {"type": "error", "message": "Authentication failure"}, NotSent, "msg91_refused"),
        (200, {"type": "error", "code": "601"}, NotSent, "msg91_601"),
        (200, {"type": "error", "code": "x" * 99}, NotSent, "msg91_refused"),
        (400, {"type": "error", "code": "400"}, Rejected, "http_400"),
        (500, {"type": "error"}, NotSent, "http_500"),
        (200, {"type": "error", "code": "311"}, Unknown, "msg91_311"),
    ],
)
async def test_msg91s_codes_tell_a_fault_of_the_message_from_one_that_passes(
    status: int, document: dict[str, Any], kind: type[SendError], reason: str
) -> None:
    error = await failure(reply(status, document))
    assert (type(error), error.reason) == (kind, reason)


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [reply(200, {}), Reply(200, b"<html>"), Reply(200, b'{"type": "succ', cut=True)])
async def test_an_acceptance_that_cannot_be_read_is_unknown(answer: Reply) -> None:
    error = await failure(answer)
    assert (type(error), error.reason) == (Unknown, "answer_unreadable")


@pytest.mark.asyncio
@pytest.mark.parametrize(("language", "template"), [("hi", "t_hi"), ("hi_IN", "t_hi"), ("ta", "t_en"), (None, "t_en")])
async def test_a_template_of_several_languages_is_chosen_by_that_of_the_words(
    language: str | None, template: str
) -> None:
    message = Message(PHONE, "", "A-1\n", data={**DATA, "language": language})
    _, request = await told(message, templates={"payment_completed": {"en": "t_en", "hi": "t_hi"}})
    assert request.document["template_id"] == template


@pytest.mark.parametrize("templates", [{"payment_completed": {}}, {"payment_completed": {"Hindi": "t"}}])
def test_a_template_of_no_language_is_refused_at_start(templates: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(templates=templates)


@pytest.mark.asyncio
async def test_a_notice_whose_template_was_taken_out_of_the_settings_waits() -> None:
    error = await failure(TAKEN, Message(PHONE, "", "x", data={"notice": "payment_failed"}))
    assert (type(error), error.reason) == (NotSent, "no_template")


def test_every_routed_notice_needs_its_registered_template() -> None:
    routes = {"payment_failed": {"customer": ["email", "sms"]}, "payment_completed": {"customer": ["sms"]}}
    with pytest.raises(SettingsError, match=r"PAYLATCH_SMS__TEMPLATES names no template for payment_failed"):
        SmsChannel(settings(routes=routes))
    with pytest.raises(SettingsError, match=r"PAYLATCH_SMS__TEMPLATES names 'paid'"):
        SmsChannel(settings(templates={"paid": "t1"}))
    SmsChannel(settings(routes=routes, templates={"payment_failed": "t2", "payment_completed": "t1"}))
