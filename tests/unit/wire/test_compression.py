"""Payload compression: agreed, honest about sizes, and safe against bombs."""

import struct
import sys
import tracemalloc
import zlib

import pytest
import zstandard

from postroad.core.errors import (
    ConfigError,
    FrameTooLargeError,
    MalformedFrameError,
    MissingExtraError,
)
from postroad.wire.compression import (
    ALGORITHMS,
    COMPRESS_BYTES_MIN,
    CompressionAlgorithm,
    compress_payload,
    decompress_payload,
    load_algorithm,
    negotiate_compression,
)

MIB = 1024 * 1024
NAMES = list(ALGORITHMS)
PAYLOAD = b"to be or not to be, " * 100


@pytest.fixture(params=NAMES)
def algorithm(request: pytest.FixtureRequest) -> CompressionAlgorithm:
    return load_algorithm(request.param)


def packed(size: int, data: bytes) -> bytes:
    return struct.pack(">I", size) + data


def test_payloads_come_back_and_small_or_random_ones_are_left_alone(
    algorithm: CompressionAlgorithm,
) -> None:
    compressed = compress_payload(algorithm, PAYLOAD)
    assert compressed is not None
    assert compressed[:4] == struct.pack(">I", len(PAYLOAD))
    assert len(compressed) < len(PAYLOAD) / 10
    assert decompress_payload(algorithm, compressed, len(PAYLOAD)) == PAYLOAD

    assert decompress_payload(algorithm, packed(0, algorithm.compress(b"")), 10) == b""

    assert compress_payload(algorithm, bytes(COMPRESS_BYTES_MIN - 1)) is None
    assert compress_payload(algorithm, bytes(COMPRESS_BYTES_MIN)) is not None

    noise = b"".join(zlib.crc32(struct.pack(">I", n)).to_bytes(4, "big") for n in range(500))
    assert compress_payload(algorithm, noise) is None


def test_decompress_payload_invalid_is_malformed(
    algorithm: CompressionAlgorithm, subtests: pytest.Subtests
) -> None:
    for size in range(4):
        with subtests.test(size=size), pytest.raises(MalformedFrameError, match="lacks its size"):
            decompress_payload(algorithm, bytes(size), MIB)

    for data in [b"", b"\x00", b"neither zlib nor zstd", bytes(100)]:
        with subtests.test(data=data), pytest.raises(MalformedFrameError):
            decompress_payload(algorithm, packed(100, data), MIB)

    for announced in [0, 1, len(PAYLOAD) - 1, len(PAYLOAD) + 1, MIB]:
        with subtests.test(announced=announced):
            data = algorithm.compress(PAYLOAD)
            with pytest.raises(MalformedFrameError):
                decompress_payload(algorithm, packed(announced, data), MIB)

    # The end of the stream carries its checksum, so it has to be there as well.
    data = algorithm.compress(PAYLOAD)
    accepted = []
    for size in range(len(data)):
        try:
            decompress_payload(algorithm, packed(len(PAYLOAD), data[:size]), MIB)
        except MalformedFrameError:
            continue
        accepted.append(size)
    assert accepted == []

    data = algorithm.compress(PAYLOAD) + b"more"
    with pytest.raises(MalformedFrameError):
        decompress_payload(algorithm, packed(len(PAYLOAD), data), MIB)


def peak_bytes_of_refusal(
    algorithm: CompressionAlgorithm, bomb: bytes, frame_bytes_max: int
) -> int:
    """How much memory it took to find out that this is no payload."""
    tracemalloc.start()
    try:
        with pytest.raises((MalformedFrameError, FrameTooLargeError)):
            decompress_payload(algorithm, bomb, frame_bytes_max)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("announced", [1_000, 64 * MIB, 2**32 - 1])
def test_a_bomb_takes_no_memory(algorithm: CompressionAlgorithm, announced: int) -> None:
    bomb = packed(announced, algorithm.compress(bytes(64 * MIB)))
    assert len(bomb) < MIB
    assert peak_bytes_of_refusal(algorithm, bomb, MIB) < MIB + len(bomb)


def test_decompress_payload_size_too_large_or_missing_is_rejected(
    algorithm: CompressionAlgorithm,
) -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    data = compressor.compress(PAYLOAD)
    with pytest.raises(MalformedFrameError, match="announced size"):
        decompress_payload(load_algorithm("zstd"), packed(len(PAYLOAD), data), MIB)

    with pytest.raises(FrameTooLargeError):
        decompress_payload(algorithm, packed(101, b"whatever"), 100)
    with pytest.raises(FrameTooLargeError):
        decompress_payload(algorithm, packed(2**32 - 1, b"whatever"), 100)


def test_both_sides_choose_the_same() -> None:
    for ours, theirs, chosen in [
        ((), (), None),
        (("zstd",), (), None),
        (("zstd",), ("zlib",), None),
        (("zlib",), ("zlib", "zstd"), "zlib"),
        (("zlib", "zstd"), ("zlib", "zstd"), "zstd"),
        (("zstd", "zlib"), ("brotli", "zlib"), "zlib"),
        (("brotli",), ("brotli",), None),
    ]:
        assert negotiate_compression(ours, theirs) == chosen, chosen
        assert negotiate_compression(theirs, ours) == chosen, chosen

    with pytest.raises(ConfigError, match="unknown compression 'lz4'; available: zstd, zlib"):
        load_algorithm("lz4")


def test_zstd_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[zstd\]'"):
        load_algorithm("zstd")
