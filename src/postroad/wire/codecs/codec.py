"""The interface of codecs, and code that all of them share."""

from __future__ import annotations

from typing import Protocol

from postroad.core.names import Address
from postroad.wire.frames import Bytes, Frame, ReplyFrame, RequestFrame

# A payload of this size is written without a copy; for a smaller one, copying it into its frame
# costs less than a separate write.
JOIN_BYTES_MAX = 64 * 1024


class Codec(Protocol):
    """Encodes and decodes the frames of one protocol version for one connection."""

    bytes_needed: int
    """Fewest bytes, counted from the first unconsumed one, that can complete another frame."""
    sender: Address | None
    """Address the peer advertises, None until it has arrived."""
    frame_bytes_max: int
    """Largest payload and subject accepted from the peer."""

    def decode(self, data: Bytes, frames: list[Frame]) -> int:
        """Append every complete frame; return how many bytes they had."""

    def encode_request(
        self,
        out: list[bytes],
        id: int,
        subject: str,
        payload: bytes,
        timeout_ms: int,
        one_way: bool,
    ) -> None:
        """Append the bytes of a request."""

    def encode_reply(
        self, out: list[bytes], id: int, status: int, payload: bytes, code: int, retryable: bool
    ) -> None:
        """Append the bytes of a reply."""

    def encode(self, out: list[bytes], frame: Frame) -> None:
        """Append the bytes of a frame; raise LocalProtocolError if the version lacks it."""
        if isinstance(frame, RequestFrame):
            # A trace context is sent by `WireConnection.request` only, if the peer accepts traces.
            self.encode_request(
                out, frame.id, frame.subject, frame.payload, frame.timeout_ms, frame.one_way
            )
        elif isinstance(frame, ReplyFrame):
            self.encode_reply(
                out, frame.id, frame.status, frame.payload, frame.code, frame.retryable
            )
        else:
            self.encode_control(out, frame)

    def encode_control(self, out: list[bytes], frame: Frame) -> None:
        """Append the bytes of a frame that is neither request nor reply."""
