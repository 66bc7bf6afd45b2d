"""What a part of a batch came to, on its way to the desk."""

from __future__ import annotations

import msgspec

from postroad.pipeline.media.medium import Committable
from postroad.pipeline.records import FailedRoot
from postroad.pipeline.windows import JobWindowDelta


class PartitionResult(msgspec.Struct):
    """What a part of a batch came to."""

    deliveries: list[int] = []
    """Numbers."""
    failed: list[FailedRoot] = []
    staged: list[tuple[str, Committable]] = []
    delta: JobWindowDelta = msgspec.field(default_factory=JobWindowDelta)
    segments: int = 0
    """Roots that it had."""


encode_part = msgspec.msgpack.Encoder().encode
decode_part = msgspec.msgpack.Decoder(PartitionResult).decode
