from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from bson import ObjectId

from models.telemetry import LogSubscriber, Telemetry, configure_logs

NASTY = 'a\nINFO forged line\r\x1b[2J\x00\x7f\x9b\u2028\u2029\u0085"end'


Written = Callable[[], bytes]


@pytest.fixture
def written(capsysbinary: pytest.CaptureFixture[bytes]) -> Iterator[Written]:
    """What came out on standard error."""
    yield lambda: capsysbinary.readouterr().err
    structlog.reset_defaults()


def test_every_subscriber_hears_every_event_with_its_fields() -> None:
    heard: list[tuple[int, str, dict[str, Any]]] = []

    def listener(number: int) -> Callable[[str, dict[str, Any]], None]:
        return lambda event, fields: heard.append((number, event, fields))

    Telemetry(listener(1), listener(2)).emit("order.moved", to="completed")
    assert heard == [(1, "order.moved", {"to": "completed"}), (2, "order.moved", {"to": "completed"})]
    Telemetry().emit("nobody.listens")


def test_a_line_is_one_line_of_json_with_control_characters_escaped(written: Written) -> None:
    configure_logs("info", "json")
    LogSubscriber()("webhook.answered", {"event_id": NASTY, "status": 200, "at": datetime(2026, 1, 1, tzinfo=UTC)})
    said = written()
    assert said.endswith(b"\n")
    assert len(said.splitlines()) == len(said.decode().splitlines()) == 1
    line = json.loads(said)
    assert line["event"] == "webhook.answered"
    assert line["level"] == "info"
    assert line["status"] == 200
    assert line["event_id"] == 'a\\x0aINFO forged line\\x0d\\x1b[2J\\x00\\x7f\\x9b\\x2028\\x2029\\x85"end'
    assert datetime.fromisoformat(line["timestamp"]).tzinfo is not None


def test_a_line_for_people_is_one_line_too(written: Written) -> None:
    configure_logs("info", "console")
    LogSubscriber()("webhook.answered", {"event_id": NASTY})
    said = written().decode()
    assert len(said.splitlines()) == 1
    assert "\x1b" not in said
    assert "forged line" in said


def test_away_from_a_terminal_the_automatic_form_is_json(written: Written) -> None:
    configure_logs("info", "auto")
    LogSubscriber()("x.y", {})
    assert json.loads(written())["event"] == "x.y"


def test_values_json_does_not_know_become_text(written: Written) -> None:
    configure_logs("info", "json")
    LogSubscriber()("x.y", {"id": ObjectId("0" * 24), "map": {7: {"deep": "a\nb"}}})
    said = written()
    assert len(said.splitlines()) == 1
    line = json.loads(said)
    assert "0" * 24 in line["id"]
    assert line["map"] == {"7": {"deep": "a\nb"}}


@pytest.mark.parametrize("value", ["\ud800", ["\ud800"], 2**70], ids=ascii)
def test_a_value_json_has_trouble_with_does_not_lose_the_line(written: Written, value: object) -> None:
    configure_logs("info", "json")
    LogSubscriber()("x.y", {"id": value})
    assert json.loads(written())["id"] == value


@pytest.mark.parametrize(
    ("event", "level"),
    [("alert.raised", "error"), ("duty.failed", "warning"), ("small.talk", "debug"), ("x.y", "info")],
)
def test_each_event_has_its_level(written: Written, event: str, level: str) -> None:
    configure_logs("debug", "json")
    LogSubscriber(debug=frozenset({"small.talk"}), warnings=frozenset({"duty.failed"}))(event, {})
    assert json.loads(written())["level"] == level


@pytest.mark.parametrize(("threshold", "lines"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_what_is_below_the_level_is_not_written(written: Written, threshold: str, lines: int) -> None:
    configure_logs(threshold, "json")
    subscriber = LogSubscriber(debug=frozenset({"small.talk"}), warnings=frozenset({"duty.failed"}))
    for event in ("small.talk", "x.y", "duty.failed", "alert.raised"):
        subscriber(event, {})
    assert len(written().splitlines()) == lines
