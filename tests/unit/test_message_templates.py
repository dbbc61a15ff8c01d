"""`paylatch templates` without a database: what there is, and how it reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import Refused, SettingsError, WrongArgument
from models.settings import DEFAULT_ROUTES, Recipient
from scripts.message_templates import Choice, list_templates, preview
from scripts.template_files import files, origin_of
from tests.support.words import override

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder and an environment without settings; the shop's templates would be in `own`."""
    monkeypatch.chdir(tmp_path)
    for name in ("PAYLATCH_MONGODB__URI", "MONGODB_URI", "PAYLATCH_NOTIFICATIONS__TEMPLATES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def own(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (bare / "own").mkdir()
    monkeypatch.setenv("PAYLATCH_NOTIFICATIONS__TEMPLATES", "own")
    return bare / "own"


def listed(capsys: Said, notice: str | None = None) -> dict[str, Any]:
    list_templates(notice, as_json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


async def previewed(capsys: Said, notice: str, **choice: Any) -> dict[str, Any]:
    await preview(notice, which=Choice(**choice), as_json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_notice_is_listed_in_its_languages(capsys: Said) -> None:
    found = {
        (t["notice"], t["channel"], t["recipient"], t["language"]): t["parts"] for t in listed(capsys)["templates"]
    }
    assert {notice for notice, *_ in found} == {*DEFAULT_ROUTES, "alert"}
    mail = dict.fromkeys((".subject.txt", ".txt", ".html"), "built-in")
    assert found["payment_completed", "email", "everybody else", "hi"] == mail
    assert found["payment_review", "email", "admin", "en"] == mail
    assert ("payment_review", "email", "admin", "hi") not in found


@pytest.mark.asyncio
@pytest.mark.parametrize("channel", ["email", "inapp", "apprise"])
async def test_an_alert_can_be_previewed_in_the_shops_own_words_too(own: Path, capsys: Said, channel: str) -> None:
    built_in = await previewed(capsys, "alert", channel=channel)
    assert (built_in["recipient"], "SampleEvent0001" in built_in["text"]) == ("admin", True)
    folder = own / "en" / channel / "admin"
    folder.mkdir(parents=True)
    (folder / "alert.txt").write_text("A title\n{{ order.alert.count }} of them")
    assert (await previewed(capsys, "alert", channel=channel))["text"].strip().endswith("2 of them")
    assert listed(capsys, "alert")["others"] == []


@pytest.mark.asyncio
async def test_an_alert_is_about_no_order() -> None:
    with pytest.raises(WrongArgument, match="an alert is about no order"):
        await preview("alert", which=Choice(order="SH-1001"))


def test_one_notice_can_be_asked_for(capsys: Said) -> None:
    assert {each["notice"] for each in listed(capsys, "refund_failed")["templates"]} == {"refund_failed"}
    list_templates("refund_failed")
    said = capsys.readouterr().out
    assert "refund_failed" in said
    assert "payment_completed" not in said


def test_the_shops_files_are_told_from_the_built_in_ones(own: Path, capsys: Said) -> None:
    override(own, "hi/email/payment_completed.subject.txt", "x")
    override(own, "mr/sms/payment_completed.txt", "x")
    override(own, "en/email/layout.html", "x")
    override(own, "en/email/payment_complete.txt", "x")
    override(own, "en/inapp/payment_completed.html", "x")
    found = files(Path(__file__).parents[2] / "watcher/templates", own)
    ours = {message: parts for message, parts in found.messages.items() if message.notice == "payment_completed"}
    origins = {(message.language, message.channel): origin_of(parts) for message, parts in ours.items()}
    assert origins["mr", "sms"] == "yours"
    assert origins["hi", "email"] == "yours: .subject.txt; built-in: .txt, .html"
    assert origins["hi", "inapp"] == "built-in"
    others = ["en/email/layout.html", "en/email/payment_complete.txt", "en/inapp/payment_completed.html"]
    assert found.others == others == listed(capsys)["others"]
    list_templates("payment_completed")
    assert "payment_complete.txt" in capsys.readouterr().out


@pytest.mark.asyncio
@pytest.mark.parametrize("notice", DEFAULT_ROUTES)
@pytest.mark.parametrize("recipient", ["customer", "admin", "user"])
@pytest.mark.parametrize("channel", ["email", "inapp", "sms", "whatsapp", "apprise", "webhook"])
async def test_the_made_up_order_has_everything_to_say(
    capsys: Said, notice: str, recipient: Recipient, channel: str
) -> None:
    shown = await previewed(capsys, notice, channel=channel, recipient=recipient)
    assert "SH-1001" in f"{shown['subject']}{shown['text']}"
    assert (shown["html"] is None) == (channel != "email")


@pytest.mark.asyncio
async def test_a_preview_shows_what_would_be_sent(capsys: Said) -> None:
    await preview("payment_failed", which=Choice(language="hi-IN"))
    said = capsys.readouterr()
    assert said.out.startswith(
        "to: customer\nlanguage: hi\nsubject: ऑर्डर SH-1001 के लिए आपका भुगतान नहीं हो सका\n\nनमस्ते Asha Verma जी,\n"
    )
    assert said.err == ""


@pytest.mark.asyncio
async def test_a_preview_is_of_whoever_is_told(capsys: Said) -> None:
    assert (await previewed(capsys, "payment_review"))["recipient"] == "admin"
    assert (await previewed(capsys, "payment_completed"))["recipient"] == "customer"
    assert (await previewed(capsys, "payment_completed", channel="inapp"))["recipient"] == "admin"
    assert (await previewed(capsys, "payment_completed", channel="sms"))["recipient"] == "customer"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("language", "recipient", "why"), [("xx", "customer", "no words"), ("hi", "admin", "the shop's")]
)
async def test_a_language_that_does_not_come_out_is_told(
    capsys: Said, language: str, recipient: Recipient, why: str
) -> None:
    await preview("payment_completed", which=Choice(language=language, recipient=recipient))
    said = capsys.readouterr()
    assert "language: en" in said.out
    assert f"this is not in {language}: " in said.err
    assert why in said.err


@pytest.mark.asyncio
async def test_the_html_opens_in_a_browser(bare: Path, capsys: Said) -> None:
    await preview("payment_completed", which=Choice(language="hi"), html="mail.html")
    page = (bare / "mail.html").read_text(encoding="utf-8")
    assert page.lstrip().startswith('<!doctype html>\n<html lang="hi">\n<head>\n<meta charset="utf-8">')
    assert "written to mail.html" in capsys.readouterr().err
    await preview("payment_completed", which=Choice(language="hi"), html="-")
    assert capsys.readouterr().out == page


@pytest.mark.asyncio
async def test_a_template_that_cannot_be_read_is_named_with_its_line(own: Path) -> None:
    override(own, "hi/email/payment_failed.txt", "fine\n{% if %}")
    with pytest.raises(SettingsError, match=r"own/hi/email/payment_failed\.txt, line 2: "):
        await preview("payment_completed")
    with pytest.raises(SettingsError, match=r"payment_failed\.txt, line 2: "):
        list_templates()


@pytest.mark.asyncio
async def test_a_template_that_fails_on_the_order_is_named_with_its_line(own: Path, capsys: Said) -> None:
    override(own, "en/email/payment_completed.txt", "fine\n\n{{ amount / 2 }}")
    with pytest.raises(Refused, match=r"own/en/email/payment_completed\.txt, line 3: TypeError: this is the built-in"):
        await preview("payment_completed")
    assert "We have received your payment" in capsys.readouterr().out


@pytest.mark.asyncio
async def test_what_a_terminal_would_obey_is_shown_instead(own: Path, capsys: Said) -> None:
    override(own, "en/inapp/payment_completed.txt", "title\nred \x1b[31m, joined क्\u200dष")
    await preview("payment_completed", which=Choice(channel="inapp", recipient="user"))
    assert "red �[31m, joined क्\u200dष" in capsys.readouterr().out


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("notice", "choice", "how", "sentence"),
    [
        ("payment_complete", {}, {}, "there is no notice payment_complete: the notices are payment_completed"),
        ("payment_completed", {"channel": "fax"}, {}, "no template for payment_completed by fax to customer"),
        ("payment_completed", {"channel": "sms"}, {"html": "-"}, "sms has no HTML"),
        ("payment_completed", {}, {"html": "-", "as_json": True}, "cannot both go to standard output"),
        ("payment_completed", {}, {"html": "no/such/folder.html"}, "no/such/folder.html cannot be written"),
    ],
)
async def test_what_cannot_be_previewed_is_refused(
    notice: str, choice: dict[str, Any], how: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Refused, match=sentence):
        await preview(notice, which=Choice(**choice), **how)


def test_an_unknown_notice_is_not_listed() -> None:
    with pytest.raises(Refused, match="there is no notice nothing"):
        list_templates("nothing")
