"""Named events that the code emits; logs and metrics subscribe, so the domain knows neither."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any, Literal

import orjson
import structlog

Subscriber = Callable[[str, dict[str, Any]], None]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Telemetry:
    """Hands each named event to every subscriber."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = subscribers

    def emit(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - each event has its own fields
        """Tell every subscriber; `event` is `<part>.<what happened>`."""
        for subscriber in self._subscribers:
            subscriber(event, fields)


class LogSubscriber:
    """One log line per event: warnings for what needs a look, errors for alerts, debug for the frequent small ones."""

    def __init__(self, debug: frozenset[str] = frozenset(), warnings: frozenset[str] = frozenset()) -> None:
        self._debug, self._warnings = debug, warnings
        self._log = structlog.get_logger()

    def __call__(self, event: str, fields: dict[str, Any]) -> None:
        """Write the line."""
        if event == "alert.raised":
            self._log.error(event, **fields)
        elif event in self._warnings:
            self._log.warning(event, **fields)
        elif event in self._debug:
            self._log.debug(event, **fields)
        else:
            self._log.info(event, **fields)


def configure_logs(level: str, form: Literal["auto", "json", "console"]) -> None:
    """Structured lines on standard error, so that a command's standard output stays clean."""
    console = form == "console" or (form == "auto" and sys.stderr.isatty())
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _escape_control,
    ]
    if console:
        processors.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))
        factory: Any = structlog.PrintLoggerFactory(sys.stderr)
    else:
        processors.append(structlog.processors.JSONRenderer(serializer=_json))
        factory = structlog.BytesLoggerFactory(sys.stderr.buffer)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=factory,
        cache_logger_on_first_use=False,
    )


def _json(line: Any, default: Callable[[Any], Any] | None = None, **_: Any) -> bytes:  # noqa: ANN401
    try:
        return orjson.dumps(line, default=default or str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a lone surrogate or an integer of more than 64 bits must not cost the line
        return json.dumps(line, default=str).encode()


def _escape_control(_logger: Any, _name: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:  # noqa: ANN401
    """No value may start a second line or move the terminal's cursor."""
    for key, value in line.items():
        if isinstance(value, str) and key != "exception":
            line[key] = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", value)
    return line
