"""Compressed payloads of version 3."""

from __future__ import annotations

from functools import partial

from fuzz.samples import ALGORITHMS, LIMITS
from fuzz.target import Target, prefixes, require
from postroad.core.errors import RemoteProtocolError
from postroad.wire.compression import CompressionAlgorithm, compress_payload, decompress_payload

_EDGE = 16


def check_payload(algorithm: CompressionAlgorithm, data: bytes) -> None:
    """Any bytes are a payload within the limit or a RemoteProtocolError, cut off or not."""
    for packed in (*prefixes(data, _EDGE), data):
        try:
            payload = decompress_payload(algorithm, packed, LIMITS.frame_bytes_max)
        except RemoteProtocolError:
            continue
        require(len(payload) <= LIMITS.frame_bytes_max, f"{len(payload)} bytes exceed the limit")
        check_round_trip(algorithm, payload)


def check_round_trip(algorithm: CompressionAlgorithm, payload: bytes) -> None:
    """What is sent compressed arrives as it was."""
    packed = compress_payload(algorithm, payload)
    if packed is not None:
        again = decompress_payload(algorithm, packed, LIMITS.frame_bytes_max)
        require(again == payload, "a payload changed on its way")


def _seeds(algorithm: CompressionAlgorithm) -> list[bytes]:
    sizes = (LIMITS.frame_bytes_max, LIMITS.frame_bytes_max + 1, 100_000)
    payloads = [b"", b"x" * 600, bytes(range(256)) * 3, *(b"x" * size for size in sizes)]
    honest = [len(data).to_bytes(4, "big") + algorithm.compress(data) for data in payloads]
    bomb = (600).to_bytes(4, "big") + algorithm.compress(b"x" * 10_000)
    return [*honest, bomb, honest[1] + b"trailing"]


TARGETS = [
    Target(f"compression-{name}", partial(check_payload, algorithm), _seeds(algorithm))
    for name, algorithm in ALGORITHMS.items()
]
