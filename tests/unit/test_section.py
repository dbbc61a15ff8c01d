"""Values that settings of several channels share."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from models.channel_settings import SmsSettings, WhatsAppSettings


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://api.example.com", "https://api.example.com"),
        ("https://api.example.com:8443/v1/", "https://api.example.com:8443/v1"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("http://[::1]:9000", "http://[::1]:9000"),
        ("http://localhost", "http://localhost"),
    ],
)
def test_an_api_is_called_by_https_or_on_this_machine(given: str, kept: str) -> None:
    assert SmsSettings(base_url=given).base_url == kept


@pytest.mark.parametrize(
    "given",
    [
        "http://api.example.com",
        "http://10.0.0.1",
        "http://127.0.0.1.example.com",
        "ftp://localhost",
        "api.example.com",
        "https://",
        "https://user:secret@api.example.com",
        "https://api.example.com?key=secret",
        "https://api.example.com#x",
        "https://api.example.com:99999",
        "https://[::1",
        "",
    ],
)
def test_credentials_go_nowhere_else(given: str) -> None:
    with pytest.raises(ValidationError, match="must be an https address"):
        SmsSettings(base_url=given)


@pytest.mark.parametrize("secret", ["", " ", "a b", "a\r\nX-Evil: b", "a\n", "ключ"])
def test_a_credential_that_no_header_can_carry_is_refused(secret: str) -> None:
    with pytest.raises(ValidationError, match="no HTTP header can carry"):
        WhatsAppSettings.model_validate({"access_token": secret})
