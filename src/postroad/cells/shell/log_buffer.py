"""The last log lines of this process, for operators who have no access to its log.

There is one pinboard for all nodes of a process; lines about cells name their domain. It holds
texts, not records, so that nothing logged is kept alive, and changes nothing about where else lines
are written.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from typing import NamedTuple

from postroad.cells.shell.commands import check_range, command, quote
from postroad.cells.shell.views import format_table, one_line
from postroad.core.errors import ConfigError

LINES_MAX = 200
_LINE_CHARACTERS_MAX = 1_000
_LEVELS = ("debug", "info", "warning", "error", "critical")

_times = logging.Formatter()


class LogLine(NamedTuple):
    """A line of the log."""

    at: float
    """Seconds since 1970."""
    level: str
    logger: str
    text: str


class LogBuffer(logging.Handler):
    """Keeps the last lines of a logger and those below it, while it is attached."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger
        self._records: deque[LogLine] = deque(maxlen=LINES_MAX)
        # Weak: what is killed in a simulation never says goodbye.
        self._users: weakref.WeakSet[object] = weakref.WeakSet()
        # What the level was before an operator set it.
        self._level_before: int | None = None

    def attach(self, user: object) -> None:
        """Keep lines; every user says so, and `detach` in the end."""
        self._users.add(user)
        self._logger.addHandler(self)

    def detach(self, user: object) -> None:
        """Leave the level as it was, and keep no lines once the last user is gone."""
        self.reset_level()
        self._users.discard(user)
        if not self._users:
            self._logger.removeHandler(self)
            self._records.clear()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line. Where nobody set up logging, warnings are still seen as without this."""
        self.append(record)
        last_resort = logging.lastResort
        if last_resort is None or record.levelno < last_resort.level:
            return
        if self._has_no_other_handler(record):
            last_resort.handle(record)

    def append(self, record: logging.LogRecord) -> None:
        """Keep a line, if anybody uses this."""
        try:
            if self._users:
                self._records.append(_to_log_line(record))
        except Exception:
            self.handleError(record)

    def is_below(self, name: str) -> bool:
        """Whether lines of a logger come here by themselves."""
        return name == self._logger.name or name.startswith(f"{self._logger.name}.")

    def _has_no_other_handler(self, record: logging.LogRecord) -> bool:
        """Whether nobody else gets a line."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True

    def lines(self, count: int) -> list[str]:
        """The last lines, oldest first."""
        return [_line_of(line) for line in self.records(count)]

    def records(self, count: int) -> list[LogLine]:
        """The same, taken apart."""
        # Other threads log, too.
        self.acquire()
        try:
            return list(self._records)[-count:]
        finally:
            self.release()

    def levels(self) -> list[tuple[str, str]]:
        """The name and the level of each logger that lines are kept of."""
        below = f"{self._logger.name}."
        names = sorted(name for name in logging.root.manager.loggerDict if name.startswith(below))
        loggers = [self._logger, *map(logging.getLogger, names)]
        return [
            (logger.name, logging.getLevelName(logger.getEffectiveLevel()).lower())
            for logger in loggers
        ]

    def set_level(self, level: int) -> None:
        """Log this and everything more important, until `reset_level` or the end."""
        if self._level_before is None:
            self._level_before = self._logger.level
        self._logger.setLevel(level)

    def reset_level(self) -> None:
        """Log what was logged before an operator set the level."""
        if self._level_before is not None:
            self._logger.setLevel(self._level_before)
            self._level_before = None


class LogBufferHandler(logging.Handler):
    """Gives a pinboard what other loggers of the process say: users' own, and of libraries."""

    def __init__(self, buffer: LogBuffer) -> None:
        super().__init__()
        self._buffer = buffer

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line that comes there in no other way."""
        if not self._buffer.is_below(record.name):
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
"""The one of this process."""


class LogCommands:
    """`log`, `log ls`, `log set` and `log reset`."""

    @command(
        "log", "[-lines=20]", help=f"The last lines logged; {LINES_MAX} are kept.", is_read=True
    )
    def show_lines(self, *, lines: int = 20) -> str:
        """The last lines."""
        check_range("-lines", lines, 1, LINES_MAX)
        return "\n".join(LOG_BUFFER.lines(lines)) or "nothing was logged"

    @command("log ls", help="The loggers of this process and their levels.", is_read=True)
    def show_levels(self) -> str:
        """All loggers."""
        return format_table(("LOGGER", "LEVEL"), LOG_BUFFER.levels())

    @command(
        "log set",
        "LEVEL",
        help=f"Log more or less in this process: {', '.join(_LEVELS)}.\n"
        "It holds until 'log reset', or until the domain stops.",
    )
    def set_level(self, level: str) -> str:
        """Set the level of all loggers."""
        name = level.lower()
        if name not in _LEVELS:
            raise ConfigError(f"no level {quote(level)}; there are {', '.join(_LEVELS)}")
        LOG_BUFFER.set_level(getattr(logging, name.upper()))
        return f"level {name}"

    @command("log reset", help="Log again what was logged before 'log set'.")
    def reset_level(self) -> str:
        """Undo `log set`."""
        LOG_BUFFER.reset_level()
        return f"level {LOG_BUFFER.levels()[0][1]}"
