"""Logs: an event's name and fields, as JSON or for people, on stderr."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime

_ROOT = logging.getLogger("nearhintd")
_FIELDS = "nearhint_fields"
_OF_A_LIBRARY = "library_log"
"""The event of what asyncio, gRPC and others log."""


def _event(record: logging.LogRecord) -> str:
    return record.getMessage() if record.name == _ROOT.name else _OF_A_LIBRARY


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    if record.name != _ROOT.name:
        return {"logger": record.name, "message": record.getMessage()}
    found: Mapping[str, object] = getattr(record, _FIELDS, {})
    return found


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `event`, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        line: dict[str, object] = {"time": _moment(record), "level": record.levelname.lower()}
        line |= {"event": _event(record), **_fields(record)}
        if record.exc_info:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str)


class ConsoleFormatter(logging.Formatter):
    """`time level event key=value …`, values with spaces quoted, a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        pairs = "".join(f" {key}={_word(value)}" for key, value in _fields(record).items())
        text = f"{_moment(record)} {record.levelname.lower():7} {_event(record)}{pairs}"
        if record.exc_info:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        return text.replace("\r", "\\r")


def _word(value: object) -> str:
    """A value as it is, or quoted where it would look like more than one, or like another line."""
    text = str(value)
    is_plain = text.isprintable() and not any(sign in text for sign in ' "=')
    return text if text and is_plain else json.dumps(text, ensure_ascii=False)


FORMATTERS: Mapping[str, type[logging.Formatter]] = {
    "json": JsonFormatter,
    "console": ConsoleFormatter,
}


def configure(*, log_format: str, level: str) -> None:
    """Sends the daemon's events to stderr, and what libraries warn of, in the same format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[log_format]())
    logging.basicConfig(handlers=[handler])
    _ROOT.handlers[:] = [handler]
    _ROOT.setLevel(level.upper())
    _ROOT.propagate = False


def debug(event: str, **fields: object) -> None:
    """Detail for whoever looks into something."""
    _ROOT.debug(event, extra={_FIELDS: fields})


def info(event: str, **fields: object) -> None:
    """Something happened, as it should."""
    _ROOT.info(event, extra={_FIELDS: fields})


def warning(event: str, **fields: object) -> None:
    """Something an operator should know."""
    _ROOT.warning(event, extra={_FIELDS: fields})


def error(event: str, **fields: object) -> None:
    """Something failed; inside an `except` block the traceback goes along."""
    _ROOT.error(event, extra={_FIELDS: fields}, exc_info=sys.exc_info()[0] is not None)
