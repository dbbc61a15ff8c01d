"""Template messages to a receiver that answers as Meta's Cloud API does."""

from __future__ import annotations

from typing import Any

import pytest

from models.errors import SettingsError
from models.settings import Settings
from tests.support.receiver import Behaviour, Reply, Request, receiver, reply
from tests.support.stages import PHONE, TOKEN, sections_of
from watcher.channels import Message, NotSent, Rejected, SendError, Unknown
from watcher.channels.whatsapp import WhatsAppChannel

DATA = {"notice": "payment_completed", "order_id": "ord1"}
MESSAGE = Message(PHONE, "", "Priya  Rao\n\n \tA-1\n₹499.00\n", data=DATA)
TAKEN = reply(200, {"messages": [{"id": "wamid.HBg1", "message_status": "accepted"}]})


def settings(**own: Any) -> Settings:
    sections: dict[str, Any] = sections_of("whatsapp", own.pop("place", "127.0.0.1:1"), **own)
    sections["mongodb"] = {"uri": "mongodb://127.0.0.1:1"}
    return Settings(**sections, _env_file=None)


async def told(message: Message = MESSAGE, answer: Behaviour = TAKEN, **own: Any) -> tuple[str, Request]:
    async with receiver(answer) as box, WhatsAppChannel(settings(place=f"127.0.0.1:{box.port}", **own)) as channel:
        sent = await channel.send("key", message)
    (request,) = box.requests
    return sent.provider_message_id, request


async def failure(answer: Behaviour, message: Message = MESSAGE) -> SendError:
    with pytest.raises(SendError) as caught:
        await told(message, answer)
    return caught.value


@pytest.mark.asyncio
async def test_a_message_is_a_template_with_the_texts_lines_as_its_variables() -> None:
    message_id, request = await told()
    assert message_id == "wamid.HBg1"
    assert request.line == "POST /v24.0/106/messages HTTP/1.1"
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert request.headers["content-type"] == "application/json"
    parameters = [{"type": "text", "text": text} for text in ("Priya Rao", "A-1", "₹499.00")]
    assert request.document == {
        "messaging_product": "whatsapp",
        "recipient_type": "individual",
        "to": PHONE,
        "type": "template",
        "template": {
            "name": "paylatch_payment_completed",
            "language": {"code": "en"},
            "components": [{"type": "body", "parameters": parameters}],
        },
    }


@pytest.mark.asyncio
async def test_template_names_language_and_version_are_settings() -> None:
    own: dict[str, Any] = {
        "templates": {"payment_completed": "order_paid_v2"},
        "language": "en_US",
        "api_version": "v25.0",
    }
    _, request = await told(**own)
    assert request.line.startswith("POST /v25.0/")
    assert request.document["template"]["name"] == "order_paid_v2"
    assert request.document["template"]["language"] == {"code": "en_US"}
    _, prefixed = await told(template_prefix="shop_")
    assert prefixed.document["template"]["name"] == "shop_payment_completed"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("language", "code"),
    [("hi", "hi"), ("hi_IN", "hi"), ("pt_BR", "pt_BR"), ("pt", "en_US"), (None, "en_US"), (7, "en_US")],
)
async def test_a_message_names_the_approved_language_of_its_own_words(language: object, code: str) -> None:
    message = Message(PHONE, "", "Priya\n", data={**DATA, "language": language})
    own: dict[str, Any] = {"language": "en_US", "languages": {"hi": "hi", "pt_BR": "pt_BR"}}
    _, request = await told(message, **own)
    assert request.document["template"]["language"] == {"code": code}


@pytest.mark.asyncio
async def test_a_text_without_lines_is_a_template_without_variables() -> None:
    _, request = await told(Message(PHONE, "", " \n", data=DATA))
    assert "components" not in request.document["template"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, 130429, NotSent),
        (400, 131056, NotSent),
        (400, 80007, NotSent),
        (400, 131048, NotSent),
        (500, 131000, NotSent),
        (503, 131016, NotSent),
        (400, 131057, NotSent),
        (401, 190, NotSent),
        (400, 190, NotSent),
        (403, 10, NotSent),
        (403, 200, NotSent),
        (403, 131031, NotSent),
        (400, 131042, NotSent),
        (404, 132001, NotSent),
        (400, 132015, NotSent),
        (401, None, NotSent),
        (500, None, NotSent),
        (400, 131026, Rejected),
        (400, 131021, Rejected),
        (400, 131047, Rejected),
        (400, 131050, Rejected),
        (500, 131026, Rejected),
        (400, 132000, Rejected),
        (400, 100, Rejected),
        (400, 999999, Rejected),
        (404, None, Rejected),
        (400, True, Rejected),
        (400, "190", Rejected),
        (400, {}, Rejected),
        (302, None, NotSent),
    ],
)
async def test_metas_codes_tell_a_fault_of_the_message_from_one_that_passes(
    status: int, code: Any, kind: type[SendError]
) -> None:
    error = {"message": f"about {PHONE}", "type": "OAuthException", "code": code, "fbtrace_id": "x"}
    told_by_meta = await failure(reply(status, {"error": error}, headers=(("Retry-After", "30"),)))
    assert type(told_by_meta) is kind
    assert told_by_meta.reason in {f"meta_{code}", f"http_{status}"}
    if isinstance(told_by_meta, NotSent) and status != 401:
        assert told_by_meta.retry_after == 30


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "answer",
    [
        reply(200, {}),
        reply(200, {"messages": []}),
        reply(200, {"messages": [{}]}),
        reply(200, {"messages": [{"id": 7}]}),
        Reply(200, b"<html>"),
        Reply(200, b'{"messages": [{"id": "wam', cut=True),
        Reply(200, b'{"messages": [{"id": "w"}], "x": "' + b"x" * 70_000 + b'"}'),
    ],
)
async def test_an_acceptance_that_cannot_be_read_is_unknown(answer: Reply) -> None:
    error = await failure(answer)
    assert (type(error), error.reason) == (Unknown, "answer_unreadable")


@pytest.mark.asyncio
async def test_a_refusal_whose_body_breaks_off_is_judged_by_its_status() -> None:
    assert type(await failure(Reply(503, b"{", cut=True))) is NotSent
    assert type(await failure(Reply(400, b"{", cut=True))) is Rejected


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("12", "", "x", data=DATA), "bad_phone"),
        (Message("", "", "x", data=DATA), "no_phone"),
        (Message(PHONE, "", "x"), "no_notice"),
        (Message(PHONE, "", "\ud83d", data=DATA), "not_encodable"),
    ],
)
async def test_a_stored_message_that_somebody_edited_is_rejected(message: Message, reason: str) -> None:
    error = await failure(TAKEN, message)
    assert (type(error), error.reason) == (Rejected, reason)


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"access_token": None}, "PAYLATCH_WHATSAPP__ACCESS_TOKEN is not set"),
        ({"phone_number_id": None}, "PAYLATCH_WHATSAPP__PHONE_NUMBER_ID is not set"),
        ({"templates": {"payment_complete": "x"}}, "PAYLATCH_WHATSAPP__TEMPLATES names 'payment_complete'"),
    ],
)
def test_half_a_configuration_is_refused_at_start(own: dict[str, Any], sentence: str) -> None:
    given = settings(**own)
    assert WhatsAppChannel.unconfigured(given) is None
    with pytest.raises(SettingsError, match=sentence) as refused:
        WhatsAppChannel(given)
    assert TOKEN not in str(refused.value)
