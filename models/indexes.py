"""Create and check the indexes that the rules rest on, and find what stands in their way among existing orders."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pymongo import IndexModel
from pymongo.errors import DuplicateKeyError, OperationFailure

from models.database import Collection, Database
from models.documents import DOCUMENTS
from models.errors import DatabaseUnfit
from models.settings import Settings

CLASHES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """An index that is missing, differs, or cannot be created."""

    collection: str
    index: str
    what: str

    def __str__(self) -> str:
        return f"{self.collection}.{self.index} {self.what}"


@dataclass(frozen=True, slots=True)
class Clash:
    """Documents that share a value which must be unique."""

    collection: str
    path: str
    value: str
    ids: tuple[Any, ...]


async def find_problems(db: Database, settings: Settings) -> list[Problem]:
    """Every wanted index that is missing or differs; empty when all is well."""
    problems: list[Problem] = []
    for collection, indexes in _wanted(db, settings):
        existing = await _existing(collection)
        problems += [problem for index in indexes if (problem := _problem(collection.name, index, existing))]
    return problems


async def require_indexes(db: Database, settings: Settings) -> None:
    """Refuse to work without them: a claim without its unique index is no claim. Raises `DatabaseUnfit`."""
    if problems := await find_problems(db, settings):
        raise DatabaseUnfit(
            f"{len(problems)} of the indexes that PayLatch rests on are not in place, the first: {problems[0]}; "
            "run `paylatch indexes` once before starting",
        )


async def create_indexes(db: Database, settings: Settings) -> tuple[list[str], list[Problem]]:
    """Create what is missing; the names of the created ones, and what could not be created and why."""
    created: list[str] = []
    failed: list[Problem] = []
    for collection, indexes in _wanted(db, settings):
        existing = await _existing(collection)
        for index in indexes:
            problem = _problem(collection.name, index, existing)
            if problem is None:
                continue
            if problem.what != "is missing":
                failed.append(problem)
                continue
            try:
                created.append(f"{collection.name}.{await collection.create_index(**_arguments(index))}")
            except DuplicateKeyError:
                failed.append(Problem(collection.name, _name(index), "cannot be created: documents share a value"))
            except OperationFailure as error:
                failed.append(Problem(collection.name, _name(index), f"cannot be created (code {error.code})"))
    return created, failed


async def find_clashes(db: Database, settings: Settings) -> AsyncIterator[Clash]:
    """Documents that share a value which a missing unique index would forbid, at most 20 values an index."""
    for collection, indexes in _wanted(db, settings):
        existing = await _existing(collection)
        for index in indexes:
            if index.document.get("unique") and _problem(collection.name, index, existing):
                async for clash in _clashes(collection, index):
                    yield clash


async def _clashes(collection: Collection, index: IndexModel) -> AsyncIterator[Clash]:
    (path,) = index.document["key"]
    pipeline: list[dict[str, Any]] = [
        {"$match": index.document.get("partialFilterExpression") or {}},
        {"$group": {"_id": f"${path}", "ids": {"$push": "$_id"}, "count": {"$sum": 1}}},
        {"$match": {"count": {"$gt": 1}}},
        {"$limit": CLASHES_SHOWN},
    ]
    async for group in await collection.aggregate(pipeline, allowDiskUse=True):
        yield Clash(collection.name, path, str(group["_id"]), tuple(group["ids"]))


def _wanted(db: Database, settings: Settings) -> list[tuple[Collection, list[IndexModel]]]:
    names = settings.mongodb.collections.model_dump()
    return [(db.handle[names[field]], list(document.Settings.indexes)) for field, document in DOCUMENTS.items()]


async def _existing(collection: Collection) -> list[dict[str, Any]]:
    return list((await collection.index_information()).values())


def _problem(collection: str, wanted: IndexModel, existing: list[dict[str, Any]]) -> Problem | None:
    """A plain index is satisfied by any on the same key; a unique one needs our filter, or none (which is stricter)."""
    key = list(wanted.document["key"].items())
    same_key = [index for index in existing if list(index["key"]) == key]
    if not same_key:
        return Problem(collection, _name(wanted), "is missing")
    if not wanted.document.get("unique"):
        return None
    wanted_filter = wanted.document.get("partialFilterExpression")
    for index in same_key:
        found = index.get("partialFilterExpression")
        if index.get("unique") and (found is None or dict(found) == wanted_filter):
            return None
    return Problem(collection, _name(wanted), "differs: it must be unique; drop it and run `paylatch indexes`")


def _name(index: IndexModel) -> str:
    return str(index.document["name"])


def _arguments(index: IndexModel) -> dict[str, Any]:
    document = dict(index.document)
    return {"keys": list(document.pop("key").items()), **document}
