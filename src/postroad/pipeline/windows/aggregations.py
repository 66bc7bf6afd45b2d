"""Built-in aggregations with exact sums."""

from __future__ import annotations

import abc
from bisect import insort
from collections.abc import Callable
from typing import Any, TypeAlias

from postroad.core.errors import ConfigError
from postroad.pipeline.job import Segment, Window
from postroad.pipeline.windows.encoding import (
    INT_MAX,
    INT_MIN,
    InvalidSegmentError,
    canonical,
    decode_plain,
    encode_canonical,
    is_number,
    number_of,
    value_of,
)

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
        return [encode_sum(*ZERO), False]

    def add(self, state: list[Any], segment: Segment) -> list[Any]:
        number = number_of(segment, self._key)
        return self.merge(state, [encode_sum(*from_number(number)), isinstance(number, float)])

    def merge(self, left: list[Any], right: list[Any]) -> list[Any]:
        return [add(left[0], right[0]), left[1] or right[1]]

    def result(self, state: list[Any]) -> int | float:
        packed, has_floats = state
        whole, _ = decode_sum(packed)
        # What is larger cannot be stored as a whole number.
        return to_float(packed) if has_floats or not INT_MIN <= whole <= INT_MAX else whole


class Average(_KeyAggregation):
    """The mean of a key, rounded once; None of no segments."""

    def init(self) -> list[Any]:
        return [encode_sum(*ZERO), 0]

    def add(self, state: list[Any], segment: Segment) -> list[Any]:
        number = number_of(segment, self._key)
        return self.merge(state, [encode_sum(*from_number(number)), 1])

    def merge(self, left: list[Any], right: list[Any]) -> list[Any]:
        return [add(left[0], right[0]), left[1] + right[1]]

    def result(self, state: list[Any]) -> float | None:
        packed, count = state
        return to_float(packed, count) if count else None


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


Packed: TypeAlias = list[int | str]
"""A sum as plain data."""

ZERO = (0, 0)


def encode_sum(whole: int, exponent: int) -> Packed:
    """A sum as plain data."""
    return [whole if INT_MIN <= whole <= INT_MAX else hex(whole), exponent]


def decode_sum(packed: Packed) -> tuple[int, int]:
    """The whole number and the exponent of a sum."""
    whole, exponent = packed
    return whole if isinstance(whole, int) else int(whole, 16), int(exponent)


def from_number(value: int | float) -> tuple[int, int]:
    """A number as a sum of its own."""
    whole, divisor = value.as_integer_ratio()
    return whole, 1 - divisor.bit_length()


def add(left: Packed, right: Packed) -> Packed:
    """The sum of two sums."""
    (left_whole, left_exponent), (right_whole, right_exponent) = decode_sum(left), decode_sum(right)
    exponent = min(left_exponent, right_exponent)
    whole = (left_whole << left_exponent - exponent) + (right_whole << right_exponent - exponent)
    return encode_sum(whole, exponent)


def to_float(packed: Packed, divisor: int = 1) -> float:
    """The float nearest to a sum, or to its part; infinite when it is too large for one."""
    whole, exponent = decode_sum(packed)
    try:
        return whole / (divisor << -exponent)
    except OverflowError:
        return float("inf") if whole > 0 else float("-inf")
