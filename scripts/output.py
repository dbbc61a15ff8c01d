"""What commands print: tables for people, JSON for machines, and personal data masked in both."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from unicodedata import category

import orjson
from bson import ObjectId
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from models.errors import Refused

MASKED = frozenset({"contact", "email", "vpa", "card", "customer_details"})
MASK = "•••"
PIPED_WIDTH = 200
STDOUT = "-"


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    try:
        text = orjson.dumps(value, default=_plain, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a lone surrogate, an integer beyond 64 bits
        text = json.dumps(value, default=_plain, indent=2).encode()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.write(b"\n")
    sys.stdout.flush()


def output() -> Console:
    """Standard output; wide when it goes to a file or a pipe, so that ids stay whole."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], console: Console) -> None:
    """A table whose cells are data: nothing in them is read as markup. The first column names the row: never cut."""
    table = Table(Column(columns[0], no_wrap=True, overflow="ignore"), *columns[1:], title=title, title_justify="left")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)


def write_text(text: str, where: str) -> None:
    """To a file, or to standard output for `-`, in UTF-8. Raises `Refused` when the file cannot be written."""
    if where == STDOUT:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.flush()
        return
    try:
        Path(where).write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise Refused(f"{where} cannot be written: {error.strerror}") from None
    sys.stderr.write(f"written to {where}\n")


def visible(text: str) -> str:
    """The lines of a text without what a terminal would obey; marks that join letters stay."""
    return "".join("�" if category(letter) == "Cc" and letter != "\n" else letter for letter in text)


def masked(value: Any, names: frozenset[str] = MASKED) -> Any:  # noqa: ANN401 - any JSON
    """The same JSON with contact, email, vpa and card data (or what `names` says) replaced, however deep they are."""
    if isinstance(value, Mapping):
        return {key: _mask(inner) if key in names else masked(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [masked(inner, names) for inner in value]
    return value


def _mask(value: Any) -> Any:  # noqa: ANN401
    """Shape stays, words go; an absent value is shown as absent."""
    if isinstance(value, Mapping):
        return {key: _mask(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_mask(inner) for inner in value]
    return value if value is None or isinstance(value, bool) else MASK


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, Mapping | list):
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()
    return "" if value is None else "".join(c if c.isprintable() else "�" for c in str(value))


def _plain(value: object) -> Any:  # noqa: ANN401 - what orjson can write
    if isinstance(value, ObjectId):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)
