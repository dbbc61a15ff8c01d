"""What every channel must do, whatever is at its other end: a new one passes this suite or is not done."""

from __future__ import annotations

import logging
import ssl
import traceback
from collections.abc import Mapping
from typing import Any

import pytest

from models.settings import Settings
from tests.conftest import SettingsMaker
from tests.support.certificate import self_signed, server_side
from tests.support.mailbox import QUIET
from tests.support.stages import (
    ACCEPTED,
    BROKEN,
    CASES,
    CLIENT_ERROR,
    MAIL_CASES,
    NO_HOST,
    NO_PROOF,
    NOBODY,
    REFUSED,
    RETRY_AFTER,
    SECRETS,
    SERVER_ERROR,
    SILENCE,
    SLOW,
    STORE_CASES,
    TOO_MANY,
    TOO_MANY_UNTIL,
    UNGREETED,
    Surroundings,
    stage,
)
from watcher.channels import NotSent, Rejected, SendError, Sent, Unknown
from watcher.channels.registry import CHANNELS

pytestmark = [
    QUIET,
    # Apprise 2.3 imports it on Python before 3.13, inside a try.
    pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning"),
]

RULES: Mapping[str, type] = {
    ACCEPTED: Sent,
    SLOW: Sent,
    REFUSED: Rejected,
    CLIENT_ERROR: Rejected,
    TOO_MANY: NotSent,
    TOO_MANY_UNTIL: NotSent,
    SERVER_ERROR: NotSent,
    SILENCE: Unknown,
    BROKEN: Unknown,
    UNGREETED: NotSent,
    NOBODY: NotSent,
    NO_HOST: NotSent,
    NO_PROOF: NotSent,
}
NEVER_SURE = {"apprise", "inapp"}
"""Apprise tells only whether all went well; in-app messages have a key, which makes sending them again harmless."""
WITHOUT: Mapping[str, set[str]] = {
    "email": set(CASES) - {*MAIL_CASES, UNGREETED, NOBODY, NO_HOST, NO_PROOF},  # SMTP has no Retry-After
    "inapp": set(CASES) - set(STORE_CASES),
}
ENDS = [(name, case) for name in CHANNELS for case in CASES if case not in WITHOUT.get(name, set())]


def expected(name: str, case: str) -> type:
    rule = RULES[case]
    return Unknown if name in NEVER_SURE and rule is not Sent else rule


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return server_side(self_signed(tmp_path_factory.mktemp("certificate")))


@pytest.fixture
def given(make_settings: SettingsMaker, certificate: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    return Surroundings(make_settings, certificate, monkeypatch)


async def outcome(name: str, case: str, given: Surroundings) -> Sent | SendError:
    async with stage(name, case, given) as staged:
        try:
            return await staged.channel.send("order:ord1:payment_completed:c:to", staged.message)
        except SendError as error:
            return error


@pytest.mark.asyncio
@pytest.mark.parametrize(("name", "case"), ENDS)
async def test_every_end_of_a_try_says_whether_the_message_was_sent(
    name: str,
    case: str,
    given: Surroundings,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO)
    end = await outcome(name, case, given)
    assert type(end) is expected(name, case), end
    if isinstance(end, NotSent):
        assert end.retry_after == (RETRY_AFTER if case in {TOO_MANY, TOO_MANY_UNTIL} else None)
    if isinstance(end, SendError):
        assert end.reason.isascii()
        assert not set(end.reason) & set(" @/:")
        logged = [record.getMessage() for record in caplog.records if record.name != "mail.log"]  # the test's server
        words = "".join((*traceback.format_exception(end), repr(end), *logged, *capfd.readouterr()))
        assert [secret for secret in SECRETS if secret in words] == []


@pytest.mark.asyncio
@pytest.mark.parametrize("name", sorted(CHANNELS))
async def test_a_channel_says_its_name_and_limits_and_shows_no_secret(name: str, given: Surroundings) -> None:
    async with stage(name, ACCEPTED, given) as staged:
        channel = staged.channel
        assert channel.name == name
        assert isinstance(channel.keyed, bool)
        assert 1 <= channel.concurrency <= 64
        assert 0 < channel.timeout <= 60
        assert [secret for secret in SECRETS if secret in f"{channel!r} {vars(channel)!r}"] in ([], ["127.0.0.1"])


@pytest.mark.asyncio
async def test_a_keyed_channel_gives_the_same_id_at_every_try_and_another_one_for_another_key(
    given: Surroundings,
) -> None:
    keyed = {name for name, channel in CHANNELS.items() if channel.keyed}
    assert keyed == {"inapp", "webhook"}
    async with stage("webhook", ACCEPTED, given) as staged:
        sent = [await staged.channel.send(key, staged.message) for key in ("a", "a", "b")]
        assert staged.box is not None
        ids = [request.headers["webhook-id"] for request in staged.box.requests]
        assert ids == [each.provider_message_id for each in sent]
        assert ids[0] == ids[1] != ids[2]
        assert staged.box.requests[0].body == staged.box.requests[1].body
    async with stage("inapp", ACCEPTED, given) as staged:
        for key in ("a", "a", "b"):
            await staged.channel.send(key, staged.message)
        assert staged.stored is not None
        assert [document["_id"] for document in await staged.stored()] == ["a", "b"]


def test_a_channel_that_is_not_configured_names_the_setting_that_would_switch_it_on() -> None:
    given: dict[str, Any] = {"mongodb": {"uri": "mongodb://127.0.0.1:1"}}
    bare = Settings(**given, _env_file=None)
    sentences = {name: channel.unconfigured(bare) for name, channel in CHANNELS.items()}
    assert sentences.pop("inapp") is None
    for name, sentence in sentences.items():
        assert sentence is not None, name
        assert sentence.startswith("PAYLATCH_"), name
        setting = sentence.split()[0].removeprefix("PAYLATCH_").lower().split("__")
        assert hasattr(getattr(bare, setting[0]), setting[1]), name
