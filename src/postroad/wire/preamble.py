"""The cluster's mark on every connection and datagram: a 32-bit hash of its name.

It keeps clusters apart that were pointed at each other by mistake. It is no security: `Aa` and
`BB` share a hash, so version 3 compares the names as well.
"""

from __future__ import annotations

import struct

_PREAMBLE = struct.Struct(">i")


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, wrapped to a signed 32-bit integer."""
    units = memoryview(text.encode("utf-16-be", "surrogatepass"))
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def encode_preamble(cluster: str) -> bytes:
    """The four bytes that open every handshake and datagram of that cluster."""
    return _PREAMBLE.pack(java_string_hash(cluster))
