"""Canonical encoding of groups and values."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from postroad.pipeline.job import Segment

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder()

_NAN = float("nan")


def encode_canonical(value: object) -> bytes:
    """A plain value as bytes; tuples become lists, and dicts lose the order of their keys."""
    return _encode(_plain(value, is_group=False))


def decode_plain(data: bytes) -> Any:
    """What was encoded."""
    return _decoder.decode(data)


def encode_group(value: object) -> bytes:
    """The key of a group as bytes; raises InvalidSegmentError if it is not plain.

    Values that are equal in Python are one group, 1 and 1.0 too, but true and false are no numbers.
    All NaNs are one group.
    """
    return _encode(value if type(value) is str else _plain(value, is_group=True))


def decode_group(data: bytes) -> Any:
    """The value of a group; a list where it was a tuple."""
    return _decoder.decode(data)


def _encode(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError) as error:
        raise InvalidSegmentError(f"{value!r:.80} cannot be stored: {error}") from error


def _plain(value: object, *, is_group: bool) -> object:
    if value is None or isinstance(value, (bool, str, bytes)):
        return value
    if isinstance(value, int) and INT_MIN <= value <= INT_MAX:
        return value
    if isinstance(value, float):
        return _canonical_number(value) if is_group else value
    if isinstance(value, (list, tuple)):
        return [_plain(item, is_group=is_group) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, is_group=is_group) for key, item in value.items()}
    raise InvalidSegmentError(
        f"{value!r:.80} is of type {type(value).__name__}, or too large, to store"
    )


def _canonical_number(value: float) -> int | float:
    """The one number among equal ones."""
    if value.is_integer() and INT_MIN <= value <= INT_MAX:
        return int(value)
    return _NAN if math.isnan(value) else value


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
        raise InvalidSegmentError(
            f"the segment has no key {key!r}, which its window needs"
        ) from None


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
        raise InvalidSegmentError(
            f"key {key!r} is {value!r:.80}; its window needs a number of 64 bits"
        )
    return canonical(value)


def canonical(number: int | float) -> int | float:
    """The one number among those that look equal: zero has no sign, and enums are numbers."""
    return float(number) + 0.0 if isinstance(number, float) else int(number)


def time_of(segment: Segment, key: str) -> float:
    """The time of a segment, in seconds."""
    value = value_of(segment, key)
    if not is_number(value) or not -TIME_MAX_S <= value <= TIME_MAX_S:
        raise InvalidSegmentError(
            f"key {key!r} is {value!r:.80}; its window needs a time in seconds"
        )
    return float(value) + 0.0
