"""Plain values as bytes: equal ones give equal bytes, and the bytes give an equal value. Pure.

Plain are None, booleans, numbers, text, bytes, and lists and dicts (with text keys) of such.
"""

from __future__ import annotations

from typing import Any

import msgspec

from .segments import INT_MAX, INT_MIN, InvalidSegmentError

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder()

_NAN = float("nan")


def encode_canonical(value: object) -> bytes:
    """A value as bytes, as it is; tuples become lists, and dicts lose the order of their keys.

    Raises:
        UnfitSegment: it is not plain.
    """
    return _encode(_plain(value, is_group=False))


def decode_plain(data: bytes) -> Any:
    """What was encoded."""
    return _decoder.decode(data)


def encode_group(value: object) -> bytes:
    """The value that decides which segments meet, as bytes.

    Values that are equal in Python are one group, 1 and 1.0 too, but true and false are no
    numbers. All that is not a number is one group.

    Raises:
        UnfitSegment: it is not plain.
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
    raise InvalidSegmentError(f"{value!r:.80} is of type {type(value).__name__}, or too large, to store")


def _canonical_number(value: float) -> int | float:
    """The one number among equal ones."""
    if value.is_integer() and INT_MIN <= value <= INT_MAX:
        return int(value)
    return value if value == value else _NAN
