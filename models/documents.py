"""Every stored document and its indexes: camelCase in MongoDB (as Mongoose code reads them), snake_case in Python.

Beanie maps documents and reads; the hot paths write through the collections of `models.database.Database`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from beanie import Document, PydanticObjectId
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pymongo import ASCENDING, IndexModel

from models.states import AlertState, EventStatus, Origin, RowStatus


def _unique_string(path: str) -> IndexModel:
    """Unique among the documents in which `path` is a string that says something; absent, null and "" never clash.

    `$gt: ""` only matches strings, and a look-up by equality can use such an index; with `$type` it could not.
    """
    return IndexModel([(path, ASCENDING)], unique=True, partialFilterExpression={path: {"$gt": ""}})


def _rare_string(path: str) -> IndexModel:
    """For a path that few documents have: the others take no place in it."""
    return IndexModel([(path, ASCENDING)], partialFilterExpression={path: {"$gt": ""}})


class Part(BaseModel):
    """A sub-document."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")


class Stored(Document):
    """A document of ours."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")

    id: PydanticObjectId | None = Field(default=None, alias="_id")
    created_at: datetime
    updated_at: datetime


class Lease(Part):
    """Who works on a row: a random token for this very claim, its end, and the session of its transaction."""

    token: str
    until: datetime
    lsid: bytes | None = None


class EventRefs(Part):
    """The provider's ids that a message names."""

    order_id: str | None = None
    payment_id: str | None = None
    refund_id: str | None = None
    payment_link_id: str | None = None
    subscription_id: str | None = None
    receipt: str | None = None
    """The shop's order number, where the message names it."""


class Outcome(Part):
    """What came of an event."""

    code: str
    detail: str | None = None


class Duplicates(Part):
    """Further deliveries of the same event."""

    count: int = 0
    last_at: datetime | None = None


class WebhookEvent(Stored):
    """One authentic message: the claim that makes it take effect once, and its raw bytes for ever."""

    event_id: str
    body_hash: str
    id_signed: bool
    """Whether the signature covers the event id; if not, the body's hash is unique too."""
    provider: str
    event_type: str
    account_id: str | None = None
    origin: Origin
    status: EventStatus
    raw_body: bytes
    payload: dict[str, Any] | None = None
    signed_with: str | None = None
    refs: EventRefs = Field(default_factory=EventRefs)
    occurred_at: datetime | None = None
    received_at: datetime
    attempts: int = 0
    next_attempt_at: datetime | None = None
    lease: Lease | None = None
    error: str | None = None
    error_detail: str | None = None
    outcome: Outcome | None = None
    processed_at: datetime | None = None
    requeues: int = 0
    duplicates: Duplicates = Field(default_factory=Duplicates)
    flags: list[str] = Field(default_factory=list)
    parked_until: datetime | None = None
    parks: int = 0

    class Settings:
        """Collection and indexes."""

        name = "webhook_events"
        indexes: ClassVar = [
            IndexModel([("eventId", ASCENDING)], unique=True),
            IndexModel([("bodyHash", ASCENDING)], unique=True, partialFilterExpression={"idSigned": False}),
            IndexModel([("status", ASCENDING), ("nextAttemptAt", ASCENDING)]),
            IndexModel([("refs.orderId", ASCENDING)]),
            IndexModel([("refs.paymentId", ASCENDING)]),
            _rare_string("refs.paymentLinkId"),  # an order's story, and whoever has only the link's or refund's id
            _rare_string("refs.refundId"),
            IndexModel([("receivedAt", ASCENDING)]),
        ]


class Order(Document):
    """The shop's order: the merchant inserts it as `pending`; `payment`, `history` and `version` are ours to write."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")

    id: object = Field(default=None, alias="_id")  # type: ignore[assignment]  # the shop's, of any type; beanie asks isinstance()
    order_number: Any = None
    payment: dict[str, Any] | None = None
    history: list[dict[str, Any]] | None = None
    version: int | None = None

    class Settings:
        """Collection and indexes."""

        name = "orders"
        indexes: ClassVar = [
            _unique_string("payment.razorpayOrderId"),
            _unique_string("payment.razorpayPaymentId"),
            IndexModel([("payment.attempts.paymentId", ASCENDING)]),
            IndexModel([("payment.status", ASCENDING)]),
            IndexModel([("payment.transactionId", ASCENDING)]),
            IndexModel([("payment.paymentLinkId", ASCENDING)]),
            IndexModel([("payment.refs.id", ASCENDING)]),
            _rare_string("payment.review.state"),  # operators list what is open among millions of orders
            IndexModel([("payment.changedAt", ASCENDING)]),
            IndexModel([("orderNumber", ASCENDING)]),
        ]


class LedgerRow(Stored):
    """Money that moved; `_id` is `<entryType>:<refId>`."""

    id: str = Field(alias="_id")  # type: ignore[assignment]  # our own business key
    entry_type: str
    ref_id: str
    amount: int
    currency: str | None = None
    order_id: Any = None
    user_ref: Any = None

    class Settings:
        """Collection and indexes."""

        name = "ledger_entries"
        indexes: ClassVar = [IndexModel([("orderId", ASCENDING)]), IndexModel([("createdAt", ASCENDING)])]


class Fulfilment(Stored):
    """The one go-ahead to ship an order; `_id` is the order's id."""

    id: object = Field(alias="_id")  # type: ignore[assignment]  # of the order's type, whatever that is
    payment_id: str

    class Settings:
        """Collection and indexes."""

        name = "fulfilments"
        indexes: ClassVar = [IndexModel([("createdAt", ASCENDING)])]


