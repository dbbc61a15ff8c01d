"""WhatsApp by Meta's Cloud API: template messages, whose wording Meta has approved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from models.errors import SettingsError
from watcher.channels import Message, NotSent, Rejected, SendError, Sent, Stores, Unknown
from watcher.channels.http import Answer, Http, OverHttp, encoded
from watcher.channels.phone import customer_phone
from watcher.channels.provider_templates import in_language, notice_of, number_of, require_notices, values

if TYPE_CHECKING:
    from models.settings import Settings

# https://developers.facebook.com/documentation/business-messaging/whatsapp/support/error-codes
_TOO_MANY = frozenset({4, 613, 80007, 130429, 131048, 131056, 133016})
_NOT_NOW = frozenset({1, 2, 131000, 131016, 131057, 133004})
_OUR_ACCOUNT = frozenset(
    {0, 3, 10, 190, 368, *range(200, 300), 131005, 131031, 131037, 131042, 131045, 132001, 132015, 132016, 133010}
)
"""Token, rights, payment, registration, a template that is missing or paused: an operator can put it right in time."""
_THIS_MESSAGE = frozenset({130472, 131021, 131026, 131030, 131047, 131049, 131050})
"""No WhatsApp at that number, opted out, not reachable this way."""


class WhatsAppChannel(OverHttp):
    """WhatsApp; unkeyed, since Meta sends a second copy of the same request again."""

    name = "whatsapp"
    keyed = False

    def __init__(self, settings: Settings) -> None:
        own = settings.whatsapp
        if own.phone_number_id is None or own.access_token is None:
            missing = "PHONE_NUMBER_ID" if own.phone_number_id is None else "ACCESS_TOKEN"
            raise SettingsError(f"PAYLATCH_WHATSAPP__{missing} is not set: whatsapp needs the id and the token")
        require_notices("PAYLATCH_WHATSAPP__TEMPLATES", own.templates)
        self._own, self._token = own, own.access_token
        self._url = f"{own.base_url}/{own.api_version}/{own.phone_number_id}/messages"
        self._http = Http(own.timeout)
        self.concurrency = own.concurrency
        self.timeout = own.timeout

    @classmethod
    def unconfigured(cls, settings: Settings) -> str | None:
        """WhatsApp needs a sending number; half of what it needs is a mistake, which `build` tells."""
        if settings.whatsapp.phone_number_id is None and settings.whatsapp.access_token is None:
            return "PAYLATCH_WHATSAPP__PHONE_NUMBER_ID is not set, so nothing is sent by WhatsApp"
        return None

    @classmethod
    def build(cls, settings: Settings, stores: Stores) -> Self:  # noqa: ARG003 - the interface's
        """The channel; raises `SettingsError` for a missing half or an unknown notice."""
        return cls(settings)

    def address(self, order: Mapping[str, Any], recipient: str) -> str:
        """The number in the order's shipping address; raises `NoAddress`."""
        return customer_phone(order, recipient)

    async def send(self, key: str, message: Message) -> Sent:  # noqa: ARG002 - Meta takes no key
        """Hand the message to Meta; raises `SendError`."""
        body = encoded(self._request(message))
        headers = {"Authorization": f"Bearer {self._token.get_secret_value()}", "Content-Type": "application/json"}
        answer = await self._http.post(self._url, body, headers)
        if not answer.accepted:
            raise refusal(answer)
        return Sent(_message_id(answer))

    def _request(self, message: Message) -> dict[str, Any]:
        notice = notice_of(message)
        template: dict[str, Any] = {
            "name": self._own.templates.get(notice, self._own.template_prefix + notice),
            "language": {"code": in_language(message, self._own.languages, self._own.language)},
        }
        if parameters := [{"type": "text", "text": value} for value in values(message.text)]:
            template["components"] = [{"type": "body", "parameters": parameters}]
        return {
            "messaging_product": "whatsapp",
            "recipient_type": "individual",
            "to": number_of(message),
            "type": "template",
            "template": template,
        }


def refusal(answer: Answer) -> SendError:
    """What Meta's refusal means: by its own code where there is one that we know, else by the status."""
    error = answer.document.get("error")
    code = error.get("code") if isinstance(error, Mapping) else None
    if isinstance(code, bool) or not isinstance(code, int):
        code = None
    if code in _THIS_MESSAGE:
        return Rejected(f"meta_{code}")
    if code in _TOO_MANY or code in _NOT_NOW or code in _OUR_ACCOUNT:
        return NotSent(f"meta_{code}", answer.retry_after)
    if answer.status == 401:
        return NotSent("http_401")
    told = answer.refusal
    if code is not None and isinstance(told, Rejected):
        return Rejected(f"meta_{code}")
    return told


def _message_id(answer: Answer) -> str:
    messages = answer.document.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else None
    found = first.get("id") if isinstance(first, Mapping) else None
    if not isinstance(found, str):
        raise Unknown("answer_unreadable")
    return found[:200]
