"""What `paylatch doctor` reads from the settings alone."""

from __future__ import annotations

from typing import Any

import pytest

from models.settings import Settings
from scripts.checks import Finding
from scripts.checks.settings import settings_findings

pytestmark = pytest.mark.filterwarnings("ignore:.imghdr. is deprecated:DeprecationWarning")  # Apprise asks for it

KEY = {"key_id": "rzp_test_1", "key_secret": "key-secret"}
MAIL = {"host": "127.0.0.1", "from": "shop@example.com"}


def found(what: str, **sections: Any) -> Finding:
    settings = Settings.model_validate({"mongodb": {"uri": "mongodb://127.0.0.1:1"}, **sections})
    return {finding.what: finding for finding in settings_findings(settings)}[what]


@pytest.mark.parametrize(
    ("what", "sections", "grade", "says"),
    [
        ("webhook secrets", {"razorpay": {"webhook_secrets": {}}}, "WRONG", "no webhook secret is set"),
        ("webhook secrets", {"razorpay": {"webhook_secrets": {"new": "x"}}}, "ok", "1 live: new"),
        ("webhook secrets", {"razorpay": {**KEY, "webhook_secrets": {"a": "key-secret"}}}, "warning", "a is the API"),
        ("API key", {"razorpay": {}}, "ok", "not set"),
        ("API key", {"razorpay": KEY}, "ok", "of test mode"),
        ("API key", {"razorpay": {"key_secret": "x"}}, "warning", "PAYLATCH_RAZORPAY__KEY_ID is not set"),
        ("API key", {"razorpay": {"key_id": "rzp_test_1"}}, "warning", "PAYLATCH_RAZORPAY__KEY_SECRET is not set"),
        ("API key", {"razorpay": {**KEY, "key_id": "merchant-7"}}, "warning", "does not begin with rzp_live_"),
        ("callers", {}, "ok", "no proxy is trusted"),
        ("callers", {"http": {"source_allow_list": "enforce"}}, "warning", "every webhook is refused"),
        ("callers", {"razorpay": KEY}, "warning", "share one rate limit"),
        ("callers", {"razorpay": KEY, "http": {"trusted_proxies": ["10.0.0.0/8"]}}, "ok", "10.0.0.0/8"),
        ("checkout callbacks", {}, "ok", "off"),
        ("checkout callbacks", {"razorpay": KEY}, "ok", "PAYLATCH_CHECKOUT__RETURN_URL is not set"),
        ("checkout callbacks", {"razorpay": KEY, "checkout": {"allowed_origins": ["https://s.example"]}}, "ok", "s.ex"),
        ("channel email", {"email": {}}, "WRONG", "PAYLATCH_EMAIL__HOST is not set"),
        ("channel email", {"email": MAIL}, "ok", "configured"),
        ("channel email", {"email": {"host": "127.0.0.1"}}, "WRONG", "PAYLATCH_EMAIL__FROM"),
        ("channel whatsapp", {}, "ok", "off: PAYLATCH_WHATSAPP__PHONE_NUMBER_ID"),
        ("channel whatsapp", {"whatsapp": {"phone_number_id": "1"}}, "WRONG", "ACCESS_TOKEN is not set"),
        (
            "channel sms",
            {"notifications": {"routes": {"payment_failed": {"customer": ["sms"]}}}},
            "WRONG",
            "PAYLATCH_SMS__AUTH_KEY is not set",
        ),
        ("channel fax", {"notifications": {"routes": {"payment_failed": {"user": ["fax"]}}}}, "WRONG", "there are: "),
        ("templates", {"notifications": {"templates": "/nowhere"}}, "WRONG", "/nowhere"),
        ("templates", {}, "ok", "built-in"),
        ("alerts reach", {"email": MAIL}, "warning", "PAYLATCH_NOTIFICATIONS__ADMIN_EMAIL"),
        ("alerts reach", {"email": MAIL, "notifications": {"admin_email": "a@shop.example"}}, "ok", "by email"),
        ("alerts reach", {"email": {}, "notifications": {"admin_email": "a@shop.example"}}, "warning", "nobody"),
        ("alerts reach", {"apprise": {"urls": ["json://127.0.0.1/"]}}, "ok", "by apprise"),
        ("reconciliation", {}, "ok", "only by `paylatch reconcile`"),
        ("reconciliation", {"reconcile": {"every": 60}}, "WRONG", "the API key is not set"),
        ("reconciliation", {"reconcile": {"every": 60}, "razorpay": KEY}, "ok", "every 60 s"),
    ],
)
def test_each_part_says_whether_it_is_on_and_which_setting_it_lacks(
    what: str, sections: dict[str, Any], grade: str, says: str
) -> None:
    finding = found(what, **sections)
    assert (finding.grade, says in finding.says) == (grade, True), finding


def test_no_secret_shows() -> None:
    secret = "hunter2-key"
    razorpay = {"key_id": "rzp_test_1", "key_secret": secret, "webhook_secrets": {"new": secret}}
    settings = Settings.model_validate({"mongodb": {"uri": "mongodb://127.0.0.1:1"}, "razorpay": razorpay})
    assert secret not in " ".join(finding.says for finding in settings_findings(settings))
