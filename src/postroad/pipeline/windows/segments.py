"""What windows read from segments, and the error of those they cannot use. Pure."""

from __future__ import annotations

import math
from typing import Any

from postroad.pipeline.job import Segment

TIME_MAX_S = 2.0**53
"""Up to here every whole second is a float; no clock that counts seconds comes near it."""

INT_MIN, INT_MAX = -(2**63), 2**64 - 1
"""What can be stored."""


class InvalidSegmentError(ValueError):
    """A segment lacks something its window needs; the segment has failed, nothing was changed."""


def value_of(segment: Segment, key: str) -> Any:
    """The value of a key that must be there."""
    try:
        return segment[key]
    except KeyError:
        raise InvalidSegmentError(f"the segment has no key {key!r}, which its window needs") from None


def is_number(value: object) -> bool:
    """Whether it is one that can be compared with others, and stored."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return INT_MIN <= value <= INT_MAX
    return isinstance(value, float) and math.isfinite(value)


def number_of(segment: Segment, key: str) -> int | float:
    """The number a key must hold."""
    value = value_of(segment, key)
    if not is_number(value):
        raise InvalidSegmentError(f"key {key!r} is {value!r:.80}; its window needs a number of 64 bits")
    return canonical(value)


def canonical(number: int | float) -> int | float:
    """The one number among those that look equal: zero has no sign, and enums are numbers."""
    return float(number) + 0.0 if isinstance(number, float) else int(number)


def time_of(segment: Segment, key: str) -> float:
    """The time of a segment, in seconds."""
    value = value_of(segment, key)
    if not is_number(value) or not -TIME_MAX_S <= value <= TIME_MAX_S:
        raise InvalidSegmentError(f"key {key!r} is {value!r:.80}; its window needs a time in seconds")
    return float(value) + 0.0
