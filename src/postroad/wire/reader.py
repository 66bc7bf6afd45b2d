"""Bytes in any pieces to whole frames.

Small frames are cut out of the piece they came in. A frame larger than one piece collects in a
growing buffer, so memory follows what has arrived, never what a header announced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroad.core.errors import RemoteProtocolError

from .frames import Frame, Reply, Request

if TYPE_CHECKING:
    from .codecs import Codec

# Up to here an incomplete frame is joined with the next piece and cut as usual.
_SMALL_BYTES_MAX = 256 * 1024


class FrameReader:
    """Collects the pieces of one connection. After a failure nothing more is read."""

    __slots__ = ("_codec", "_rest", "failure")

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        # What arrived of a frame that is not whole yet.
        self._rest = bytearray()
        # Set when the peer sent something that is no frame; frames before it still count.
        self.failure: RemoteProtocolError | None = None

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame has begun and is not whole."""
        return bool(self._rest)

    @property
    def frame_bytes(self) -> int:
        """Size of the frame that has begun, as far as known."""
        return self._codec.need

    def feed(self, data: bytes) -> list[Frame]:
        """All frames that are whole now."""
        frames: list[Frame] = []
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._codec.need:
                return frames
            if len(rest) > _SMALL_BYTES_MAX:
                self._feed_large(frames)
                return frames
            data = bytes(rest)
            rest.clear()
        try:
            consumed = self._codec.decode(data, frames)
        except RemoteProtocolError as error:
            self.failure = error
            return frames
        if consumed != len(data):
            rest += memoryview(data)[consumed:]
        return frames

    def _feed_large(self, frames: list[Frame]) -> None:
        """Cut frames from the buffer without copying it as a whole first."""
        with memoryview(self._rest) as view:
            try:
                consumed = self._codec.decode(view, frames)
            except RemoteProtocolError as error:
                self.failure = error
                consumed = 0
            for frame in frames:
                if isinstance(frame, Request | Reply):
                    frame.payload = bytes(frame.payload)
        if consumed == len(self._rest):
            self._rest = bytearray()
        else:
            del self._rest[:consumed]
