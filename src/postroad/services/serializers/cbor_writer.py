"""Values to CBOR (RFC 8949), in the forms that `cbor-x` takes for what they are.

It takes 64-bit integers for a kind of its own, which cannot be added to others: so those that a
float holds exactly are written as floats, as it does itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from .depth import DEPTH_MAX

_INTEGER_MAX = 2**32 - 1
_SAFE_MAX = 2**53
_64_BITS_MAX = 2**64 - 1
_BYTES = (bytes, bytearray, memoryview)

_pack_8 = struct.Struct(">BB").pack
_pack_16 = struct.Struct(">BH").pack
_pack_32 = struct.Struct(">BI").pack
_pack_64 = struct.Struct(">BQ").pack
_pack_float = struct.Struct(">Bd").pack

_UNSIGNED, _NEGATIVE, _BYTE_STRING, _TEXT, _ARRAY, _MAP, _TAG = range(0, 7 << 5, 1 << 5)
_FLOAT_64 = 0xFB
_TAG_TIME = 1
_TAG_BIG, _TAG_BIG_NEGATIVE = 2, 3


def write_cbor(value: Any) -> bytes:
    """The bytes of a value; raises TypeError or ValueError if it has none."""
    out: list[bytes] = []
    _write(value, out.append, 0)
    return b"".join(out)


def _write(value: Any, put: Callable[[bytes], None], depth: int) -> None:
    writer = _WRITERS.get(type(value))
    if writer is not None:
        put(writer(value))
    elif isinstance(value, dict):
        _write_map(value, put, _deeper(depth))
    elif isinstance(value, list | tuple):
        put(_head(_ARRAY, len(value)))
        depth = _deeper(depth)
        for item in value:
            _write(item, put, depth)
    else:
        _write(msgspec.to_builtins(value, builtin_types=(*_BYTES, datetime)), put, _deeper(depth))


def _write_map(value: dict[Any, Any], put: Callable[[bytes], None], depth: int) -> None:
    put(_head(_MAP, len(value)))
    for key, item in value.items():
        put(_text(key)) if type(key) is str else _write(key, put, depth)
        writer = _WRITERS.get(type(item))
        put(writer(item)) if writer is not None else _write(item, put, depth)


def _deeper(depth: int) -> int:
    if depth >= DEPTH_MAX + 1:  # The packet itself is a level.
        raise ValueError(f"more than {DEPTH_MAX} levels")
    return depth + 1


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes((major | number,))
    if number < 1 << 8:
        return _pack_8(major | 24, number)
    if number < 1 << 16:
        return _pack_16(major | 25, number)
    if number < 1 << 32:
        return _pack_32(major | 26, number)
    return _pack_64(major | 27, number)


def _text(value: str) -> bytes:
    data = value.encode()
    return _head(_TEXT, len(data)) + data


def _byte_string(value: bytes | bytearray | memoryview) -> bytes:
    data = bytes(value)
    return _head(_BYTE_STRING, len(data)) + data


def _integer(value: int) -> bytes:
    if 0 <= value <= _INTEGER_MAX:
        return _head(_UNSIGNED, value)
    if -_INTEGER_MAX <= value < 0:
        return _head(_NEGATIVE, -1 - value)
    if -_SAFE_MAX <= value <= _SAFE_MAX:
        return _float(float(value))
    major, tag, number = (_UNSIGNED, _TAG_BIG, value)
    if value < 0:
        major, tag, number = (_NEGATIVE, _TAG_BIG_NEGATIVE, -1 - value)
    if number <= _64_BITS_MAX:
        return _head(major, number)
    return _head(_TAG, tag) + _byte_string(number.to_bytes((number.bit_length() + 7) // 8))


def _float(value: float) -> bytes:
    return _pack_float(_FLOAT_64, value)


def _time(value: datetime) -> bytes:
    if value.tzinfo is None:
        return _text(value.isoformat())
    return _head(_TAG, _TAG_TIME) + _float(value.timestamp())


def _boolean(value: bool) -> bytes:
    return b"\xf5" if value else b"\xf4"


def _none(_value: None) -> bytes:
    return b"\xf6"


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    bool: _boolean,
    bytearray: _byte_string,
    bytes: _byte_string,
    datetime: _time,
    float: _float,
    int: _integer,
    memoryview: _byte_string,
    str: _text,
    type(None): _none,
}
