"""What a part of a batch came to, on its way to the desk."""

from __future__ import annotations

import msgspec

from postroad.pipeline.media.medium import Staged
from postroad.pipeline.records import FailedRoot
from postroad.pipeline.windows import Delta


class PartOutcome(msgspec.Struct):
    """What a part of a batch came to."""

    deliveries: list[int] = []
    """Numbers."""
    failed: list[FailedRoot] = []
    staged: list[tuple[str, Staged]] = []
    delta: Delta = msgspec.field(default_factory=Delta)
    segments: int = 0
    """Roots that it had."""


encode_part = msgspec.msgpack.Encoder().encode
decode_part = msgspec.msgpack.Decoder(PartOutcome).decode
