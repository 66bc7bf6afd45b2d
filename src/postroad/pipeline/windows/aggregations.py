"""What segments of a window add up to. Pure.

Segments of one window are counted on several machines and in several batches, so that what they
add up to is put together from parts, in whatever order these come.
"""

from __future__ import annotations

import abc
from bisect import insort
from collections.abc import Callable
from typing import Any

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Segment, Window

from . import exact
from .plain import decode_plain, encode_canonical
from .segments import INT_MAX, INT_MIN, InvalidSegmentError, canonical, is_number, number_of, value_of

_SORTED_IN_MAX = 8
"""Up to so many items are sorted in one by one."""


class Aggregation(abc.ABC):
    """How segments become a state, and a state becomes a result.

    A state is plain data: None, booleans, numbers of 64 bits, text, bytes, lists and dicts of
    such, so that it is the same after it was stored. `merge` must be commutative and associative,
    `init()` changes nothing in it, and `add(state, segment)` is
    `merge(state, add(init(), segment))`.
    """

    def __init__(self, key: str | None = None) -> None:
        """The key of the window, if it has one."""
        self.key = key

    @abc.abstractmethod
    def init(self) -> Any:
        """The state of no segments."""

    @abc.abstractmethod
    def add(self, state: Any, segment: Segment) -> Any:
        """The state with one more segment; what it raises is a failure of the segment.

        It may change and return the state it is given.
        """

    def add_in_order(self, state: Any, segment: Segment, order: bytes) -> Any:
        """The same for those to whom the order of segments matters, by their order tokens."""
        return self.add(state, segment)

    @abc.abstractmethod
    def merge(self, left: Any, right: Any) -> Any:
        """The state of two; it may change and return the left one, and must leave the right one.

        It must not raise.
        """

    @abc.abstractmethod
    def result(self, state: Any) -> Any:
        """What is emitted; it must not share lists or dicts with the state."""


class Count(Aggregation):
    """How many segments there are."""

    def init(self) -> int:
        return 0

    def add(self, state: int, segment: Segment) -> int:
        return state + 1

    def merge(self, left: int, right: int) -> int:
        return left + right

    def result(self, state: int) -> int:
        return state


class _KeyAggregation(Aggregation):
    """Something about the values of a key, which must be given."""

    def __init__(self, key: str | None = None) -> None:
        super().__init__(key)
        if key is None:
            raise ConfigError(f"aggregation {type(self).__name__.lower()!r} needs a key")
        self._key = key


class Sum(_KeyAggregation):
    """The sum of a key, rounded once; whole while all its numbers are."""

    def init(self) -> list[Any]:
        return [exact.pack(*exact.ZERO), False]

    def add(self, state: list[Any], segment: Segment) -> list[Any]:
        number = number_of(segment, self._key)
        return self.merge(state, [exact.pack(*exact.exactly(number)), isinstance(number, float)])

    def merge(self, left: list[Any], right: list[Any]) -> list[Any]:
        return [exact.add(left[0], right[0]), left[1] or right[1]]

    def result(self, state: list[Any]) -> int | float:
        packed, has_floats = state
        whole, _ = exact.unpack(packed)
        # What is larger cannot be stored as a whole number.
        return exact.rounded(packed) if has_floats or not INT_MIN <= whole <= INT_MAX else whole


class Average(_KeyAggregation):
    """The mean of a key, rounded once; None of no segments."""

    def init(self) -> list[Any]:
        return [exact.pack(*exact.ZERO), 0]

    def add(self, state: list[Any], segment: Segment) -> list[Any]:
        number = number_of(segment, self._key)
        return self.merge(state, [exact.pack(*exact.exactly(number)), 1])

    def merge(self, left: list[Any], right: list[Any]) -> list[Any]:
        return [exact.add(left[0], right[0]), left[1] + right[1]]

    def result(self, state: list[Any]) -> float | None:
        packed, count = state
        return exact.rounded(packed, count) if count else None


class _ExtremeValue(_KeyAggregation):
    """The first value of a key in an order that knows numbers and text, numbers first."""

    def init(self) -> Any:
        return None

    def add(self, state: Any, segment: Segment) -> Any:
        value = value_of(segment, self._key)
        if not isinstance(value, str):
            if not is_number(value):
                raise InvalidSegmentError(
                    f"key {self._key!r} is {value!r:.80}; its window needs a number or text"
                )
            value = canonical(value)
        return self.merge(state, value)

    def merge(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return self._choose(left, right)

    @abc.abstractmethod
    def _choose(self, left: Any, right: Any) -> Any:
        """One of two values."""

    def result(self, state: Any) -> Any:
        return state


def _rank(value: Any) -> tuple[bool, Any, bool]:
    # Of 1 and 1.0 it must always be the same that is chosen.
    return isinstance(value, str), value, isinstance(value, float)


class Min(_ExtremeValue):
    """The least value of a key."""

    def _choose(self, left: Any, right: Any) -> Any:
        return min(left, right, key=_rank)


class Max(_ExtremeValue):
    """The greatest value of a key."""

    def _choose(self, left: Any, right: Any) -> Any:
        return max(left, right, key=_rank)


class Collect(Aggregation):
    """All segments, or their values of a key, by their order tokens."""

    def init(self) -> list[list[bytes]]:
        return []

    def add(self, state: list[list[bytes]], segment: Segment) -> list[list[bytes]]:
        return self.add_in_order(state, segment, b"")

    def add_in_order(
        self, state: list[list[bytes]], segment: Segment, order: bytes
    ) -> list[list[bytes]]:
        value = segment if self.key is None else value_of(segment, self.key)
        return self.merge(state, [[order, encode_canonical(value)]])

    def merge(self, left: list[list[bytes]], right: list[list[bytes]]) -> list[list[bytes]]:
        if len(right) <= _SORTED_IN_MAX:
            for item in right:
                insort(left, item)
        else:
            left += right
            left.sort()
        return left

    def result(self, state: list[list[bytes]]) -> list[Any]:
        return [decode_plain(value) for _, value in state]


BUILT_IN: dict[str, type[Aggregation]] = {
    "average": Average,
    "collect": Collect,
    "count": Count,
    "max": Max,
    "min": Min,
    "sum": Sum,
}


def aggregation_of(window: Window, resolve: Callable[[str], Any]) -> Aggregation:
    """The aggregation a window names: a built-in one, an object, or a class to be called."""
    found = BUILT_IN.get(window.aggregation) or resolve(window.aggregation)
    if isinstance(found, type) and issubclass(found, Aggregation):
        found = found(window.key)
    if not isinstance(found, Aggregation):
        raise ConfigError(
            f"window {window.name!r}: {window.aggregation!r} is no Aggregation; "
            f"give one of {', '.join(BUILT_IN)}, or the import path of one"
        )
    return found
