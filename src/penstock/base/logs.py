"""Logs: lines for a person, or JSON objects for a program, on standard error; secrets masked in both.

Texts of peers and of data stand in them. Only the first line of an entry begins at the margin, so that none of theirs
passes for an entry, and control characters are spelled out.

{"time": "2026-11-16T02:14:14.123456Z", "level": "warning", "logger": "penstock.pipeline.supervisor",
 "message": "sink audit: away in 1.0 s after: ...", "thread": "MainThread"}
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from penstock.base.secrets import mask_logs
from penstock.base.texts import indented

Format = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """An entry for a person: the further lines of its message, and its traceback, stand to the right."""

    def format(self, record: logging.LogRecord) -> str:
        return indented(super().format(record), "    ")


class JsonFormatter(logging.Formatter):
    """One object a line; an error's traceback under `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        if record.exc_text or record.exc_info:
            entry["traceback"] = record.exc_text or self.formatException(
                record.exc_info or (None, None, None)
            )
        return json.dumps(entry, ensure_ascii=False)


def set_up(level: str, form: Format) -> None:
    """Send all logs to standard error, from `level` up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    mask_logs()


def guard_default() -> None:
    """The same for a command that sets up no logs: Python prints its warnings as they are."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(TextFormatter())
