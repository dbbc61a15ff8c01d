"""Read JSON that a stranger's system wrote: everything that is JSON is accepted, everything else is one error."""

from __future__ import annotations

import json
from typing import Any

import bson
import orjson
from bson.errors import BSONError

from models.errors import Unparseable

DEEPEST_STORED = 64
"""Levels of nesting a stored `payload` may have; a server refuses a document somewhere beyond 100."""
_LONGEST_INTEGER = 4000


def read_object(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object.

    orjson first; the standard library second, since it also takes lone surrogates, NaN and integers of any size.
    Raises `Unparseable` for anything that is no JSON object.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = _read_tolerantly(raw)
    if not isinstance(body, dict):
        raise Unparseable("the body is JSON but no object")
    return body


def _read_tolerantly(raw: bytes) -> object:
    try:
        return json.loads(raw, parse_int=_integer)
    except (ValueError, RecursionError):
        raise Unparseable("the body is no JSON") from None


def _integer(digits: str) -> int | str:
    """Python refuses to convert integers of thousands of digits; they stay text, and are no amount either way."""
    return int(digits) if len(digits) < _LONGEST_INTEGER else digits


def storable(payload: dict[str, Any]) -> dict[str, Any] | None:
    """The payload if BSON can hold it, else None; the raw body is stored in either case."""
    if deeper_than(payload):
        return None
    try:
        bson.encode(payload)
    except (BSONError, OverflowError, UnicodeError, RecursionError):
        return None
    return payload


def deeper_than(value: object, levels: int = DEEPEST_STORED) -> bool:
    """Whether anything is nested deeper; walks level by level, so depth costs no stack."""
    level: list[object] = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True
