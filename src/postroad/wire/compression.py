"""Payload compression of version 3, negotiated in the hello, off by default (3.4).

A compressed payload is u32 original size, then the compressed bytes. The size is checked against
the frame limit before decompression and against the result after it.
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

# Smaller payloads do not save enough bytes to pay for the header and the CPU time.
COMPRESS_BYTES_MIN = 512
# Payloads that shrink more are sent uncompressed, so that a receiver can reject higher ratios:
# a few received bytes must not expand to much memory (decompression bomb).
RATIO_MAX = 256


class CompressionAlgorithm(Protocol):
    """A compression algorithm."""

    def compress(self, data: bytes) -> bytes:
        """Compress a whole payload."""

    def decompress(self, data: bytes, size: int) -> bytes:
        """Decompress to at most `size` bytes; raise MalformedFrameError on any failure."""


class ZlibCompression:
    """zlib of the standard library; always available, slower than zstd."""

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
            # The size in the zstd header decides how much is allocated, so it is checked first.
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
    """Return the algorithm with this name; raise ConfigError if there is none."""
    try:
        factory = ALGORITHMS[name]
    except KeyError:
        names = ", ".join(ALGORITHMS)
        raise ConfigError(f"unknown compression {name!r}; available: {names}") from None
    return factory()


def negotiate_compression(ours: Sequence[str], theirs: Sequence[str]) -> str | None:
    """Return the best algorithm that both sides offer (zstd before zlib), or None."""
    return next((name for name in ALGORITHMS if name in ours and name in theirs), None)


def compress_payload(algorithm: CompressionAlgorithm, payload: bytes) -> bytes | None:
    """Return the compressed payload, or None if compression does not pay."""
    if len(payload) < COMPRESS_BYTES_MIN:
        return None
    packed = _SIZE.pack(len(payload)) + algorithm.compress(payload)
    is_worth_it = len(packed) < len(payload) <= RATIO_MAX * len(packed)
    return packed if is_worth_it else None


def decompress_payload(
    algorithm: CompressionAlgorithm, packed: bytes, frame_bytes_max: int
) -> bytes:
    """Return the original payload; raise MalformedFrameError if it is not valid."""
    if len(packed) < _SIZE.size:
        raise MalformedFrameError("compressed payload lacks its size")
    (size,) = _SIZE.unpack_from(packed)
    check_frame_size(size, frame_bytes_max)
    if size > RATIO_MAX * len(packed):
        raise MalformedFrameError(
            f"compressed payload of {len(packed)} bytes announces {size} bytes, more than "
            f"{RATIO_MAX} times its size"
        )
    payload = algorithm.decompress(packed[_SIZE.size :], size)
    if len(payload) != size:
        raise MalformedFrameError(f"compressed payload is not of the announced {size} bytes")
    return payload
