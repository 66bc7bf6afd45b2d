"""Variable-length integers of the `zeebe` profile: little-endian groups of seven bits.

A 64-bit value takes nine bytes at most, the ninth carrying eight bits, unlike LEB128. Readers raise
IndexError when the bytes end too early, which callers take as "wait for more".
"""

from __future__ import annotations

from postroad.core.errors import MalformedFrameError

_MASK_64 = (1 << 64) - 1


def encode_varint32(value: int) -> bytes:
    """Encode 0 to 2^32 - 1 in one to five bytes."""
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
    """Read an unsigned value; returns it and the position after it."""
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
    """Read a signed value; returns it and the position after it."""
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
