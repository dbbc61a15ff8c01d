"""Text messages by MSG91's flow API (v5), whose templates are registered under India's DLT rules.

MSG91 among the Indian providers: the key travels in a header and not in the address, a request names the registered
template by one id, and the answer is JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from watcher.channels import Message, NotSent, Rejected, Sent, Stores, Unknown
from watcher.channels.http import Answer, Http, OverHttp, encoded
from watcher.channels.phone import customer_phone
from watcher.channels.provider_templates import in_language, notice_of, number_of, require_notices, values

if TYPE_CHECKING:
    from models.settings import Settings

# MSG91's error codes; those of its older interfaces, which the flow API goes on using.
_OUR_ACCOUNT = frozenset({"201", "203", "207", "208", "301", "302", "303", "306", "402", "418", "505"})
"""Key, sender, balance, an expired account, our IP address not on their list: an operator can put it right in time."""
_THIS_MESSAGE = frozenset({"101", "102", "202", "310"})
"""No number, no text, a number that is none, a text that is too long."""
_SEEN_BEFORE = "311"
"""The same request within ten seconds: an earlier try, whose end we do not know, may have been taken."""
_LONGEST_CODE = 8


class SmsChannel(OverHttp):
    """Text messages; unkeyed, since MSG91 sends a second copy of the same request again."""

    name = "sms"
    keyed = False

    def __init__(self, settings: Settings) -> None:
        own = settings.sms
        routes = settings.notifications.effective_routes
        routed = (notice for notice, to in routes.items() if any(self.name in names for names in to.values()))
        require_notices("PAYLATCH_SMS__TEMPLATES", own.templates, routed)
        self._own = own
        self._http = Http(own.timeout)
        self.concurrency = own.concurrency
        self.timeout = own.timeout

    @classmethod
    def unconfigured(cls, settings: Settings) -> str | None:
        """MSG91 needs the account's key."""
        return None if settings.sms.auth_key else "PAYLATCH_SMS__AUTH_KEY is not set, so no text message is sent"

    @classmethod
    def build(cls, settings: Settings, stores: Stores) -> Self:  # noqa: ARG003 - the interface's
        """The channel; raises `SettingsError` for a routed notice without a template, or an unknown notice."""
        return cls(settings)

    def address(self, order: Mapping[str, Any], recipient: str) -> str:
        """The number in the order's shipping address; raises `NoAddress`."""
        return customer_phone(order, recipient)

    async def send(self, key: str, message: Message) -> Sent:  # noqa: ARG002 - MSG91 takes no key
        """Hand the message to MSG91; raises `SendError`."""
        body = encoded(self._request(message))
        auth_key = self._own.auth_key.get_secret_value() if self._own.auth_key else ""
        headers = {"authkey": auth_key, "Content-Type": "application/json", "Accept": "application/json"}
        answer = await self._http.post(f"{self._own.base_url}/api/v5/flow", body, headers)
        return Sent(accepted(answer))

    def _request(self, message: Message) -> dict[str, Any]:
        named = self._own.templates.get(notice_of(message))
        if named is None:  # taken out of the settings since the message was written
            raise NotSent("no_template")
        template = named if isinstance(named, str) else in_language(message, named, next(iter(named.values())))
        variables = {f"var{number}": value for number, value in enumerate(values(message.text), start=1)}
        recipient = {"mobiles": number_of(message).removeprefix("+"), **variables}
        return {"template_id": template, "short_url": "0", "recipients": [recipient]}


def accepted(answer: Answer) -> str:
    """MSG91's request id; raises `SendError`. It tells some refusals by the status, others in an answer of 200."""
    document = answer.document
    kind = document.get("type") or document.get("status")
    if answer.accepted and kind == "success":
        return str(document.get("message") or document.get("request_id") or "")[:200]
    code = _code(document)
    if code in _THIS_MESSAGE:
        raise Rejected(f"msg91_{code}")
    if code == _SEEN_BEFORE:
        raise Unknown(f"msg91_{code}")
    if code in _OUR_ACCOUNT or answer.status in {401, 403}:
        raise NotSent(f"msg91_{code or answer.status}", answer.retry_after)
    if not answer.accepted:
        raise answer.refusal
    if kind is None:
        raise Unknown("answer_unreadable")
    # A code that we do not know: certainly not sent, and not known to be this message's fault.
    raise NotSent(f"msg91_{code or 'refused'}", answer.retry_after)


def _code(document: Mapping[str, Any]) -> str:
    """The error's number, empty where there is none; `apiError` is the finer one."""
    for name in ("apiError", "code"):
        code = str(document.get(name, ""))
        if code.isascii() and code.isdecimal() and len(code) <= _LONGEST_CODE:
            return code
    return ""
