"""Stored values of any type as something that can be told: short text, times, lists of documents."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from models.money import parse_amount

_LONGEST = 200

Raw = Mapping[str, Any]


def clean(value: object) -> str:
    """Stored text of any type, short, in one line, and without anything that a terminal or a browser would obey."""
    text = "" if value is None else str(value)[:_LONGEST]
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def moment(value: object) -> datetime | None:
    """A stored time; None for what is none."""
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def at(value: object) -> str:
    """A time in words; all of them are in UTC."""
    known = moment(value)
    return f"{known.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if known else "an unknown time"


def unix_moment(value: object) -> datetime | None:
    """Unix seconds as a time; None for what is none."""
    seconds = parse_amount(value)
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def mapping(value: object) -> Raw:
    """A document, empty for what is none."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Raw]:
    """The documents of a list, none for what is no list."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def words(value: object) -> tuple[str, ...]:
    """A list as short texts."""
    return tuple(clean(word) for word in value) if isinstance(value, list) else ()
