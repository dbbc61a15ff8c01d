"""The one way to the database for web app, watcher, scripts and tests alike: `async with database(settings)`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any

import pymongo.lock
import pymongo.pool_shared
from beanie import init_beanie
from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import AsyncMongoClient, ReadPreference, WriteConcern
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    ExecutionTimeout,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
)

from models.documents import DOCUMENTS
from models.errors import DatabaseUnfit, SettingsError, Unavailable
from models.settings import MongoSettings, Settings

RawDocument = dict[str, Any]
Collection = AsyncCollection[RawDocument]

DURABLE = WriteConcern("majority", j=True)
"""Rule 1: nothing is acknowledged before a majority has it in its journal."""
DUPLICATE_KEY = 11000
"""The server's code for a write that a unique index forbids."""
ADMISSION_TIMEOUT = 2.5


@dataclass(frozen=True, slots=True)
class Database:
    """The collections, all written with `majority, j=True`."""

    client: AsyncMongoClient[RawDocument]
    handle: AsyncDatabase[RawDocument]
    events: Collection
    orders: Collection
    ledger: Collection
    fulfilments: Collection
    notification_log: Collection
    notifications: Collection
    watcher_state: Collection
    dead_letters: Collection
    heartbeat: Collection
    alerts: Collection
    audit_log: Collection

    @classmethod
    def of(cls, client: AsyncMongoClient[RawDocument], settings: MongoSettings) -> Database:
        """The collections behind one client, named as the settings say."""
        options: CodecOptions[RawDocument] = CodecOptions(
            tz_aware=True,
            datetime_conversion=DatetimeConversion.DATETIME_AUTO,  # a shop's date past the year 9999 stays a number
            unicode_decode_error_handler="replace",  # a server may hold broken text of the shop's
        )
        handle = client.get_database(
            settings.database,
            codec_options=options,
            read_preference=ReadPreference.PRIMARY,  # whatever the address says: what we wrote must be there
            write_concern=DURABLE,
        )
        names = settings.collections
        return cls(
            client=client,
            handle=handle,
            events=handle[names.webhook_events],
            orders=handle[names.orders],
            ledger=handle[names.ledger_entries],
            fulfilments=handle[names.fulfilments],
            notification_log=handle[names.notification_log],
            notifications=handle[names.notifications],
            watcher_state=handle[names.watcher_state],
            dead_letters=handle[names.watcher_dead_letters],
            heartbeat=handle[names.watcher_heartbeat],
            alerts=handle[names.alerts],
            audit_log=handle[names.audit_log],
        )


def is_outage(error: PyMongoError) -> bool:
    """Whether the database could not be reached or could not confirm; any other refusal would come again."""
    labels = ("TransientTransactionError", "RetryableWriteError", "UnknownTransactionCommitResult")
    kinds = (ConnectionFailure, WaitQueueTimeoutError, ExecutionTimeout, WriteConcernError)
    return isinstance(error, kinds) or error.timeout or any(error.has_error_label(label) for label in labels)


@contextlib.asynccontextmanager
async def database(settings: Settings, *, timeout: float | None = None) -> AsyncIterator[Database]:  # noqa: ASYNC109
    """Open a client (with a timeout of its own for every operation, if given) and close it on leaving.

    Raises `SettingsError` for an address that cannot be read.
    """
    client = _client(settings.mongodb, timeout)
    try:
        yield Database.of(client, settings.mongodb)
    finally:
        await client.close()


async def _wait_for(waited: Awaitable[bool], timeout: float | None) -> bool:  # noqa: ASYNC109 - asyncio's signature
    async with asyncio.timeout(timeout):
        return await waited


_OPENS = "_async_create_connection"
_opens: Any = vars(pymongo.pool_shared).get(_OPENS)


async def _open_socket(*arguments: object) -> object:
    """As the driver's own, which leaves its socket open when it is cancelled while it connects (PyMongo 4.20)."""
    try:
        return await _opens(*arguments)
    except asyncio.CancelledError as error:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if isinstance(lost := frame.f_locals.get("sock"), socket.socket):
                lost.close()
        raise


def _mend_driver() -> None:
    """Keep a cancelled operation from leaving a socket open, and from blocking its client for ever.

    Python 3.11's `wait_for` runs what it waits for in a task of its own. When an operation that waits for a server is
    cancelled at the wrong moment, that task takes the driver's topology lock and nobody gives it back. 3.12 mended it.
    """
    if _opens is not None:  # another version of the driver may not have it
        setattr(pymongo.pool_shared, _OPENS, _open_socket)
    if sys.version_info < (3, 12):
        setattr(pymongo.lock, "wait_for", _wait_for)  # noqa: B010 - it is no name that the module exports


def _client(settings: MongoSettings, timeout: float | None) -> AsyncMongoClient[RawDocument]:
    _mend_driver()
    options: dict[str, Any] = {} if timeout is None else {"timeoutMS": round(timeout * 1000)}
    try:
        return AsyncMongoClient(
            settings.uri.get_secret_value(),
            tz_aware=True,
            appname="paylatch",
            serverSelectionTimeoutMS=round(settings.server_selection_seconds * 1000),
            **options,
        )
    except (InvalidURI, ConfigurationError, ValueError):
        raise SettingsError(
            "PAYLATCH_MONGODB__URI is not a MongoDB address such as mongodb://host:27017/?replicaSet=rs0",
        ) from None


async def require_replica_set(db: Database) -> None:
    """Refuse a database without transactions and change streams.

    Raises `Unavailable` when no server answers, `DatabaseUnfit` when it is no replica set.
    """
    try:
        hello = await db.client.admin.command("hello")
    except ServerSelectionTimeoutError:
        raise Unavailable("no MongoDB server answers at PAYLATCH_MONGODB__URI: is it running and reachable?") from None
    except OperationFailure as error:
        raise Unavailable(
            f"the MongoDB server refuses us (code {error.code}): check user and password in PAYLATCH_MONGODB__URI",
        ) from None
    except PyMongoError as error:
        raise Unavailable(f"the MongoDB server cannot be used ({type(error).__name__})") from None
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise DatabaseUnfit(
            "this MongoDB server is no replica set, so it has neither transactions nor change streams: start it with "
            "--replSet and run rs.initiate() once (one node is enough)",
        )


async def init_documents(db: Database, settings: Settings) -> None:
    """Bind the Beanie documents to this database, under the configured collection names; creates nothing."""
    for field, name in settings.mongodb.collections.model_dump().items():
        inner: Any = DOCUMENTS[field].Settings
        inner.name = name
    await init_beanie(db.handle, document_models=list(DOCUMENTS.values()), skip_indexes=True)
