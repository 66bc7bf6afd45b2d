"""Checksums of letters at rest: what was damaged on its disk is not handed out as data."""

from __future__ import annotations

import zlib

from postroad.core.errors import StoreCorruptedError

# No page and no letter begins with it; those of earlier versions have no seal.
_MARK = b"\xc1"
_CRC_BYTES = 4
_START = len(_MARK) + _CRC_BYTES


def seal(data: bytes) -> bytes:
    """What is stored in place of some data."""
    return b"".join((_MARK, zlib.crc32(data).to_bytes(_CRC_BYTES), data))


def unseal(stored: bytes) -> bytes:
    """The data; raises StoreCorruptedError if it is not what was stored."""
    if not stored.startswith(_MARK):
        return stored
    data = stored[_START:]
    if zlib.crc32(data) != int.from_bytes(stored[len(_MARK) : _START]):
        raise StoreCorruptedError(
            f"the checksum of {len(data)} bytes is wrong: they were damaged at rest"
        )
    return data
