"""Every notice in every channel for every recipient, whatever the order looks like; money; the shop's own templates."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from models.errors import SettingsError
from models.settings import DEFAULT_ROUTES
from models.telemetry import Telemetry
from tests.support.words import ORDERS, override, own, render, settings
from watcher.channels.provider_templates import values
from watcher.render import Rendered, Renderer, RenderError, money


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(settings())


@pytest.mark.parametrize("recipient", ["customer", "admin", "user"])
@pytest.mark.parametrize("channel", ["email", "inapp"])
@pytest.mark.parametrize("notice", DEFAULT_ROUTES)
def test_every_notice_renders_for_every_order(renderer: Renderer, notice: str, channel: str, recipient: str) -> None:
    for name, order in ORDERS.items():
        rendered = render(renderer, notice, channel, recipient, order)
        assert rendered.subject.strip() == rendered.subject != "", name
        assert "\n" not in rendered.subject, name
        assert len(rendered.text) > 20, name
        assert (rendered.html is not None) == (channel == "email"), name
        words = f"{rendered.subject}\n{rendered.text}\n{rendered.html}"
        assert not [trace for trace in ("{{", "{%", "Undefined", "object at", ": None") if trace in words], name


LINES = {"whatsapp": 4, "sms": 3}
HOSTILE = {"orderNumber": "A\n\n1\u2028\t2", "shippingAddress": {"name": "Priya\r\nRao"}}


@pytest.mark.parametrize("channel", LINES)
@pytest.mark.parametrize("notice", DEFAULT_ROUTES)
def test_a_providers_template_always_gets_as_many_values_as_it_has_variables(
    renderer: Renderer, notice: str, channel: str
) -> None:
    for name, order in {**ORDERS, "hostile": HOSTILE}.items():
        for recipient in ("customer", "user"):
            rendered = render(renderer, notice, channel, recipient, order)
            assert len(values(rendered.text)) == len(rendered.text.splitlines()) == LINES[channel], name
            assert (rendered.subject, rendered.html) == ("", None)
            assert not [trace for trace in ("{{", "{%", "Undefined", "object at", "None") if trace in rendered.text]


def test_a_providers_template_gets_the_facts(renderer: Renderer) -> None:
    assert values(render(renderer, channel="whatsapp").text) == ["Priya Rao", "A-1001", "₹4,99,000.00", "Chai & Co"]
    assert values(render(renderer, channel="sms").text) == ["A-1001", "Rs 4,99,000.00", "Chai & Co"]
    assert values(render(renderer, channel="whatsapp", order=HOSTILE).text)[:2] == ["Priya Rao", "A 1 2"]
    long = values(
        render(Renderer(settings(shop={"name": "x" * 90})), channel="sms", order={"orderNumber": "9" * 90}).text
    )
    assert max(map(len, long)) == 30, "DLT's most for a variable"


@pytest.mark.parametrize("notice", DEFAULT_ROUTES)
def test_a_webhook_is_json_for_every_order(renderer: Renderer, notice: str) -> None:
    for name, order in {**ORDERS, "hostile": HOSTILE, "quotes": {"orderNumber": '"},{"</script>'}}.items():
        details = json.loads(render(renderer, notice, "webhook", "admin", order).text)
        assert set(details["refs"]) == {"paymentId", "providerOrderId", "refundId", "disputeId"}, name
        assert details["amount"] is None or isinstance(details["amount"], int), name
        assert details["happenedAt"] == "2026-01-02T03:04:00.000Z"


def test_a_webhook_tells_the_facts_in_the_smallest_unit(renderer: Renderer) -> None:
    details = json.loads(render(renderer, "refund_processed", "webhook", "admin").text)
    assert details == {
        "orderNumber": "A-1001",
        "amount": 20000,
        "currency": "INR",
        "refs": {"paymentId": "pay_1", "providerOrderId": "order_1", "refundId": "rfnd_1", "disputeId": None},
        "reason": None,
        "state": "processed",
        "happenedAt": "2026-01-02T03:04:00.000Z",
    }


def test_apprise_reads_as_the_shops_own_messages_do(renderer: Renderer) -> None:
    for notice in DEFAULT_ROUTES:
        assert render(renderer, notice, "apprise", "admin") == render(renderer, notice, "inapp", "admin")


@pytest.mark.parametrize("notice", DEFAULT_ROUTES)
def test_what_the_shop_reads_is_precise(renderer: Renderer, notice: str) -> None:
    about = {"payment_failed": "pay_failed", "payment_review": "pay_wrong"}
    amounts = {"refund": "₹200.00", "payment_refunded": "₹200.00", "dispute": "₹300.00", "payment_review": "₹49.00"}
    amount = next((text for prefix, text in amounts.items() if notice.startswith(prefix)), "₹4,99,000.00")
    for channel in ("email", "inapp"):
        rendered = render(renderer, notice, channel, "admin")
        assert "A-1001" in rendered.subject
        for expected in ("A-1001", amount, about.get(notice, "pay_1"), "What to do"):
            assert expected in rendered.text, expected


def test_reasons_and_deadlines_are_told(renderer: Renderer) -> None:
    assert "insufficient funds" in render(renderer, "payment_failed").text
    assert "amount mismatch" in render(renderer, "payment_review", "inapp", "admin").subject
    assert "payment.amount" in render(renderer, "payment_review", "email", "admin").text
    assert "Answer by: 4 Jan 2026, 09:43" in render(renderer, "dispute_opened", "email", "admin").text
    assert "2 Jan 2026, 08:34" in render(renderer).text


def test_a_customer_never_reads_the_words_meant_for_the_shop(renderer: Renderer) -> None:
    for notice in DEFAULT_ROUTES:
        for recipient in ("customer", "user"):
            for channel in ("email", "inapp"):
                assert "What to do" not in render(renderer, notice, channel, recipient).text


def test_markup_in_an_order_is_text(renderer: Renderer) -> None:
    hostile = "<script>alert(1)</script>"
    order = {"orderNumber": hostile, "shippingAddress": {"name": hostile}, "payment": {"razorpayPaymentId": hostile}}
    for notice in DEFAULT_ROUTES:
        for recipient in ("customer", "admin"):
            rendered = render(renderer, notice, "email", recipient, order)
            assert rendered.html is not None
            assert "<script>" not in rendered.html
            assert "&lt;script&gt;" in rendered.html
            assert "Chai &amp; Co" in rendered.html


def test_template_syntax_in_an_order_is_text(renderer: Renderer) -> None:
    rendered = render(renderer, order={"orderNumber": "{{ 7 * 7 }}{% raw %}"})
    assert "{{ 7 * 7 }}{% raw %}" in rendered.subject
    assert "{{ 7 * 7 }}{% raw %}" in rendered.text


def test_a_line_break_in_the_order_number_stays_in_the_subject(renderer: Renderer) -> None:
    assert "A\r\nBcc: evil@example.com" in render(renderer, order={"orderNumber": "A\r\nBcc: evil@example.com"}).subject


@pytest.mark.parametrize("name", ["Win at https://evil.example", "WWW.evil.example", ["Priya"], None, " \n "])
def test_a_name_that_carries_a_link_or_is_none_is_left_out(renderer: Renderer, name: object) -> None:
    text = render(renderer, order={"shippingAddress": {"name": name}}).text
    assert text.startswith("Hello,\n")


def test_a_template_cannot_change_an_order(tmp_path: Path) -> None:
    override(tmp_path, "en/email/payment_completed.txt", "{% set _ = order.update({'x': 1}) %}changed")
    order = {"orderNumber": "A-1"}
    assert "changed" not in render(Renderer(own(tmp_path)), order=order).text
    assert order == {"orderNumber": "A-1"}


NO_DECIMALS: tuple[str, ...] = ("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW")
NO_DECIMALS += ("PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF")
MONEY = [
    (49900000, "INR", "₹4,99,000.00"),
    (5, "INR", "₹0.05"),
    (0, "INR", "₹0.00"),
    ("49900", "INR", "₹499.00"),
    (49900.0, "inr", "₹499.00"),
    (123456, "USD", "$1,234.56"),
    *[(1234, code, "1,234") for code in NO_DECIMALS],
    *[(1234567, code, "1,234.567") for code in ("BHD", "IQD", "JOD", "KWD", "OMR", "TND")],
    *[(123456, code, "1,234.56") for code in ("EUR", "GBP", "HUF", "IDR", "AFN", "MGA", "XYZ")],
]


@pytest.mark.parametrize(("amount", "currency", "expected"), MONEY)
def test_money_is_written_with_the_currencys_own_decimals(amount: object, currency: str, expected: str) -> None:
    shown = money(amount, currency, "en_IN")
    digits = "".join(each for each in shown if each in "0123456789.,").lstrip(".,")
    assert digits == "".join(each for each in expected if each in "0123456789.,")
    assert shown == expected or expected[0].isdigit()


def test_money_follows_the_locale() -> None:
    assert money(49900000, "INR", "en_IN") == "₹4,99,000.00"
    assert money(49900000, "INR", "de_DE") == "499.000,00\N{NO-BREAK SPACE}₹"


@pytest.mark.parametrize(
    "amount", [None, True, False, "499.00", "", "٤٩٩", -1, -0.5, 1.5, float("nan"), float("inf"), [1], {}, 10**40]
)
def test_what_is_no_amount_is_nothing(amount: object) -> None:
    assert money(amount, "INR", "en_IN") == ""


@pytest.mark.parametrize("currency", [None, "", "RUPEES", 7, ["INR"], "₹₹₹"])
def test_money_without_a_currency_is_nothing(currency: object) -> None:
    assert money(100, currency, "en_IN") == ""


def test_an_order_without_a_currency_has_the_shops() -> None:
    order = {"payment": {"amountPaid": 1234}, "totals": {"currency": "usd"}}
    assert "$12.34" in render(Renderer(settings(orders={"currency_path": "totals.currency"})), order=order).text
    assert "¥1,234" in render(Renderer(settings(orders={"default_currency": "JPY"})), order=order).text


def test_the_shops_template_comes_first_file_by_file(tmp_path: Path) -> None:
    override(
        tmp_path, "en/email/payment_completed.subject.txt", "\nPaid {{ order.payment.amount | money('INR') }}!\n\n"
    )
    rendered = render(Renderer(own(tmp_path)))
    assert rendered.subject == "Paid ₹4,99,000.00!"
    assert "We have received your payment" in rendered.text
    assert render(Renderer(own(tmp_path)), recipient="admin").subject.startswith("[Chai & Co] Paid")


def test_further_languages_are_folders(tmp_path: Path) -> None:
    override(tmp_path, "mr/email/payment_completed.subject.txt", "पैसे मिळाले")
    marathi = Renderer(own(tmp_path, shop={"locale": "mr_IN"}))
    assert render(marathi).subject == "पैसे मिळाले"
    assert render(marathi, "payment_failed").subject.startswith("Your payment")
    assert render(marathi, recipient="admin").subject != "पैसे मिळाले"


def test_further_channels_are_folders(tmp_path: Path) -> None:
    override(tmp_path, "en/sms/payment_completed.txt", "Paid: {{ amount }}")
    assert render(Renderer(own(tmp_path)), channel="sms") == Rendered("", "Paid: ₹4,99,000.00", None)


@pytest.mark.parametrize("wrong", ["fine\n{% if %}", "fine\n{{ amount", "fine\n{{ amount | no_such_filter }}"])
def test_a_broken_template_is_found_at_start_with_file_and_line(tmp_path: Path, wrong: str) -> None:
    override(tmp_path, "en/email/payment_failed.html", wrong)
    with pytest.raises(SettingsError, match=r"payment_failed\.html, line 2: "):
        Renderer(own(tmp_path))


def test_a_template_that_is_no_text_or_a_folder_that_is_none_is_a_settings_error(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SettingsError, match="UTF-8"):
        Renderer(own(tmp_path))
    with pytest.raises(SettingsError, match="PAYLATCH_NOTIFICATIONS__TEMPLATES"):
        Renderer(own(tmp_path / "missing"))


def test_files_that_are_no_templates_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "logo.png").write_bytes(b"\x89PNG{% if %}")
    (tmp_path / "notes.md").write_text("{% if %}")
    Renderer(own(tmp_path))


def test_a_shops_template_that_fails_on_an_order_gives_way_to_the_built_in_text(tmp_path: Path) -> None:
    override(tmp_path, "en/email/payment_completed.txt", "Hello\n{{ order.shippingAddress.name / 2 }}")
    events: list[tuple[str, dict[str, Any]]] = []
    renderer = Renderer(own(tmp_path), Telemetry(lambda event, fields: events.append((event, fields))))
    assert "We have received your payment" in render(renderer).text
    fields = {"notice": "payment_completed", "channel": "email", "to": "customer", "error": "TypeError"}
    fields["at"] = f"{tmp_path / 'en/email/payment_completed.txt'}, line 2"
    assert events == [("render.template_failed", fields)]


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ shop.__init__.__globals__ }}"])
def test_templates_run_in_a_sandbox(tmp_path: Path, source: str) -> None:
    override(tmp_path, "en/email/payment_completed.txt", f"seen {source}")
    assert "class" not in render(Renderer(own(tmp_path))).text


def test_a_notice_without_a_template_is_an_error_of_ours(renderer: Renderer) -> None:
    with pytest.raises(RenderError, match="no template for no_such_notice by email to customer"):
        render(renderer, "no_such_notice")


@pytest.mark.parametrize(
    ("name", "value"), [("locale", "xx_XX_nowhere"), ("timezone", "Mars/Olympus"), ("timezone", "../etc")]
)
def test_an_unknown_locale_or_time_zone_is_a_settings_error(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"PAYLATCH_SHOP__{name.upper()}"):
        Renderer(settings(shop={name: value}))


def test_an_alert_mail_stacks_its_long_references_so_that_a_phone_can_show_them(renderer: Renderer) -> None:
    reference = "duplicate_capture:" + "pay_" * 20
    alert = {"kind": "payment_review", "todo": "look at <it>", "count": 1, "facts": [(reference, "order <b>7</b>")]}
    mail = renderer.render("alert", None, "email", "admin", {"alert": alert}, datetime(2026, 1, 15, 9, 30, tzinfo=UTC))
    assert mail.html is not None
    assert "white-space:nowrap" not in mail.html
    assert f"{reference}</bdi></span><br><bdi>order &lt;b&gt;7&lt;/b&gt;</bdi>" in mail.html
    assert "Look at &lt;it&gt;." in mail.html
    assert ">Payment review<" in mail.html
