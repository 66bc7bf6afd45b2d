"""Payload compression of version 3, negotiated in the hello and off by default.

A compressed payload is u32 original size, then the compressed bytes. The size is checked against
the frame limit before anything is decompressed, and must turn out true.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from postroad.core.errors import ConfigError, MalformedFrameError, MissingExtraError
from postroad.wire.frames import check_frame_size

_SIZE = struct.Struct(">I")

# Below this the header and the work outweigh what is saved.
COMPRESS_BYTES_MIN = 512
# What shrinks more than this travels as it is: a small read must not become a flood of memory.
RATIO_MAX = 256


class CompressionAlgorithm(Protocol):
    """One compression algorithm."""

    def compress(self, data: bytes) -> bytes:
        """Compress a whole payload."""

    def decompress(self, data: bytes, size: int) -> bytes:
        """Decompress to at most `size` bytes; any failure is a MalformedFrameError."""


class ZlibCompression:
    """The standard library's; always there, slower than zstd."""

    def compress(self, data: bytes) -> bytes:
        return zlib.compress(data, 1)

    def decompress(self, data: bytes, size: int) -> bytes:
        stream = zlib.decompressobj()
        try:
            payload = stream.decompress(data, size + 1)
        except zlib.error as error:
            raise MalformedFrameError(f"payload is not zlib data: {error}") from None
        if not stream.eof or stream.unused_data:
            raise MalformedFrameError("payload is not one whole zlib stream")
        return payload


class ZstdCompression:
    """Zstandard, from the `zstd` extra."""

    def __init__(self) -> None:
        try:
            self._library: Any = import_module("zstandard")
        except ImportError:
            raise MissingExtraError("zstd", "compression 'zstd'") from None
        self._compressor = self._library.ZstdCompressor(level=1)
        self._decompressor = self._library.ZstdDecompressor()

    def compress(self, data: bytes) -> bytes:
        return bytes(self._compressor.compress(data))

    def decompress(self, data: bytes, size: int) -> bytes:
        try:
            # The frame's own header decides how much is allocated, so it must agree first.
            if self._library.frame_content_size(data) != size:
                raise MalformedFrameError("payload is not zstd data of the announced size")
            return bytes(
                self._decompressor.decompress(data, max_output_size=size, allow_extra_data=False)
            )
        except self._library.ZstdError as error:
            raise MalformedFrameError(f"payload is not zstd data: {error}") from None


ALGORITHMS: dict[str, Callable[[], CompressionAlgorithm]] = {
    "zstd": ZstdCompression,
    "zlib": ZlibCompression,
}


def load_algorithm(name: str) -> CompressionAlgorithm:
    """The algorithm of that name, ready for use."""
    try:
        factory = ALGORITHMS[name]
    except KeyError:
        known = ", ".join(ALGORITHMS)
        raise ConfigError(f"unknown compression {name!r}; there are: {known}") from None
    return factory()


def negotiate_compression(ours: Sequence[str], theirs: Sequence[str]) -> str | None:
    """The one both sides will use: zstd before zlib, if both sides offer it."""
    common = [name for name in ALGORITHMS if name in ours and name in theirs]
    return common[0] if common else None


def compress_payload(algorithm: CompressionAlgorithm, payload: bytes) -> bytes | None:
    """The compressed form, or None when it is not worth it."""
    if len(payload) < COMPRESS_BYTES_MIN:
        return None
    packed = _SIZE.pack(len(payload)) + algorithm.compress(payload)
    is_worth_it = len(packed) < len(payload) <= RATIO_MAX * len(packed)
    return packed if is_worth_it else None


def decompress_payload(
    algorithm: CompressionAlgorithm, packed: bytes, frame_bytes_max: int
) -> bytes:
    """The original payload."""
    if len(packed) < _SIZE.size:
        raise MalformedFrameError("compressed payload lacks its size")
    (size,) = _SIZE.unpack_from(packed)
    check_frame_size(size, frame_bytes_max)
    if size > RATIO_MAX * len(packed):
        raise MalformedFrameError(f"{len(packed)} bytes are announced to hold {size}")
    payload = algorithm.decompress(packed[_SIZE.size :], size)
    if len(payload) != size:
        raise MalformedFrameError(f"compressed payload is not of the announced {size} bytes")
    return payload
