"""Windows whose extents are emitted once, when the watermark has passed them, as sums of columns.

What segments add to such a window is a row for each group and extent, and rows of one extent are
put together by nothing but sums, extremes and lists of columns: any engine that groups rows can do
it. The outcome is that of `WindowOperator`, to the bit. Pure.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from postroad.pipeline.job import TriggerType
from postroad.pipeline.windows.aggregations import (
    Average,
    Count,
    Max,
    Min,
    Sum,
    encode_sum,
    from_number,
)
from postroad.pipeline.windows.assigners import StepAssigner, plus
from postroad.pipeline.windows.compiled import NO_TIME, CompiledWindow
from postroad.pipeline.windows.encoding import (
    InvalidSegmentError,
    decode_group,
    encode_group,
    number_of,
)
from postroad.pipeline.windows.panes import Extent

INDEX_MAX = 1 << 50
"""The highest number of an extent."""
LIMBS = 8
"""Columns of a sum; together they are a whole number of so many times 32 bits."""
_LIMB_BITS = 32
# Of these so many are fractions; a number that has more, or is larger, is kept as it is.
_FRACTION_BITS = 96
_SUM_MAX = 1 << (LIMBS * _LIMB_BITS - 2)

_encode_state = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder().decode


class PartialPane:
    """What the segments of one group and extent add."""

    __slots__ = ("count", "extreme", "has_floats", "others", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        """The sum of the numbers that fit, as a multiple of the smallest fraction."""
        self.has_floats = False
        self.extreme: bytes | None = None
        """The greatest or least value, as bytes that compare as the values do."""
        self.others: Any = None
        """The state of the aggregation for what has no column."""


class PartialColumns(msgspec.Struct, frozen=True):
    """What columns a window needs besides that of its counts."""

    has_total: bool
    """Whether it needs those of a sum."""
    has_extreme: bool
    """Whether it needs that of an extreme."""
    is_max: bool
    """Whether that is the greatest."""
    has_others: bool
    """Whether it needs that of states."""
    ahead: int
    """Extents have numbers less than so much above that of the last one that has ended."""


class PartialWindow:
    """A window as sums of columns."""

    def __init__(self, window: CompiledWindow) -> None:
        assert isinstance(window.assignment, StepAssigner)
        assert window.allowed_lateness_s is not None
        self.window = window
        self._assignment = window.assignment
        self._wait_s = float(window.allowed_lateness_s)
        aggregation = window.aggregation
        kind = type(aggregation)
        self.has_total = kind in (Sum, Average)
        self.has_extreme = kind in (Min, Max)
        self._is_max = kind is Max
        self.has_others = kind is not Count and not self.has_extreme
        slide_s = self._assignment.lower(1)
        length_s = self._assignment.upper(0.0, 0.0)
        # With two to spare for what is rounded.
        self._ahead = math.ceil((length_s + self._wait_s) / slide_s) + 4

    @property
    def columns(self) -> PartialColumns:
        """The columns that it needs."""
        return PartialColumns(
            self.has_total, self.has_extreme, self._is_max, self.has_others, self._ahead
        )

    @staticmethod
    def fits(window: CompiledWindow) -> bool:
        """Whether a window can be done that way."""
        triggers = window.triggers
        return (
            isinstance(window.assignment, StepAssigner)
            and len(triggers) == 1
            and triggers[0].trigger.on is TriggerType.WATERMARK
            and window.allowed_lateness_s == triggers[0].trigger.threshold
            and window.assignment.upper(0.0, 0.0) + window.allowed_lateness_s < 2**40
        )

    # Adding.

    def prepare(self, group: object, segment: dict[str, Any], order: bytes) -> PartialAddition:
        """What a segment adds.

        Raises:
            InvalidSegmentError: the window cannot use it.
            Exception: what an aggregation of the job raised.
        """
        window = self.window
        time_s = window.time(segment)
        indexes = self._assignment.indexes(time_s)
        if not -INDEX_MAX < indexes.start <= indexes.stop < INDEX_MAX:
            raise InvalidSegmentError(
                f"key {window.window.time_key!r} is {time_s!r}; windows of "
                f"{self._assignment.lower(1)} s cannot be counted that far"
            )
        value: Any = None
        if self.has_total:
            value = number_of(segment, str(window.window.key))
        elif self.has_extreme or self.has_others:
            value = window.part(segment, order)
        return encode_group(group), time_s, indexes, value

    def add(self, pane: PartialPane, value: Any) -> None:
        """Add the value of a segment to one of its extents."""
        pane.count += 1
        if self.has_total:
            whole, exponent = value, 0
            if isinstance(value, float):
                pane.has_floats = True
                whole, exponent = from_number(value)
            if exponent >= -_FRACTION_BITS:
                total = pane.total + (whole << _FRACTION_BITS + exponent)
                if -_SUM_MAX < total < _SUM_MAX:
                    pane.total = total
                    return
            self._add_state(pane, self._state_of(whole, exponent, value))
        elif self.has_extreme:
            encoded = encode_ordered(value)
            if pane.extreme is None or (encoded > pane.extreme) == self._is_max:
                pane.extreme = encoded
        elif self.has_others:
            self._add_state(pane, value)

    def _state_of(self, whole: int, exponent: int, value: int | float) -> Any:
        # Averages count apart.
        is_sum = isinstance(self.window.aggregation, Sum)
        return [encode_sum(whole, exponent), isinstance(value, float) if is_sum else 0]

    def _add_state(self, pane: PartialPane, state: Any) -> None:
        aggregation = self.window.aggregation
        if pane.others is None:
            pane.others = aggregation.init()
        pane.others = aggregation.merge(pane.others, state)

    # The watermark.

    def closed_index(self, latest_s: float) -> int | None:
        """The number of the last extent that has ended long enough ago."""
        if latest_s == NO_TIME:
            return None
        index = self._assignment.indexes(latest_s).stop - self._ahead
        assert self._is_closed(index, latest_s), f"{index} of {self.window.name!r} at {latest_s}"
        while self._is_closed(index + 1, latest_s):
            index += 1
        return index

    def _is_closed(self, index: int, latest_s: float) -> bool:
        upper = self._assignment.upper(self._assignment.lower(index), 0.0)
        return latest_s > plus(upper, self._wait_s)

    # Emitting.

    def extent(
        self,
        group: bytes,
        index: int,
        count: int,
        limbs: Sequence[int] = (),
        has_floats: bool = False,
        extreme: bytes | None = None,
        others: Iterable[bytes] = (),
    ) -> Extent:
        """What is emitted, from the sums of the columns."""
        window, lower = self.window, self._assignment.lower(index)
        trigger = window.triggers[0]
        return Extent(
            window=window.name,
            group=decode_group(group),
            lower=lower,
            upper=self._assignment.upper(lower, lower),
            value=window.aggregation.result(self._state(count, limbs, has_floats, extreme, others)),
            segments=count,
            firing=1,
            trigger=trigger.trigger.on,
            trigger_index=trigger.index,
        )

    def _state(
        self,
        count: int,
        limbs: Sequence[int],
        has_floats: bool,
        extreme: bytes | None,
        others: Iterable[bytes],
    ) -> Any:
        aggregation = self.window.aggregation
        if isinstance(aggregation, Count):
            return count
        if self.has_extreme:
            return None if extreme is None else decode_ordered(extreme)
        state = aggregation.init()
        if self.has_total:
            total = sum(limb << place * _LIMB_BITS for place, limb in enumerate(limbs))
            # Whole while all its numbers are.
            packed = (
                encode_sum(total, -_FRACTION_BITS)
                if has_floats
                else encode_sum(total >> _FRACTION_BITS, 0)
            )
            state = [packed, has_floats if isinstance(aggregation, Sum) else count]
        for other in others:
            state = aggregation.merge(state, _decode_state(other))
        return state


PartialAddition = tuple[bytes, float, range, Any]
"""What a segment adds: its group, its time, the numbers of its extents, and the value."""


class PartialPanes:
    """What a part of a batch adds to one window."""

    def __init__(self, window: PartialWindow) -> None:
        self.window = window
        self.latest_s = NO_TIME
        self.panes: dict[tuple[bytes, int], PartialPane] = {}

    def add(self, addition: PartialAddition) -> None:
        """Add a segment."""
        group, time_s, indexes, value = addition
        if time_s > self.latest_s:
            self.latest_s = time_s
        for index in indexes:
            key = (group, index)
            pane = self.panes.get(key)
            if pane is None:
                pane = self.panes[key] = PartialPane()
            self.window.add(pane, value)

    def counts(self) -> dict[int, int]:
        """How many segments each extent has got, by their numbers."""
        counts: dict[int, int] = {}
        for (_, index), pane in self.panes.items():
            counts[index] = counts.get(index, 0) + pane.count
        return counts


def to_limbs(total: int) -> list[int]:
    """A sum in columns; only the last one can be below 0."""
    mask = (1 << _LIMB_BITS) - 1
    limbs = [(total >> place * _LIMB_BITS) & mask for place in range(LIMBS - 1)]
    return [*limbs, total >> (LIMBS - 1) * _LIMB_BITS]


def encode_others(state: Any) -> bytes | None:
    """The state for what has no column; None if there is none."""
    return None if state is None else _encode_state(state)


_NUMBER, _TEXT = b"\x00", b"\x01"
_SIGN = 1 << 63
_float = struct.Struct(">d")
_ordered = struct.Struct(">QHB")


def encode_ordered(value: int | float | str) -> bytes:
    """A number or text as bytes that compare as such values do: numbers first, and of two that
    are equal the whole one first."""
    if isinstance(value, str):
        return _TEXT + value.encode()
    # The next float that is not above it, and how much is missing.
    near = float(value)
    if near > value:
        near = math.nextafter(near, -math.inf)
    (bits,) = struct.unpack(">Q", _float.pack(near))
    bits = bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN
    rest = 0 if isinstance(value, float) else value - int(near)
    return _NUMBER + _ordered.pack(bits, rest, isinstance(value, float))


def decode_ordered(data: bytes) -> int | float | str:
    """What was encoded."""
    if data[:1] == _TEXT:
        return data[1:].decode()
    bits, rest, is_float = _ordered.unpack(data[1:])
    bits = bits ^ _SIGN if bits & _SIGN else bits ^ (2 * _SIGN - 1)
    (near,) = _float.unpack(struct.pack(">Q", bits))
    return float(near) if is_float else int(near) + rest
