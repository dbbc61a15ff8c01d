"""Messages inside the shop's own application: documents in `notifications`, which the shop reads as it likes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

import pymongo
from bson import ObjectId
from bson.errors import BSONError
from pymongo.errors import ConnectionFailure, DuplicateKeyError, PyMongoError, WriteConcernError

from watcher.channels import Message, NoAddress, NotSent, Rejected, Sent, Stores, Unknown

if TYPE_CHECKING:
    from models.settings import Settings


class InAppChannel:
    """One document per key: `_id` is the key, so a second copy cannot exist."""

    name = "inapp"
    keyed = True
    concurrency = 8
    timeout = 10.0

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    @classmethod
    def unconfigured(cls, settings: Settings) -> str | None:  # noqa: ARG003 - the interface's
        """Never: the database is always there."""
        return None

    @classmethod
    def build(cls, settings: Settings, stores: Stores) -> Self:  # noqa: ARG003 - the interface's
        """The channel over the database's `notifications`."""
        return cls(stores)

    def address(self, order: Mapping[str, Any], recipient: str) -> str:
        """The role for admins, else the order's user; raises `NoAddress` for an order without one."""
        if recipient == "admin":
            return "admin"
        user = order.get("userId")
        if isinstance(user, ObjectId | UUID | int) and not isinstance(user, bool):
            return str(user)
        if isinstance(user, str) and user.strip():
            return user
        raise NoAddress("no_user_id")

    async def send(self, key: str, message: Message) -> Sent:
        """Insert unless it is there; network trouble is `Unknown`, since sending again under this key is harmless."""
        try:
            with pymongo.timeout(self.timeout):
                await self._stores.notifications.update_one(
                    {"_id": key},
                    {"$setOnInsert": _document(message, datetime.now(UTC))},
                    upsert=True,
                )
        except DuplicateKeyError:  # two senders of the same key at the same instant: it is stored
            pass
        except (ConnectionFailure, WriteConcernError):
            raise Unknown("database_unreachable") from None
        except (BSONError, OverflowError, UnicodeError):
            raise Rejected("not_storable") from None
        except PyMongoError as error:
            raise _translated(error) from None
        return Sent(key)

    async def __aenter__(self) -> Self:
        """Nothing to open: the database is opened by the process."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing to close."""


def _document(message: Message, now: datetime) -> dict[str, Any]:
    role = "admin" if message.data.get("role") == "admin" else "user"
    return {
        "type": message.data.get("notice"),
        "role": role,
        "userId": None if role == "admin" else message.data.get("user_id", message.address),
        "title": message.subject,
        "body": message.text,
        "orderId": message.data.get("order_id"),
        "readAt": None,
        "createdAt": now,
        "updatedAt": now,
    }


def _translated(error: PyMongoError) -> NotSent | Unknown:
    if error.timeout:
        return Unknown("database_timeout")
    code = getattr(error, "code", None)
    return NotSent(f"database_{code}" if isinstance(code, int) else "database_error")
