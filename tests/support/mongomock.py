"""An in-memory database for tests that need neither sessions nor change streams nor concurrency."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

from mongomock.collection import Collection
from mongomock.database import Database
from mongomock_motor import AsyncMongoMockClient
from pymongo import IndexModel

_names: Any = Database.list_collection_names


def _list_collection_names(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Beanie asks for the names of those it may see, and here it may see all; the original knows neither option."""
    known = {name: value for name, value in kwargs.items() if name not in {"authorizedCollections", "nameOnly"}}
    return _names(self, *args, **known)


def _create_indexes(self: Any, indexes: Sequence[IndexModel], session: Any = None) -> list[str]:
    """With every option of each index; the original drops `partialFilterExpression`, so null would clash with null."""
    documents = [dict(index.document) for index in indexes]
    return [self.create_index(list(document.pop("key").items()), session=session, **document) for document in documents]


@contextlib.contextmanager
def mongomock() -> Iterator[Any]:
    """A client whose databases Beanie can use, with partial unique indexes that are honoured."""
    with (
        patch.object(Database, "list_collection_names", _list_collection_names),
        patch.object(Collection, "create_indexes", _create_indexes),
    ):
        yield AsyncMongoMockClient(tz_aware=True)
