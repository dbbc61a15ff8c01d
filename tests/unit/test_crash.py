from __future__ import annotations

import ast
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.crash import POINTS, arm, crash_point
from models.errors import SettingsError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """What would have been killed; nothing stays armed."""
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: seen.append((pid, number)))
    yield seen
    arm(None)


def points_in_the_source() -> list[tuple[str, object]]:
    """(folder, first argument) of every call of `crash_point` in the two processes."""
    found: list[tuple[str, object]] = []
    for folder in ("webhook", "watcher"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "crash_point":
                    (argument,) = node.args
                    assert isinstance(argument, ast.Constant), f"{path}: a crash point's name must be a literal"
                    found.append((folder, argument.value))
    return found


def test_every_point_in_the_source_is_known_and_every_known_point_is_in_the_source() -> None:
    found = points_in_the_source()
    assert {name for _, name in found} == POINTS


def test_every_point_is_named_after_its_process() -> None:
    assert [name for folder, name in points_in_the_source() if not str(name).startswith(f"{folder}.")] == []


def test_unarmed_points_do_nothing(kills: list[tuple[int, int]]) -> None:
    for name in POINTS:
        crash_point(name)
    assert kills == []


def test_an_armed_point_kills_this_very_process_the_hard_way(kills: list[tuple[int, int]]) -> None:
    arm("webhook.inserted")
    crash_point("webhook.answered")
    assert kills == []
    crash_point("webhook.inserted")
    assert kills == [(os.getpid(), signal.SIGKILL)]


def test_a_point_can_wait_for_its_nth_time(kills: list[tuple[int, int]]) -> None:
    arm("watcher.sent:3")
    crash_point("watcher.sent")
    crash_point("watcher.sent")
    assert kills == []
    crash_point("watcher.sent")
    assert len(kills) == 1


@pytest.mark.parametrize("spec", ["webhook.nowhere", "webhook.inserted ", "inserted", "nowhere:2", "Webhook.inserted"])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(kills: list[tuple[int, int]], spec: str) -> None:
    with pytest.raises(SettingsError, match=r"no crash point; they are: .*webhook\.inserted"):
        arm(spec)


@pytest.mark.parametrize("spec", [None, ""])
def test_nothing_armed_disarms(kills: list[tuple[int, int]], spec: str | None) -> None:
    arm("webhook.inserted")
    arm(spec)
    crash_point("webhook.inserted")
    assert kills == []
