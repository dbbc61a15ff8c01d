"""Settings of the channels beside mail: whose API is called, with which credentials and templates."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr

from models.section import ApiAddress, Credential, Places, Seconds, Section

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")]
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}(_[A-Za-z0-9]{2,8})*$")]
"""A language of our templates: `hi`, `hi_IN`."""


class WhatsAppSettings(Section):
    """Template messages by Meta's Cloud API."""

    phone_number_id: Annotated[str, Field(pattern=r"^[0-9]+$")] | None = None
    """Meta's id of the sending number, which is not the number itself."""
    access_token: Credential | None = None
    api_version: Annotated[str, Field(pattern=r"^v[0-9]+\.[0-9]+$")] = "v24.0"
    base_url: ApiAddress = "https://graph.facebook.com"
    template_prefix: Annotated[str, Field(pattern=r"^[a-z0-9_]*$")] = "paylatch_"
    """Put before a notice's name, it is the name of the template at Meta."""
    templates: dict[str, Name] = {}
    """Notice -> name of the template at Meta, where it is not the prefix and the notice's name."""
    language: Name = "en"
    languages: dict[Language, Name] = {}
    """Our language -> the code under which the templates are approved in it at Meta; any other has `language`."""
    timeout: Seconds = 15.0
    concurrency: Places = 4


class SmsSettings(Section):
    """Text messages by MSG91's flow API."""

    auth_key: Credential | None = None
    base_url: ApiAddress = "https://control.msg91.com"
    templates: dict[str, Name | Annotated[dict[Language, Name], Field(min_length=1)]] = {}
    """Notice -> MSG91's id of the template that is registered under DLT; every notice routed to sms needs one.

    Or notice -> our language -> such an id; the first one is for every other language.
    """
    timeout: Seconds = 15.0
    concurrency: Places = 4


class OutgoingWebhookSettings(Section):
    """Signed requests to the merchant's own systems."""

    url: SecretStr | None = None
    """A secret, since many such addresses carry a token."""
    secrets: dict[str, SecretStr] = {}
    """Label -> signing secret (`whsec_` and base64). Each request is signed with all of them, for rotations."""
    private_targets: bool = False
    """Also take plain http and addresses inside private networks."""
    timeout: Seconds = 15.0
    concurrency: Places = 4


class AppriseSettings(Section):
    """Alerts to Slack, Telegram and whatever else Apprise knows."""

    urls: tuple[SecretStr, ...] = ()
    timeout: Seconds = 30.0
    concurrency: Places = 2
