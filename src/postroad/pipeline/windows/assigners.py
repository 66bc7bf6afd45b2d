"""Window assigners: global, fixed, sliding, session."""

from __future__ import annotations

import abc
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from operator import attrgetter
from typing import Protocol

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Window, WindowType


class TimeRange(Protocol):
    """Something about an extent."""

    lower: float
    latest: float
    """The latest time of a segment in it."""


_lower = attrgetter("lower")


class WindowAssigner(abc.ABC):
    """How time is cut."""

    @abc.abstractmethod
    def lowers(self, time_s: float) -> list[float]:
        """Where the extents of a segment begin."""

    @abc.abstractmethod
    def upper(self, lower: float, latest: float) -> float:
        """Where an extent ends."""

    def meeting(self, line: Sequence[TimeRange], lower: float, latest: float) -> tuple[int, int]:
        """From where to where stretches of a group, in their order, are one with another."""
        place = bisect_left(line, lower, key=_lower)
        return place, place + (place < len(line) and line[place].lower == lower)


class GlobalAssigner(WindowAssigner):
    """One extent without bounds."""

    def lowers(self, time_s: float) -> list[float]:
        return [0.0]

    def upper(self, lower: float, latest: float) -> float:
        return math.inf


class IntegerStepAssigner(WindowAssigner):
    """Extents of whole seconds, at whole seconds."""

    def __init__(self, range_s: int, slide_s: int) -> None:
        self._range_s = range_s
        self._slide_s = slide_s

    def lowers(self, time_s: float) -> list[float]:
        second, slide_s = math.floor(time_s), self._slide_s
        first = (second - self._range_s) // slide_s + 1
        return [float(step * slide_s) for step in range(first, second // slide_s + 1)]

    def upper(self, lower: float, latest: float) -> float:
        return lower + self._range_s


class DecimalStepAssigner(WindowAssigner):
    """Extents of parts of a second: 0.3 is where the fourth of those of 0.1 begins.

    It would not be if 0.1 were the float, which is a bit more than a tenth.
    """

    def __init__(self, range_s: float, slide_s: float) -> None:
        self._range_s = Fraction(str(range_s))
        self._length_s = float(range_s)
        self._slide_s = Fraction(str(slide_s))

    def lowers(self, time_s: float) -> list[float]:
        time, slide_s = Fraction(str(time_s)), self._slide_s
        first = (time - self._range_s) // slide_s + 1
        return [float(step * slide_s) for step in range(first, time // slide_s + 1)]

    def upper(self, lower: float, latest: float) -> float:
        return plus(lower, self._length_s)


class SessionAssigner(WindowAssigner):
    """Extents that end when nothing came for some time."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = float(gap_s)

    def lowers(self, time_s: float) -> list[float]:
        return [time_s]

    def upper(self, lower: float, latest: float) -> float:
        return plus(latest, self._gap_s)

    def meeting(self, line: Sequence[TimeRange], lower: float, latest: float) -> tuple[int, int]:
        gap_s = self._gap_s
        first = after = bisect_right(line, lower, key=_lower)
        while first > 0 and is_closer(line[first - 1].latest, lower, gap_s):
            first -= 1
        while after < len(line) and is_closer(latest, line[after].lower, gap_s):
            after += 1
        return first, after


def assignment_of(window: Window) -> WindowAssigner:
    """How a window cuts time."""
    match window.type:
        case WindowType.GLOBAL:
            return GlobalAssigner()
        case WindowType.SESSION:
            return SessionAssigner(_seconds(window, "gap_s"))
        case WindowType.FIXED:
            return _steps(_seconds(window, "range_s"), _seconds(window, "range_s"))
        case WindowType.SLIDING:
            return _steps(_seconds(window, "range_s"), _seconds(window, "slide_s"))


def _seconds(window: Window, name: str) -> float:
    value: float | None = getattr(window, name)
    if value is None or not 0 < value < math.inf:
        raise ConfigError(f"window {window.name!r}: {name} is {value}; it must be above 0")
    return value


def _steps(range_s: float, slide_s: float) -> WindowAssigner:
    whole_range_s, whole_slide_s = int(range_s), int(slide_s)
    if (whole_range_s, whole_slide_s) == (range_s, slide_s):
        return IntegerStepAssigner(whole_range_s, whole_slide_s)
    return DecimalStepAssigner(range_s, slide_s)


# One of its own, which nobody can change. It has room for any two floats that are times.
_context = Context(prec=60)


def plus(left: float, right: float) -> float:
    """The sum of two times."""
    if left.is_integer() and right.is_integer():
        return left + right
    return float(_context.add(Decimal(repr(left)), Decimal(repr(right))))


def is_closer(earlier: float, later: float, gap: float) -> bool:
    """Whether a time comes less than so much after another, or before it."""
    if earlier.is_integer() and later.is_integer():
        return later - earlier < gap
    return _context.subtract(Decimal(repr(later)), Decimal(repr(earlier))) < Decimal(repr(gap))
