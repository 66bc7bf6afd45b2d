"""Ring buffer of the last log lines of this process, for operators without access to its log.

There is one buffer for all nodes of a process; lines about cells name their domain. It stores
texts, not records, so that logged objects are not kept alive, and does not change other log
handlers.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from typing import NamedTuple

from postroad.cells.shell.views import one_line

LINES_MAX = 200
_LINE_CHARACTERS_MAX = 1_000

_times = logging.Formatter()


class LogLine(NamedTuple):
    """Line of the log."""

    at: float
    """Seconds since 1970."""
    level: str
    logger: str
    text: str


class LogBuffer(logging.Handler):
    """Ring buffer of the last lines of a logger and its children, while a user is attached."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self.logger = logger
        self._records: deque[LogLine] = deque(maxlen=LINES_MAX)
        # Weak, because a node that is killed in a simulation never detaches.
        self._users: weakref.WeakSet[object] = weakref.WeakSet()
        # Level of the logger before an operator set it.
        self._level_before: int | None = None

    def attach(self, user: object) -> None:
        """Start to store lines for a user, until its `detach`."""
        self._users.add(user)
        self.logger.addHandler(self)

    def detach(self, user: object) -> None:
        """Reset the level, and clear the buffer when the last user detaches."""
        self.reset_level()
        self._users.discard(user)
        if not self._users:
            self.logger.removeHandler(self)
            self._records.clear()

    def emit(self, record: logging.LogRecord) -> None:
        """Store a line; without other handlers, warnings still go to the last-resort handler."""
        self.append(record)
        last_resort = logging.lastResort
        if last_resort is None or record.levelno < last_resort.level:
            return
        if self._has_no_other_handler(record):
            last_resort.handle(record)

    def append(self, record: logging.LogRecord) -> None:
        """Store a line, if a user is attached."""
        try:
            if self._users:
                self._records.append(_to_log_line(record))
        except Exception:
            self.handleError(record)

    def _has_no_other_handler(self, record: logging.LogRecord) -> bool:
        """Return whether no other handler gets the line."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True

    def lines(self, count: int) -> list[str]:
        """Return the last lines as text, oldest first."""
        return [_line_of(line) for line in self.records(count)]

    def records(self, count: int) -> list[LogLine]:
        """Return the last lines, oldest first."""
        # Other threads may log meanwhile.
        self.acquire()
        try:
            return list(self._records)[-count:]
        finally:
            self.release()

    def levels(self) -> list[tuple[str, str]]:
        """Return name and level of each logger whose lines are stored."""
        below = f"{self.logger.name}."
        names = sorted(name for name in logging.root.manager.loggerDict if name.startswith(below))
        loggers = [self.logger, *map(logging.getLogger, names)]
        return [
            (logger.name, logging.getLevelName(logger.getEffectiveLevel()).lower())
            for logger in loggers
        ]

    def set_level(self, level: int) -> None:
        """Set the level, until `reset_level` or the last `detach`."""
        if self._level_before is None:
            self._level_before = self.logger.level
        self.logger.setLevel(level)

    def reset_level(self) -> None:
        """Restore the level of before `set_level`."""
        if self._level_before is not None:
            self.logger.setLevel(self._level_before)
            self._level_before = None


class LogBufferHandler(logging.Handler):
    """Feeds a log buffer from other loggers of the process, of users and libraries."""

    def __init__(self, buffer: LogBuffer) -> None:
        super().__init__()
        self._buffer = buffer

    def emit(self, record: logging.LogRecord) -> None:
        """Store a line, unless it propagates to the buffer anyway."""
        name = self._buffer.logger.name
        if record.name != name and not record.name.startswith(f"{name}."):
            self._buffer.append(record)


def _to_log_line(record: logging.LogRecord) -> LogLine:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += f" ({record.exc_info[1]!r})"
    text = one_line(text, _LINE_CHARACTERS_MAX)
    return LogLine(record.created, record.levelname.lower(), record.name, text)


def _line_of(record: LogLine) -> str:
    created = {"created": record.at, "msecs": record.at % 1 * 1000}
    time = _times.formatTime(logging.makeLogRecord(created))
    text = f"{time} {record.level.upper()} {record.logger}: {record.text}"
    return one_line(text, _LINE_CHARACTERS_MAX)


LOG_BUFFER = LogBuffer(logging.getLogger("postroad"))
"""The buffer of this process."""