class NotificationRow(Stored):
    """One notice for one recipient by one channel: `key` is unique, so it exists once."""

    key: str
    notice: str
    refs: list[str] = Field(default_factory=list)
    order_id: Any
    foreign: bool = False
    channel: str
    to: str
    status: RowStatus
    fact_at: datetime
    attempts: int = 0
    next_attempt_at: datetime | None = None
    lease: Lease | None = None
    message: dict[str, Any] | None = None
    reason: str | None = None
    provider_message_id: str | None = None
    sent_at: datetime | None = None
    unknown_at: datetime | None = None
    gap: bool = False
    """Found by the sweep after a gap in the stream, so it goes out under the cap."""
    forced: bool = False
    """An operator wants it sent however old its fact is."""
    interventions: int = 0
    """How often an operator moved it."""
    resolved_by: str | None = None

    class Settings:
        """Collection and indexes."""

        name = "notification_log"
        indexes: ClassVar = [
            IndexModel([("key", ASCENDING)], unique=True),
            IndexModel([("status", ASCENDING), ("nextAttemptAt", ASCENDING)]),
            IndexModel([("channel", ASCENDING), ("status", ASCENDING), ("nextAttemptAt", ASCENDING)]),
            IndexModel([("orderId", ASCENDING)]),
        ]


class InAppNotification(Stored):
    """A message inside the shop's own application."""

    id: str = Field(alias="_id")  # type: ignore[assignment]  # our own business key
    type: str
    role: str
    user_id: Any = None
    title: str
    body: str
    order_id: Any = None
    read_at: datetime | None = None

    class Settings:
        """Collection and indexes."""

        name = "notifications"
        indexes: ClassVar = [IndexModel([("role", ASCENDING), ("userId", ASCENDING), ("createdAt", ASCENDING)])]


class WatcherState(Document):
    """The watcher's place: `checkpoint`, `leader`, `baseline`, `gap`, `sweep`; `settled:…` per order paid before it."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")

    id: str = Field(alias="_id")  # type: ignore[assignment]  # our own business key

    class Settings:
        """Collection and indexes."""

        name = "watcher_state"
        indexes: ClassVar[list[IndexModel]] = []


class WatcherDeadLetter(Stored):
    """A change that could not be understood, kept with its resume token."""

    operation: str | None = None
    error: str

    class Settings:
        """Collection and indexes."""

        name = "watcher_dead_letters"
        indexes: ClassVar = [IndexModel([("createdAt", ASCENDING)])]


class WatcherHeartbeat(Document):
    """What the reader writes for itself to read: it proves that the stream brings changes while the shop is quiet."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")

    id: str = Field(alias="_id")  # type: ignore[assignment]  # our own business key

    class Settings:
        """Collection and indexes."""

        name = "watcher_heartbeat"
        indexes: ClassVar[list[IndexModel]] = []


class Alert(Stored):
    """Something a person must look at; one row per kind and thing, however often it happens."""

    id: str = Field(alias="_id")  # type: ignore[assignment]  # our own business key
    kind: str
    ref: str
    detail: str = ""
    times: int = Field(alias="count")
    first_at: datetime
    last_at: datetime
    state: AlertState = AlertState.OPEN
    by: str | None = None
    why: str | None = None
    closed_at: datetime | None = None
    notified_at: datetime | None = None

    class Settings:
        """Collection and indexes."""

        name = "alerts"
        indexes: ClassVar = [IndexModel([("lastAt", ASCENDING)]), IndexModel([("state", ASCENDING)])]


class AuditEntry(Stored):
    """What an operator did."""

    actor: str
    command: str
    filter: dict[str, Any]
    affected: int = Field(alias="count")

    class Settings:
        """Collection and indexes."""

        name = "audit_log"
        indexes: ClassVar = [IndexModel([("createdAt", ASCENDING)])]


DOCUMENTS: dict[str, type[Document]] = {
    "webhook_events": WebhookEvent,
    "orders": Order,
    "ledger_entries": LedgerRow,
    "fulfilments": Fulfilment,
    "notification_log": NotificationRow,
    "notifications": InAppNotification,
    "watcher_state": WatcherState,
    "watcher_dead_letters": WatcherDeadLetter,
    "watcher_heartbeat": WatcherHeartbeat,
    "alerts": Alert,
    "audit_log": AuditEntry,
}
"""The field of `CollectionNames` that names a document's collection -> the document."""
