"""What a node says of itself: lines for people, or JSON for programs, on the standard error."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from postroad.cells.shell.log_buffer import LOG_BUFFER, LogBufferHandler

from .settings import LogSettings

_RESET = "\x1b[0m"
_DIM = "\x1b[2m"
_COLOURS = {
    logging.DEBUG: "\x1b[36m",
    logging.INFO: "\x1b[32m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}
# What every record has; all else was given by whoever logged it.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message", "taskName"}


def set_up_logs(
    settings: LogSettings,
    stream: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
) -> logging.Handler:
    """Have everything that is logged in this process written as the settings say.

    Args:
        settings: which messages, and how.
        stream: where to; by default the standard error. Colours are for terminals only.
        environ: `NO_COLOR` in it turns colours off.
    """
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    if settings.format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(TextLines(is_colourful=has_colours(stream, environ)))
    root = logging.getLogger()
    for old in [it for it in root.handlers if isinstance(it.formatter, JsonLines | TextLines)]:
        root.removeHandler(old)
    root.addHandler(handler)
    if not any(isinstance(it, LogBufferHandler) for it in root.handlers):
        root.addHandler(LogBufferHandler(LOG_BUFFER))
    root.setLevel(settings.level.upper())
    if settings.level == "info":
        # It tells of its own starts and stops what the node has told already.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.captureWarnings(True)
    return handler


def has_colours(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether colours can be shown, and are wanted."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class TextLines(logging.Formatter):
    """`14:03:22.120 INFO  postroad.node.node: alpha runs at 127.0.0.1:40001`."""

    def __init__(self, *, is_colourful: bool) -> None:
        super().__init__()
        self._is_colourful = is_colourful

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        when, level = f"{clock}.{record.msecs:03.0f}", f"{record.levelname:<7}"
        who = f"{record.name}:"
        if self._is_colourful:
            colour = _COLOURS.get(record.levelno, "")
            when, who = f"{_DIM}{when}{_RESET}", f"{_DIM}{who}{_RESET}"
            level = f"{colour}{level}{_RESET}"
        lines = [f"{when} {level} {who} {_harmless(record.getMessage())}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        if record.stack_info:
            lines.append(record.stack_info)
        return "\n".join(lines)


def _harmless(text: str) -> str:
    """A text that cannot be taken for further lines of the log, nor steer a terminal."""
    if text.isprintable():
        return text
    shown = "".join(
        it if it.isprintable() or it in "\n\t" else it.encode("unicode_escape").decode()
        for it in text
    )
    return shown.replace("\n", "\n    ")


class JsonLines(logging.Formatter):
    """One JSON object per line; what was logged as `extra` stands beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            key: it for key, it in vars(record).items() if key not in _USUAL
        } | {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return msgspec.json.encode(line, enc_hook=str).decode()
