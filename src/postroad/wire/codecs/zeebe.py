"""Frames of versions 1 and 2, profile `zeebe`: variable-length integers (2.2).

request   u8 type = 1, varint64 id, varint32 length, payload, i16 subject length, subject
reply     u8 type = 2, varint64 id, varint32 length, payload, u8 status
"""

from __future__ import annotations

import struct

from postroad.core.errors import MalformedFrameError
from postroad.wire.codecs.legacy import REPLY, REQUEST, LegacyCodec, unknown_type_error
from postroad.wire.frames import Bytes, Frame, check_frame_size

_MASK_64 = (1 << 64) - 1


def encode_varint32(value: int) -> bytes:
    if value < 0x80:
        return value.to_bytes(1, "big")
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def encode_varint64(value: int) -> bytes:
    """Encode a signed 64-bit value in one to nine bytes."""
    value &= _MASK_64
    groups = bytearray()
    while value > 0x7F and len(groups) < 8:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def decode_varint32(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Decode an unsigned value; return it and the position after it."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF, position + 1
    raise MalformedFrameError("a 32-bit variable-length integer has more than five bytes")


def decode_varint64(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Decode a signed value; return it and the position after it."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28, 35, 42, 49):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    position += 1
    value |= data[position] << 56
    return (value - (1 << 64) if value >> 63 else value), position + 1


def _pack_header(kind: int, id: int, payload_bytes: int) -> bytes:
    return bytes((kind,)) + encode_varint64(id) + encode_varint32(payload_bytes)


class ZeebeCodec(LegacyCodec):
    """Versions 1 and 2 of profile `zeebe`."""

    has_short_length = True
    pack_header = staticmethod(_pack_header)
    subject_length = struct.Struct(">H")
    bad_subject = "request {id} has a subject of negative length"

    def _decode_frames(self, data: Bytes, position: int, frames: list[Frame]) -> int:
        end = len(data)
        self.bytes_needed = 1
        while position < end:
            kind = data[position]
            if kind != REQUEST and kind != REPLY:
                raise unknown_type_error(kind)
            try:
                id, start = decode_varint64(data, position + 1)
                length, start = decode_varint32(data, start)
            except IndexError:
                self.bytes_needed = end - position + 1
                break
            check_frame_size(length, self.frame_bytes_max)
            after = self._decode_body(kind, data, id, start, start + length, frames)
            if after > end:
                self.bytes_needed = after - position
                break
            position = after
        return position
