"""CBOR (RFC 8949) to values, as far as messages need it: no cycles, no code, bounded depth.

An undefined value is left out of maps and is None elsewhere. Tags nobody needs here are ignored:
their content is taken. Whole numbers too large for the integers that JavaScript writes come as
floats, and are integers again here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from postroad.core.errors import MalformedPayloadError

from .depth import DEPTH_MAX

_BIG_BYTES_MAX = 1_024
_SAFE_MIN = float(2**32)
_SAFE_MAX = float(2**53)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INDEFINITE = 31

_TAG_TEXT_TIME, _TAG_TIME, _TAG_BIG, _TAG_BIG_NEGATIVE = range(4)

_unpack_16 = struct.Struct(">H").unpack_from
_unpack_32 = struct.Struct(">I").unpack_from
_unpack_64 = struct.Struct(">Q").unpack_from
_unpack_floats = {
    25: struct.Struct(">e").unpack_from,
    26: struct.Struct(">f").unpack_from,
    27: struct.Struct(">d").unpack_from,
}
_FLOAT_BYTES = {25: 2, 26: 4, 27: 8}
_SIMPLE = {20: False, 21: True, 22: None}

_undefined = object()
_stop = object()


def read_cbor(data: bytes) -> Any:
    """The one value in some bytes; raises MalformedPayloadError for anything else."""
    reader = _Reader(data)
    try:
        value = reader.read(0)
    except (IndexError, struct.error):
        raise MalformedPayloadError("no CBOR: it ends too early") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedPayloadError(f"no CBOR: {error}") from None
    if reader.position != len(data):
        raise MalformedPayloadError("no CBOR: something follows it")
    if value is _stop:
        raise MalformedPayloadError("no CBOR: an end without a beginning")
    return None if value is _undefined else value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def read(self, depth: int) -> Any:
        """The next value; it may be undefined, or the end of an indefinite one."""
        first = self._data[self.position]
        self.position += 1
        return _READERS[first >> 5](self, first & 31, depth)

    def _number(self, info: int) -> int:
        if info < 24:
            return info
        position = self.position
        if info == 24:
            self.position = position + 1
            return self._data[position]
        if info == 25:
            self.position = position + 2
            return int(_unpack_16(self._data, position)[0])
        if info == 26:
            self.position = position + 4
            return int(_unpack_32(self._data, position)[0])
        if info == 27:
            self.position = position + 8
            return int(_unpack_64(self._data, position)[0])
        raise MalformedPayloadError(f"no CBOR: length {info}")

    def _take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self._data):
            raise IndexError
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def unsigned(self, info: int, _depth: int) -> int:
        return self._number(info)

    def negative(self, info: int, _depth: int) -> int:
        return -1 - self._number(info)

    def byte_string(self, info: int, depth: int) -> bytes:
        if info == _INDEFINITE:
            return b"".join(self._pieces(bytes, depth))
        return self._take(self._number(info))

    def text(self, info: int, depth: int) -> str:
        if info == _INDEFINITE:
            return "".join(self._pieces(str, depth))
        # JavaScript writes halves of characters that it has cut.
        return self._take(self._number(info)).decode(errors="replace")

    def _pieces(self, kind: type, depth: int) -> list[Any]:
        pieces = []
        depth = _deeper(depth)
        while (piece := self.read(depth)) is not _stop:
            if type(piece) is not kind:
                raise MalformedPayloadError("no CBOR: a string of other things")
            pieces.append(piece)
        return pieces

    def array(self, info: int, depth: int) -> list[Any]:
        depth = _deeper(depth)
        if info != _INDEFINITE:
            return [self._item(depth) for _ in range(self._number(info))]
        items: list[Any] = []
        while (item := self.read(depth)) is not _stop:
            items.append(None if item is _undefined else item)
        return items

    def map(self, info: int, depth: int) -> dict[Any, Any]:
        depth = _deeper(depth)
        entries: dict[Any, Any] = {}
        if info == _INDEFINITE:
            while (key := self.read(depth)) is not _stop:
                self._entry(key, entries, depth)
            return entries
        for _ in range(self._number(info)):
            self._entry(self._item(depth), entries, depth)
        return entries

    def _entry(self, key: Any, entries: dict[Any, Any], depth: int) -> None:
        value = self.read(depth)
        if value is _stop:
            raise MalformedPayloadError("no CBOR: a map ends within an entry")
        if value is not _undefined:
            entries[key] = value

    def _item(self, depth: int) -> Any:
        item = self.read(depth)
        if item is _stop:
            raise MalformedPayloadError("no CBOR: an end where a value should be")
        return None if item is _undefined else item

    def tagged(self, info: int, depth: int) -> Any:
        tag = self._number(info)
        value = self._item(_deeper(depth))
        if tag == _TAG_TIME and type(value) in (int, float):
            return _time(value)
        if tag == _TAG_TEXT_TIME and type(value) is str:
            return _text_time(value)
        if tag in (_TAG_BIG, _TAG_BIG_NEGATIVE) and type(value) is bytes:
            return _big(tag, value)
        return value

    def simple(self, info: int, _depth: int) -> Any:
        if info in _SIMPLE:
            return _SIMPLE[info]
        if info in _unpack_floats:
            number = _unpack_floats[info](self._data, self.position)[0]
            self.position += _FLOAT_BYTES[info]
            is_whole = _SAFE_MIN <= abs(number) <= _SAFE_MAX and number.is_integer()
            return int(number) if is_whole else number
        if info == 23:
            return _undefined
        if info == _INDEFINITE:
            return _stop
        raise MalformedPayloadError(f"no CBOR: simple value {info}")


_READERS: tuple[Callable[[_Reader, int, int], Any], ...] = (
    _Reader.unsigned,
    _Reader.negative,
    _Reader.byte_string,
    _Reader.text,
    _Reader.array,
    _Reader.map,
    _Reader.tagged,
    _Reader.simple,
)


def _deeper(depth: int) -> int:
    if depth >= DEPTH_MAX + 1:  # The packet itself is a level.
        raise MalformedPayloadError(f"no CBOR: more than {DEPTH_MAX} levels")
    return depth + 1


def _time(seconds: float) -> datetime | None:
    """None for what JavaScript calls an invalid date, and for years that Python does not have."""
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return None


def _text_time(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _big(tag: int, data: bytes) -> int:
    if len(data) > _BIG_BYTES_MAX:
        raise MalformedPayloadError(f"no CBOR: a number of {len(data)} bytes")
    number = int.from_bytes(data)
    return number if tag == _TAG_BIG else -1 - number
