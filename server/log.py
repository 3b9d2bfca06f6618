"""Set up logging for the commands: plain lines or JSON; our own packages from a level on, others from warnings on."""

import json
import logging
import traceback
from typing import Any

from pythonjsonlogger.json import JsonFormatter

OURS = ("jaxgen", "pallas_kernels")
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("plain", "json")
FIELDS = "fields"
"""Attribute of a log record: a dict whose entries are added to JSON lines, and to plain lines as name=value."""


def set_up_logging(
    line: str = "%(levelname)s %(name)s: %(message)s", *, level: str = "info", form: str = "plain"
) -> None:
    """Log to standard error. ``line``: format of plain lines. JSON lines have timestamp, level, logger and message."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Plain(line) if form == "plain" else _Json())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())


def frames(error: BaseException) -> str:
    """Return the traceback of an error without its message, which may have a piece of a prompt."""
    return "".join(traceback.format_tb(error.__traceback__))


class _Plain(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        message = super().formatMessage(record)
        fields: dict[str, Any] = getattr(record, FIELDS, {})
        return " ".join([message, *(f"{name}={_word(value)}" for name, value in fields.items())])


def _word(value: Any) -> str:
    """Return a value as it is if it is one plain word, else as JSON, so that no caller can forge a log line."""
    text = str(value)
    plain = text.isascii() and text.isprintable() and not set(text) & set(' "=')
    return text if plain and isinstance(value, str | int | float) else json.dumps(value)


class _Json(JsonFormatter):
    def __init__(self) -> None:
        super().__init__(
            "%(levelname)s %(name)s %(message)s",
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp=True,
        )

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        super().add_fields(log_data, record, message_dict)
        log_data |= log_data.pop(FIELDS, {})
