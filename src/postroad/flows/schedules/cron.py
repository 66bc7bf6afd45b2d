"""When a schedule is due: cron expressions, in the time of any time zone.

Five fields as in Vixie's cron. If neither day of month nor day of week starts with a star, either
of them is enough; otherwise a day has to fit both.

A schedule follows the clock on the wall. Times that a change of the clock leaves out are due once,
at the first moment after the gap; times that it repeats are due the first time only.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import MAXYEAR, UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import msgspec

from postroad.core.errors import ConfigError, UsageError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SECOND = timedelta(seconds=1)

_SHORTCUTS = {
    "@annually": "0 0 1 1 *",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
    "@midnight": "0 0 * * *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@yearly": "0 0 1 1 *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
# A leap year's, since a schedule may wait for one.
_LONGEST = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class _Field(msgspec.Struct, frozen=True):
    """One of the five fields, and the values it allows."""

    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()

    @property
    def valid(self) -> str:
        words = f" or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return f"{self.first} to {self.last}{words}"

    def parse(self, text: str) -> tuple[int, ...]:
        """Return the values that a field like `1-5,*/10` names, in order."""
        values: set[int] = set()
        for part in text.split(","):
            values.update(self._part(part, text))
        return tuple(sorted(values))

    def _part(self, part: str, text: str) -> range:
        span, slash, step_text = part.partition("/")
        step = self._step(step_text, text) if slash else 1
        if span == "*":
            return range(self.first, self.last + 1, step)
        start_text, dash, end_text = span.partition("-")
        start = self._value(start_text, text)
        if dash:
            return range(start, self._end(end_text, start, text) + 1, step)
        return range(start, (self.last if slash else start) + 1, step)

    def _end(self, word: str, start: int, text: str) -> int:
        end = self._value(word, text)
        # Sunday is 0 and 7, so that a range can start and end with it.
        if end == 0 < start and self.name == "day of week":
            end = 7
        if end < start:
            parts = f"{start}-{self.last},{self.first}-{end}"
            raise self._error(text, f"the range ends before it starts; write {parts}")
        return end

    def _value(self, word: str, text: str) -> int:
        if word.lower() in self.names:
            return self.first + self.names.index(word.lower())
        value = _number(word)
        if value is None or not self.first <= value <= self.last:
            raise self._error(text, f"{word!r:.40} must be {self.valid}")
        return value

    def _step(self, word: str, text: str) -> int:
        step = _number(word)
        if step is None or not 1 <= step <= self.last:
            raise self._error(text, f"the step {word!r:.40} must be 1 to {self.last}")
        return step

    def _error(self, text: str, reason: str) -> ConfigError:
        return ConfigError(f"{self.name} {text!r:.60} of the cron expression: {reason}")


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _WEEKDAYS),
)


class CronExpression(msgspec.Struct, frozen=True):
    """A parsed cron expression in its time zone; `CronExpression.parse` creates it."""

    text: str
    timezone: str
    _clock: tzinfo
    _minutes: tuple[int, ...]
    _hours: tuple[int, ...]
    _days: tuple[int, ...]
    _months: tuple[int, ...]
    _weekdays: tuple[int, ...]
    _either_day: bool
    """A day fits by its number or by its weekday; otherwise it has to fit by both."""

    @classmethod
    def parse(cls, text: str, timezone: str = "UTC") -> CronExpression:
        """Read an expression like `30 2 * * mon-fri`, or a shortcut like `@daily`.

        Raises ConfigError, which names the field, the value and what is valid.
        """
        clock = _load_timezone(timezone)
        words = _split(text)
        minutes, hours, days, months, weekdays = (
            field.parse(word) for field, word in zip(_FIELDS, words, strict=True)
        )
        either_day = not words[2].startswith("*") and not words[4].startswith("*")
        longest = max(_LONGEST[month] for month in months)
        if not either_day and days[0] > longest:
            raise ConfigError(
                f"day of month {words[2]!r:.60} of the cron expression {text!r:.60} never comes: "
                f"month {words[3]!r:.60} has 1 to {longest}"
            )
        weekdays = tuple(sorted({weekday % 7 for weekday in weekdays}))
        return cls(text, timezone, clock, minutes, hours, days, months, weekdays, either_day)

    def next_after(self, ms: int) -> int:
        """Return the first time after this one at which it is due, in milliseconds since 1970."""
        try:
            wall = (_EPOCH + ms * _MILLISECOND).astimezone(self._clock).replace(tzinfo=None)
            # In the second half of an overlap, the next local times were due in the first.
            for due in self._due_from(wall):
                due_ms = (_moment(due, self._clock) - _EPOCH) // _MILLISECOND
                if due_ms > ms:
                    return due_ms
        except OverflowError:
            pass  # The same as when the dates have run out.
        raise UsageError(
            f"the cron expression {self.text!r:.60} cannot be due after {ms} ms since 1970: "
            f"dates go from the year 1 to {MAXYEAR}"
        )

    def _due_from(self, start: datetime) -> Iterator[datetime]:
        """Yield local times from `start` on, in order."""
        for day in self._dates_from(start.date()):
            is_first = day == start.date()
            for hour in self._hours:
                for minute in () if is_first and hour < start.hour else self._minutes:
                    due = datetime(day.year, day.month, day.day, hour, minute)
                    if due >= start:
                        yield due

    def _dates_from(self, start: date) -> Iterator[date]:
        for year in range(start.year, MAXYEAR + 1):
            for month in self._months:
                if (year, month) < (start.year, start.month):
                    continue
                for number in range(1, monthrange(year, month)[1] + 1):
                    day = date(year, month, number)
                    if day >= start and self._fits(day):
                        yield day

    def _fits(self, day: date) -> bool:
        by_number = day.day in self._days
        by_weekday = day.isoweekday() % 7 in self._weekdays
        return (by_number or by_weekday) if self._either_day else (by_number and by_weekday)


def _split(text: str) -> list[str]:
    words = text.split()
    if len(words) == 1 and words[0].startswith("@"):
        expression = _SHORTCUTS.get(words[0].lower())
        if expression is None:
            valid = " ".join(_SHORTCUTS)
            raise ConfigError(f"cron expression {text!r:.60} is unknown; there are {valid}")
        return expression.split()
    if len(words) != len(_FIELDS):
        names = ", ".join(field.name for field in _FIELDS)
        raise ConfigError(
            f"cron expression {text!r:.60} has {len(words)} fields; it needs five: {names}"
        )
    return words


def _number(word: str) -> int | None:
    # int() accepts more than cron does, and is slow on long texts.
    return int(word) if len(word) <= 4 and word.isascii() and word.isdigit() else None


def _load_timezone(timezone: str) -> tzinfo:
    # Known also without a database of time zones.
    if timezone == "UTC":
        return UTC
    try:
        return ZoneInfo(timezone)
    except (LookupError, OSError, ValueError):
        raise ConfigError(
            f"time zone {timezone!r:.60} is unknown here; give a name like 'Europe/Berlin', "
            "and install the package tzdata if the system has no database of zones"
        ) from None


def _moment(wall: datetime, clock: tzinfo) -> datetime:
    """Return when this local time first occurs, or the end of the gap that contains it."""
    before, after = (
        wall.replace(tzinfo=clock, fold=0).utcoffset(),
        wall.replace(tzinfo=clock, fold=1).utcoffset(),
    )
    assert before is not None and after is not None
    moment = (wall - before).replace(tzinfo=UTC)
    if before >= after:
        return moment
    # Zones do not tell when they change, but it is within the length of the gap before.
    too_early = moment - (after - before)
    while moment - too_early > _SECOND:
        middle = too_early + (moment - too_early) // _SECOND // 2 * _SECOND
        if middle.astimezone(clock).utcoffset() == before:
            too_early = middle
        else:
            moment = middle
    return moment
