"""Mail by SMTP, one address per mail, as text and HTML."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.header import Header
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP, EmailPolicy
from email.utils import format_datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from email_validator import EmailNotValidError, ValidatedEmail, validate_email

from models.errors import SettingsError
from watcher.channels import Message, NoAddress, Rejected, Sent, Stores
from watcher.channels.smtp import Pool

if TYPE_CHECKING:
    from models.settings import Settings

_POLICY = SMTP.clone(cte_type="7bit")  # no relay may need 8BITMIME for our mails
_FROM = re.compile(r'(?:"?(?P<name>[^"<>\x00-\x1f]*?)"?[ ]*<(?P<inside>[^<>\s]+)>|(?P<bare>[^<>\s]+))')
_LONGEST = 320
_BREAKS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
"""What ends a header line for anybody, and the other control characters; a tab is only white space."""


class EmailChannel:
    """Mail; unkeyed, since no mail server refuses a second copy."""

    name = "email"
    keyed = False

    def __init__(self, settings: Settings) -> None:
        self._sender = _sender(settings.email.from_)
        self._admin = settings.notifications.admin_email
        self._pool = Pool(settings.email, greeting=self._sender.domain)
        self.concurrency = settings.email.concurrency
        self.timeout = settings.email.timeout

    @classmethod
    def unconfigured(cls, settings: Settings) -> str | None:
        """Mail needs a server."""
        return None if settings.email.host else "PAYLATCH_EMAIL__HOST is not set, so no mail is sent"

    @classmethod
    def build(cls, settings: Settings, stores: Stores) -> Self:  # noqa: ARG003 - the interface's
        """The channel; raises `SettingsError` for a From that is no address."""
        return cls(settings)

    def address(self, order: Mapping[str, Any], recipient: str) -> str:
        """The shop's own address for admins, else the one in the order's shipping address; raises `NoAddress`."""
        if recipient == "admin":
            return _checked(self._admin, absent="no_admin_email")
        shipping = order.get("shippingAddress")
        return _checked(shipping.get("email") if isinstance(shipping, Mapping) else None, absent="no_email")

    async def send(self, key: str, message: Message) -> Sent:
        """Hand the mail to the server; raises `SendError`."""
        try:
            recipient = _checked(message.address, absent="no_email")
        except NoAddress as error:  # a stored row that somebody edited
            raise Rejected(error.reason) from None
        message_id = f"<{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}@{self._sender.domain}>"
        content = _mail(self._sender, recipient, message_id, message)
        await self._pool.deliver(self._sender.addr_spec, recipient, content)
        return Sent(message_id)

    async def __aenter__(self) -> Self:
        """Connections are opened when there is something to send."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self._pool.close()


def _checked(value: object, absent: str) -> str:
    """One plain address, its domain in ASCII; raises `NoAddress(absent)` or `NoAddress("bad_email")`."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise NoAddress(absent)
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise NoAddress("bad_email")
    try:
        return _ascii(_validated(value.strip(" ")))
    except EmailNotValidError:
        raise NoAddress("bad_email") from None


def _validated(address: str) -> ValidatedEmail:
    return validate_email(
        address,
        check_deliverability=False,
        allow_smtputf8=False,
        test_environment=True,  # RFC 2606's .test, under which the demo shop's customers live
    )


def _ascii(valid: ValidatedEmail) -> str:
    if valid.ascii_email is None:
        raise EmailNotValidError
    return valid.ascii_email


def _sender(setting: str) -> Address:
    """`Shop <a@b.c>` or `a@b.c`; raises `SettingsError`, which does not repeat the value."""
    found = _FROM.fullmatch(setting.strip(" "))
    if found is None:
        raise SettingsError(_FROM_SENTENCE)
    try:
        address = _ascii(_validated(found["inside"] or found["bare"]))
    except EmailNotValidError:
        raise SettingsError(_FROM_SENTENCE) from None
    return Address(display_name=(found["name"] or "").strip(), addr_spec=address)


_FROM_SENTENCE = "PAYLATCH_EMAIL__FROM is not one mail address such as shop@example.com or Our Shop <shop@example.com>"


def _mail(sender: Address, recipient: str, message_id: str, message: Message) -> bytes:
    """The mail as sent; raises `Rejected` for content that would start a header of its own."""
    mail = EmailMessage(policy=_POLICY)
    try:
        mail["From"] = sender
        mail["To"] = Address(addr_spec=recipient)
        mail["Subject"] = _Subject(message.subject)
        mail["Date"] = format_datetime(datetime.now(UTC))
        mail["Message-ID"] = message_id
        mail["Auto-Submitted"] = "auto-generated"
    except ValueError:
        raise Rejected("header_injection") from None
    if any(_BREAKS.search(str(value)) for value in mail.values()):
        raise Rejected("header_injection")
    try:
        mail.set_content(message.text)
        if message.html is not None:
            mail.add_alternative(message.html, subtype="html")
        return mail.as_bytes()
    except ValueError:  # half a surrogate pair, which no mail can carry
        raise Rejected("not_encodable") from None


class _Subject(str):
    """A subject that the email package neither reads nor folds.

    Its parser decodes encoded words that stand in the *data* (`=?utf-8?q?x=0D=0ABcc:...?=`) and Python before 3.11.10
    writes their line breaks out as they are (CVE-2024-6923); its folder loses spaces between encoded words.
    """

    __slots__ = ()
    name = "Subject"

    def fold(self, *, policy: EmailPolicy) -> str:
        """The header's lines; encoded as a whole unless it is plain ASCII."""
        charset = "us-ascii" if self.isascii() and "=?" not in self else "utf-8"
        return f"Subject: {Header(self, charset, header_name=self.name).encode(linesep=policy.linesep)}{policy.linesep}"
