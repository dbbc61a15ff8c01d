"""Signed requests to the merchant's own systems, by the Standard Webhooks specification (standardwebhooks.com).

The body is `{"type", "timestamp", "data"}`; `data` is what the notice's template, a JSON object, says.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import orjson
from pydantic import SecretStr
from standardwebhooks import Webhook

from models.errors import SettingsError
from watcher.channels import Message, NoAddress, Rejected, Sent, Stores
from watcher.channels.http import Http, OverHttp, encoded
from watcher.channels.targets import PublicResolver, forbidden, public_socket

if TYPE_CHECKING:
    from models.channel_settings import OutgoingWebhookSettings
    from models.settings import Settings

PREFIX = "whsec_"
_SHORTEST_SECRET, _LONGEST_SECRET = 24, 64  # bytes, by the specification
_SECTION = "PAYLATCH_OUTGOING_WEBHOOK"


class WebhookChannel(OverHttp):
    """Signed webhooks; keyed, since a receiver refuses a `webhook-id` that it has taken."""

    name = "webhook"
    keyed = True

    def __init__(self, settings: Settings) -> None:
        own = settings.outgoing_webhook
        self._url = _checked_url(own)
        self._signers = [_signer(label, secret) for label, secret in own.secrets.items()]
        if not self._signers:
            raise SettingsError(f"{_SECTION}__SECRETS is empty: nobody could tell our requests from anybody else's")
        anywhere = own.private_targets
        self._http = Http(own.timeout) if anywhere else Http(own.timeout, PublicResolver(), public_socket)
        self.concurrency = own.concurrency
        self.timeout = own.timeout

    @classmethod
    def unconfigured(cls, settings: Settings) -> str | None:
        """There must be somewhere to send to."""
        return None if settings.outgoing_webhook.url else f"{_SECTION}__URL is not set, so no webhook is sent"

    @classmethod
    def build(cls, settings: Settings, stores: Stores) -> Self:  # noqa: ARG003 - the interface's
        """The channel; raises `SettingsError` for an address or a secret that cannot be used."""
        return cls(settings)

    def address(self, order: Mapping[str, Any], recipient: str) -> str:  # noqa: ARG002 - the interface's
        """The shop's own systems, whose address stays in the settings; raises `NoAddress` for anybody else."""
        if recipient != "admin":
            raise NoAddress("admin_only")
        return "admin"

    async def send(self, key: str, message: Message) -> Sent:
        """Post it; any 2xx is enough. Raises `SendError`."""
        message_id = "msg_" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        body = encoded(_event(message))
        now = datetime.now(UTC)
        headers = {
            "Content-Type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signer.sign(message_id, now, body.decode()) for signer in self._signers),
        }
        answer = await self._http.post(self._url.get_secret_value(), body, headers)
        if not answer.accepted:
            raise answer.refusal
        return Sent(message_id)


def _event(message: Message) -> dict[str, Any]:
    """The body, the same at every try; raises `Rejected` for a template of the shop's that wrote no JSON object."""
    try:
        details = orjson.loads(message.text)
    except orjson.JSONDecodeError:
        details = None
    if not isinstance(details, dict):
        raise Rejected("template_not_json")
    notice = str(message.data.get("notice"))
    order_id = message.data.get("order_id")
    if isinstance(order_id, bool) or not isinstance(order_id, int | str):
        order_id = str(order_id)
    return {
        "type": notice.replace("_", ".", 1),
        "timestamp": details.pop("happenedAt", None),
        "data": {"orderId": order_id, "notice": notice, **details},
    }


def _checked_url(own: OutgoingWebhookSettings) -> SecretStr:
    """The address; raises `SettingsError`, which does not repeat it."""
    url = own.url or SecretStr("")
    scheme, host = _scheme_and_host(url.get_secret_value())
    if not host or scheme not in {"https", "http"}:
        raise SettingsError(f"{_SECTION}__URL is not an address such as https://erp.example.com/paylatch")
    if not own.private_targets and (scheme != "https" or (_is_address(host) and forbidden(host))):
        raise SettingsError(
            f"{_SECTION}__URL must be https and public; {_SECTION}__PRIVATE_TARGETS=true allows anything else"
        )
    return url


def _scheme_and_host(url: str) -> tuple[str, str]:
    """Both empty for an address with credentials or white space in it, or one that cannot be read."""
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port  # an impossible port is told of only when it is read
    except ValueError:
        return "", ""
    usable = host and "@" not in parts.netloc and url.isprintable() and " " not in url
    return (parts.scheme, host or "") if usable else ("", "")


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()


def _signer(label: str, secret: SecretStr) -> Webhook:
    """One secret, ready to sign; raises `SettingsError`, which names its label only."""
    text = secret.get_secret_value().removeprefix(PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if not _SHORTEST_SECRET <= len(key) <= _LONGEST_SECRET:
        raise SettingsError(
            f"{_SECTION}__SECRETS: the one labelled {label!r} is not whsec_ and the base64 of "
            f"{_SHORTEST_SECRET} to {_LONGEST_SECRET} bytes; `openssl rand -base64 32` makes the base64"
        )
    return Webhook(key)
