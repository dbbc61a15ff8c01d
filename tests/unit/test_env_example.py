"""`.env.example` is the list of settings: complete, true about defaults, and free of names that do not exist."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from dotenv import dotenv_values
from pydantic import BaseModel, SecretStr, TypeAdapter
from pydantic.fields import FieldInfo

from models.section import Section
from models.settings import ALIASES, Settings

EXAMPLE = (Path(__file__).parents[2] / ".env.example").read_text()
REQUIRED = {"PAYLATCH_MONGODB__URI", "PAYLATCH_RAZORPAY__WEBHOOK_SECRETS"}
BESIDE = {"PAYLATCH_SECRETS_DIR"}
_ASSIGNMENT = re.compile(r"(#?)([A-Z][A-Z0-9_]*)=(.*)")
_DEFAULT = re.compile(r"# .*\. Default: (.+)")


@dataclass(frozen=True)
class Line:
    """One assignment of the example and the comment directly above it."""

    name: str
    value: str
    commented: bool
    comment: str


@dataclass(frozen=True)
class Setting:
    """One setting as its model declares it; `path` leads to it from `Settings`."""

    path: tuple[str, ...]
    field: FieldInfo

    @property
    def name(self) -> str:
        return "PAYLATCH_" + "__".join(part.upper() for part in self.path)

    def read(self, value: str) -> Any:
        """What the environment's text becomes; texts are taken as they are, anything else as JSON where it is that."""
        try:
            plain = json.loads(value)
        except json.JSONDecodeError:
            plain = value
        for candidate in (value, plain):
            try:
                return TypeAdapter(self.field.rebuild_annotation()).validate_python(candidate)
            except ValueError:
                continue
        raise AssertionError(f"{value!r} is no value of {self.name}")


def _lines() -> Iterator[Line]:
    above = ""
    for text in EXAMPLE.splitlines():
        if found := _ASSIGNMENT.fullmatch(text):
            value = dotenv_values(stream=io.StringIO(f"{found[2]}={found[3]}"))[found[2]]
            yield Line(found[2], value or "", bool(found[1]), above)
        above = text


def _settings(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        here = (*path, field.alias or name)
        sections = [kind for kind in (field.annotation, *get_args(field.annotation)) if _is_section(kind)]
        if sections:
            yield from _settings(sections[0], here)
        else:
            yield Setting(here, field)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


LINES = list(_lines())
BY_NAME = {line.name: line for line in LINES}
SETTINGS = list(_settings(Settings))
ALIAS_NAMES = {alias for aliases in ALIASES.values() for alias in aliases}


def test_the_walk_over_the_settings_reaches_nested_ones() -> None:
    names = {setting.name for setting in SETTINGS}
    assert {"PAYLATCH_MONGODB__COLLECTIONS__ORDERS", "PAYLATCH_EMAIL__FROM", "PAYLATCH_CRASH_POINT"} <= names


def test_every_name_stands_exactly_once() -> None:
    counts = Counter(line.name for line in LINES)
    wanted = {setting.name for setting in SETTINGS} | ALIAS_NAMES | BESIDE
    assert {name: count for name, count in counts.items() if count > 1} == {}
    assert sorted(wanted - counts.keys()) == []
    assert sorted(counts.keys() - wanted) == [], "names that are no setting"


def test_only_the_required_ones_are_not_commented_out() -> None:
    assert {line.name for line in LINES if not line.commented} == REQUIRED


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_stated_default_is_the_real_one(setting: Setting) -> None:
    stated = _DEFAULT.fullmatch(BY_NAME[setting.name].comment)
    assert stated, "the line above must be a comment that ends in `Default: ...`"
    real = None if setting.field.is_required() else setting.field.get_default(call_default_factory=True)
    match stated[1]:
        case "none":
            assert real is None
        case "empty":
            assert real == ""
        case value:
            assert setting.read(value) == real


FILLED_IN = [setting for setting in SETTINGS if (line := BY_NAME.get(setting.name)) and line.value]


def test_only_the_webhook_secret_is_left_to_be_filled_in() -> None:
    assert {line.name for line in LINES if not line.value} == {"PAYLATCH_RAZORPAY__WEBHOOK_SECRETS"}


@pytest.mark.parametrize("setting", FILLED_IN, ids=lambda setting: setting.name)
def test_the_value_of_the_line_is_accepted(setting: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = BY_NAME[setting.name]
    _bare(monkeypatch, tmp_path)
    monkeypatch.setenv(line.name, line.value)
    read: Any = Settings()
    for part in setting.path:
        read = getattr(read, "from_" if part == "from" else part)
    secret = isinstance(read, SecretStr)
    assert (read.get_secret_value() if secret else read) == (line.value if secret else setting.read(line.value))


@pytest.mark.parametrize("alias", sorted(ALIAS_NAMES))
def test_an_alias_is_read(alias: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _bare(monkeypatch, tmp_path)
    section, name = next(place for place, aliases in ALIASES.items() if alias in aliases)
    if alias == "MONGODB_URI":
        monkeypatch.delenv("PAYLATCH_MONGODB__URI")
    monkeypatch.setenv(alias, BY_NAME[alias].value)
    assert name in getattr(Settings(), section).model_fields_set


def _bare(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """An environment with the required address only, in a folder without `.env` and `paylatch.toml`."""
    monkeypatch.chdir(folder)
    for name in (*BY_NAME, *ALIAS_NAMES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAYLATCH_MONGODB__URI", "mongodb://127.0.0.1:1/?replicaSet=none")
