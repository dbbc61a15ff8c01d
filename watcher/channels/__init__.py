"""What a channel is. A new one is a module here, a line in `registry.py`, a template folder and a stage in the tests.

Every channel passes one suite, `tests/integration/test_channel_conformance.py`.

SendError
├── NotSent     certainly not sent, worth another try          -> row `retry`
├── Rejected    this message can never be sent                 -> row `dead`
└── Unknown     may or may not have been sent                  -> row `unknown`
NoAddress       nobody to send to (raised by `address`)        -> row `skipped`

Reasons are short codes of ours (`rcpt_550`, `connect_timeout`): never an address, a secret or a server's own text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from pymongo.asynchronous.collection import AsyncCollection

    from models.settings import Settings


@dataclass(frozen=True, slots=True)
class Message:
    """One rendered message for one address, frozen at the first sending; only its type shows in logs."""

    address: str = field(repr=False)
    """A mail address, a phone number; for in-app the user's id or the role."""
    subject: str = field(repr=False)
    text: str = field(repr=False)
    html: str | None = field(default=None, repr=False)
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """`order_id`, `notice`, `role`, `user_id`, `language`: for channels that store, or that name a template."""

    def to_document(self) -> dict[str, Any]:
        """As kept in the row; `from_document` gives the same message back."""
        return {
            "address": self.address,
            "subject": self.subject,
            "text": self.text,
            "html": self.html,
            "data": dict(self.data),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The message of a row."""
        return cls(
            address=document["address"],
            subject=document["subject"],
            text=document["text"],
            html=document.get("html"),
            data=dict(document.get("data") or {}),
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """The receiver has taken the message over."""

    provider_message_id: str


class NoAddress(Exception):  # noqa: N818 - says what is the case, as the other names here do
    """This order names nobody whom this channel could reach; `reason` is a short code."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SendError(Exception):
    """A send that did not end well; `reason` is a short code."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotSent(SendError):  # noqa: N818
    """Certainly not sent, and worth another try, after `retry_after` seconds where the receiver named them."""

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Rejected(SendError):  # noqa: N818
    """This message can never be sent, however often it is tried."""


class Unknown(SendError):  # noqa: N818
    """The message may or may not have been sent."""


class Stores(Protocol):
    """The part of the database that channels write to."""

    @property
    def notifications(self) -> AsyncCollection[dict[str, Any]]:
        """In-app messages."""
        ...


class Channel(Protocol):
    """A way to reach people; entered as an async context manager before the first `send`.

    `send` raises nothing but `SendError` (and cancellation), so the dispatcher always knows what became of a message.
    """

    name: str
    keyed: bool
    """Whether the receiver refuses a second copy under the same key, so that sending again is harmless."""
    concurrency: int
    """How many sends may be under way at once."""
    timeout: float
    """Seconds: the longest that one send can take."""

    @classmethod
    def unconfigured(cls, settings: Settings) -> str | None:
        """Why this channel cannot be used, naming the setting; None when it can."""
        ...

    @classmethod
    def build(cls, settings: Settings, stores: Stores) -> Self:
        """The channel as configured; raises `SettingsError` for a setting that is wrong."""
        ...

    def address(self, order: Mapping[str, Any], recipient: str) -> str:
        """Where `recipient` (customer, user, admin) of this order is reached; raises `NoAddress`.

        Orders are the shop's own documents: any field may be missing or of any type.
        """
        ...

    async def send(self, key: str, message: Message) -> Sent:
        """Send once; `key` is the same at every try of the same message. Raises `SendError`."""
        ...

    async def __aenter__(self) -> Self:
        """Open what is to be kept open."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close every connection."""
        ...
