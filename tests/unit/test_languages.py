"""Which language a message is in; every notice in every channel and language, whatever the order looks like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from models.settings import DEFAULT_ROUTES
from tests.support.words import FULL, JUNK, ORDERS, override, own, render, settings
from watcher.channels.provider_templates import values
from watcher.render import BUILT_IN, Renderer

PATH = {"language_path": "customer.language"}
OF_CUSTOMERS = ("payment_completed", "payment_failed", "payment_refunded", "refund_processed", "refund_failed")
CHANNELS = ("email", "inapp", "sms", "whatsapp", "apprise", "webhook")
WITH_WORDS = ("email", "inapp")
DEVANAGARI = re.compile("[\u0900-\u097f]")
HUGE = "x" * 100_000
HOSTILE: dict[str, dict[str, Any]] = {
    "markup": {"orderNumber": "<b>&'\"</b>", "shippingAddress": {"name": "<img src=x>"}},
    "line breaks": {"orderNumber": "A 1", "shippingAddress": {"name": "Priya\r\n\r\nRao\u2028"}},
    "huge": {**FULL, "orderNumber": HUGE, "shippingAddress": {"name": HUGE}},
    "templates": {"orderNumber": "{ 7 * 7 }", "shippingAddress": {"name": "%s %(x)s ${x} {0}"}},
    "right to left": {"orderNumber": "\u05d0-1", "shippingAddress": {"name": "\u0645\u062d\u0645\u062f \u202egnol"}},
    "wrong types": {"orderNumber": [None], "shippingAddress": None, "payment": {"attempts": {}, "amountPaid": "1.5"}},
}
TRACES = ("{{", "{%", "Undefined", "object at", "None", "\u202e")


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(settings(notifications=PATH))


def spoken(order: Mapping[str, Any], language: object) -> dict[str, Any]:
    return {**order, "customer": {"language": language}}


@pytest.mark.parametrize("recipient", ["customer", "user", "admin"])
@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("notice", DEFAULT_ROUTES)
def test_every_notice_renders_in_every_language(renderer: Renderer, notice: str, channel: str, recipient: str) -> None:
    for language in ("hi", "en"):
        for name, order in {**ORDERS, **HOSTILE}.items():
            rendered = render(renderer, notice, channel, recipient, spoken(order, language))
            assert rendered.text.strip(), name
            assert bool(rendered.subject.strip()) == (channel in {"email", "inapp", "apprise"}), name
            words = f"{rendered.subject}\n{rendered.text}\n{rendered.html or ''}"
            assert not [trace for trace in TRACES if trace in words], name
            assert "<img" not in (rendered.html or ""), name
            assert len(words) < 20_000, name


@pytest.mark.parametrize("channel", WITH_WORDS)
@pytest.mark.parametrize("notice", OF_CUSTOMERS)
def test_a_customer_who_speaks_hindi_reads_hindi_and_nothing_else(
    renderer: Renderer, notice: str, channel: str
) -> None:
    for recipient in ("customer", "user"):
        for order in (FULL, {}):
            rendered = render(renderer, notice, channel, recipient, spoken(order, "hi"))
            assert rendered.language == "hi"
            lines = [rendered.subject, *rendered.text.replace("Chai & Co", "").splitlines()]
            assert [line for line in lines if line.strip() and not DEVANAGARI.search(line)] == []
            if rendered.html is not None:
                assert '<html lang="hi">' in rendered.html
                english = ("Hello", "This message", "Order<", "Amount<", "Date<", "reference<")
                assert not [word for word in english if word in rendered.html]


@pytest.mark.parametrize("channel", WITH_WORDS)
@pytest.mark.parametrize("notice", OF_CUSTOMERS)
def test_hindi_tells_what_english_tells(renderer: Renderer, notice: str, channel: str) -> None:
    def facts(language: str) -> set[str]:
        rendered = render(renderer, notice, channel, "customer", spoken(FULL, language))
        return set(re.findall(r"A-1001|₹[\d,.]+|(?:pay|rfnd)_\w+|Priya Rao", rendered.text))

    assert facts("hi") == facts("en") != set()


def test_the_values_of_a_providers_template_are_as_many_in_every_language(renderer: Renderer) -> None:
    for channel in ("sms", "whatsapp"):
        for notice in OF_CUSTOMERS:
            for order in (FULL, {}, *HOSTILE.values()):
                both = [values(render(renderer, notice, channel, order=spoken(order, x)).text) for x in ("hi", "en")]
                assert len(both[0]) == len(both[1])
    assert values(render(renderer, channel="whatsapp", order=spoken({}, "hi")).text)[0] == "ग्राहक"


def test_every_hindi_template_has_an_english_one_beside_it() -> None:
    """So that a notice that is renamed or dropped takes its Hindi words along."""
    hindi = {path.relative_to(BUILT_IN / "hi") for path in (BUILT_IN / "hi").rglob("*.*")}
    english = {path.relative_to(BUILT_IN / "en") for path in (BUILT_IN / "en").rglob("*.*")}
    assert {str(path) for path in hindi - english} == {"failure_reasons.html"}
    wanted = {f"{channel}/{notice}.txt" for channel in ("email", "inapp", "sms", "whatsapp") for notice in OF_CUSTOMERS}
    assert wanted <= {str(path) for path in hindi}


LANGUAGES: list[tuple[object, str]] = [
    ("hi", "hi"),
    ("hi-IN", "hi"),
    ("hi_IN", "hi"),
    ("HI-in", "hi"),
    (" hi ", "hi"),
    ("en", "en"),
    ("en-GB", "en"),
    *[(odd, "en") for odd in ("", "-", "hindi", "h", "xx", "mr", "hi IN", "../hi", "hi/../en", "hi\n\nx", "हिन्दी")],
    *[(odd, "en") for odd in ("hi_" * 50, HUGE, "en_US_POSIX@x", "\x00", "\udcff", ["hi"], {"hi": 1}, ("hi",))],
    *[(odd, "en") for odd in JUNK],
]


@pytest.mark.parametrize(("value", "language"), LANGUAGES, ids=lambda value: repr(value)[:20])
def test_the_order_says_the_language_and_whatever_is_none_is_the_shops(
    renderer: Renderer, value: object, language: str
) -> None:
    assert render(renderer, order=spoken(FULL, value)).language == language


@pytest.mark.parametrize("customer", [None, "hi", ["hi"], {}, {"language": {"code": "hi"}}, 7])
def test_a_path_that_leads_nowhere_is_the_shops_language(renderer: Renderer, customer: object) -> None:
    assert render(renderer, order={**FULL, "customer": customer}).language == "en"


def test_without_the_setting_every_customer_reads_the_shops_language() -> None:
    assert render(Renderer(settings()), order=spoken(FULL, "hi")).language == "en"
    assert render(Renderer(settings(shop={"locale": "hi_IN"})), order=spoken(FULL, "en")).language == "hi"


def test_a_shop_that_speaks_hindi_writes_english_to_those_who_read_it() -> None:
    hindi = Renderer(settings(shop={"locale": "hi_IN"}, notifications=PATH))
    assert render(hindi).language == "hi"
    english = render(hindi, order=spoken(FULL, "en"))
    assert (english.language, "2 Jan 2026" in english.text, "₹4,99,000.00" in english.text) == ("en", True, True)


def test_amounts_and_times_are_written_as_the_language_does(renderer: Renderer) -> None:
    hindi = render(renderer, order=spoken(FULL, "hi")).text
    assert "₹4,99,000.00" in hindi
    assert "2 जन॰ 2026, 08:34" in hindi
    assert "₹499,000.00" in render(renderer, order=spoken(FULL, "en-US")).text


def test_the_filters_follow_the_language(tmp_path: Path) -> None:
    source = '{{ order.payment.amount | money("INR") }} {{ order.at | moment }}'
    override(tmp_path, "en/email/payment_completed.txt", source)
    mail = Renderer(settings(notifications={**PATH, "templates": tmp_path}))
    for language, text in (("en", "₹4,99,000.00 1 Jan 1970, 05:30"), ("en-US", "₹499,000.00 1 Jan 1970, 05:30")):
        assert render(mail, order={**spoken(FULL, language), "at": 0}).text == text


@pytest.mark.parametrize("channel", WITH_WORDS)
def test_the_shops_own_people_read_the_shops_language(renderer: Renderer, channel: str) -> None:
    for notice in DEFAULT_ROUTES:
        hindi = render(renderer, notice, channel, "admin", spoken(FULL, "hi"))
        assert hindi == render(renderer, notice, channel, "admin", FULL)
        assert not DEVANAGARI.search(f"{hindi.subject}{hindi.text}{hindi.html}")


@pytest.mark.parametrize("notice", sorted(set(DEFAULT_ROUTES) - set(OF_CUSTOMERS)))
def test_a_notice_without_words_in_a_language_is_in_the_shops_as_a_whole(renderer: Renderer, notice: str) -> None:
    for channel in CHANNELS:
        assert render(renderer, notice, channel, "customer", spoken(FULL, "hi")) == render(renderer, notice, channel)


def test_the_shops_folder_comes_first_in_each_language(tmp_path: Path) -> None:
    override(tmp_path, "hi/email/payment_completed.subject.txt", "पैसे मिले")
    override(tmp_path, "en/inapp/payment_completed.txt", "Ours\nours")
    override(tmp_path, "mr/email/payment_failed.txt", "पैसे मिळाले नाहीत {{ amount }}")
    override(tmp_path, "hi_IN/email/customer/refund_failed.txt", "देरी")
    mine = Renderer(settings(notifications={**PATH, "templates": tmp_path}))
    assert render(mine, order=spoken(FULL, "hi")).subject == "पैसे मिले"
    assert render(mine, order=spoken(FULL, "en")).subject == "Payment received for order A-1001"
    assert render(mine, channel="inapp", order=spoken(FULL, "en")).text == "ours"
    assert DEVANAGARI.search(render(mine, channel="inapp", order=spoken(FULL, "hi")).text)
    marathi = render(mine, "payment_failed", order=spoken(FULL, "mr"))
    assert (marathi.language, marathi.text) == ("mr", "पैसे मिळाले नाहीत ₹499,000.00")
    assert render(mine, order=spoken(FULL, "mr")).language == "en"
    assert render(mine, "refund_failed", order=spoken(FULL, "hi")).text == "देरी"
    assert render(mine, "refund_failed", recipient="user", order=spoken(FULL, "hi")).text != "देरी"


def test_a_template_of_the_shops_that_fails_gives_way_in_the_customers_language(tmp_path: Path) -> None:
    override(tmp_path, "hi/email/payment_completed.txt", "{{ 1 / 0 }}")
    mine = Renderer(settings(notifications={**PATH, "templates": tmp_path}))
    assert "भुगतान" in render(mine, order=spoken(FULL, "hi")).text


def test_a_shops_layout_is_the_layout_of_every_language(tmp_path: Path) -> None:
    override(
        tmp_path, "en/email/layout.html", "<i>{% block greeting %}{% endblock %}</i>{% block body %}{% endblock %}"
    )
    mine = Renderer(own(tmp_path, shop={"locale": "hi_IN"}))
    html = render(mine).html
    assert html is not None
    assert html.startswith('<i><p style="margin:0 0 16px;">नमस्ते Priya Rao जी,</p>')


@pytest.mark.parametrize("language", ["en", "hi"])
def test_a_reason_that_only_machines_read_is_left_out(renderer: Renderer, language: str) -> None:
    attempt = {"paymentId": "pay_failed", "error": {"code": "BAD_REQUEST_ERROR"}}
    for channel in WITH_WORDS:
        order = spoken({"payment": {"attempts": [attempt]}}, language)
        assert "BAD" not in render(renderer, "payment_failed", channel, order=order).text
