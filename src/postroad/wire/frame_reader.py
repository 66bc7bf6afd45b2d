"""Bytes in any pieces to whole frames.

Small frames are cut out of the piece they came in. A large one is read straight into a buffer of
its own (`room` and `fill`), which saves a copy of all its bytes. That buffer grows as bytes arrive:
memory follows what a peer has sent, never what a header announced. What is kept of frames that are
not whole counts for the total of all connections (`unfinished`).
"""

from __future__ import annotations

from postroad.core.errors import FrameTooLargeError, PeerTimeoutError, RemoteProtocolError
from postroad.core.limits import HELLO_BYTES_MAX, KIB
from postroad.wire.codecs import Codec
from postroad.wire.frames import Frame, ReplyFrame, RequestFrame
from postroad.wire.unfinished_frames import Share, UnfinishedFrames

# A frame is worth a buffer of its own once so much has arrived and so much is missing.
LARGE_BYTES_MIN = 64 * KIB
# A frame must make at least this progress, however long its time is.
_FRAME_BYTES_PER_S_MIN = 64 * KIB
_FIRST_BUFFER_BYTES = 256 * KIB
_GROWTH = 4
# What a connection may keep without its being counted: less than the connection itself costs.
_UNCOUNTED_BYTES = HELLO_BYTES_MAX


class BufferCache:
    """One large buffer kept for the next large frame of any connection: fresh memory is slow."""

    def __init__(self) -> None:
        self._buffer: bytearray | None = None

    def acquire(self) -> bytearray:
        """The spare, or a new buffer of the first size."""
        buffer, self._buffer = self._buffer, None
        return bytearray(_FIRST_BUFFER_BYTES) if buffer is None else buffer

    def release(self, buffer: bytearray) -> None:
        """Keep a buffer that is done with, unless a larger one is kept already."""
        if self._buffer is None or len(buffer) > len(self._buffer):
            self._buffer = buffer


class FrameReader:
    """Collects the pieces of one connection. After a failure nothing more is read."""

    __slots__ = (
        "_codec",
        "_filled",
        "_rest",
        "_share",
        "_spare",
        "failure",
        "is_fast_path",
        "large",
    )

    def __init__(self, codec: Codec, spare: BufferCache, share: Share | None = None) -> None:
        self._codec = codec
        self._spare = spare
        # What it holds of the total of all connections; alone, it may hold as much as it needs.
        self._share = share or UnfinishedFrames(0).share("", None)
        # What arrived of a small frame that is not whole yet.
        self._rest = bytearray()
        # Buffer of a large frame that is not whole yet, and how much of it is filled.
        self.large: bytearray | None = None
        self._filled = 0
        # Whether there is neither a large frame under way or waiting, nor a failure.
        self.is_fast_path = True
        # Set when the peer sent something that is no frame; frames before it still count.
        self.failure: RemoteProtocolError | None = None

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame has begun and is not whole."""
        return self.large is not None or bool(self._rest)

    @property
    def awaits_capacity(self) -> bool:
        """Whether a large frame waits for room; nothing should be read until it has that."""
        return self._share.is_waiting

    @property
    def frame_bytes(self) -> int:
        """Size of the frame that has begun, as far as known."""
        return self._codec.bytes_needed

    def feed(self, data: bytes) -> list[Frame]:
        """Take bytes; returns all frames that are whole now."""
        frames: list[Frame] = []
        if self._rest or not self.is_fast_path:
            data = self._join(data, frames)
            if not data:
                return frames
        try:
            consumed = self._codec.decode(data, frames)
        except RemoteProtocolError as error:
            self.failure = error
            self._peek_size()
            return frames
        if consumed != len(data):
            self._store_partial(memoryview(data)[consumed:])
        return frames

    def _join(self, data: bytes, frames: list[Frame]) -> bytes:
        """Add to the frame that has begun; returns what can be cut as usual."""
        if self.large is not None:
            data = self._feed_large(data, frames)
        if self.failure is not None:
            return b""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._codec.bytes_needed:
                self._keep_rest()
                return b""
            data = bytes(self._rest)
            self._rest.clear()
            if self._share.piece_bytes:
                self._share.release()
                self._peek_size()
        return data

    def receive_buffer(self) -> memoryview | None:
        """Where the next bytes of a large frame belong; None while no such frame has begun."""
        large = self.large
        if large is None:
            return None
        need = self._codec.bytes_needed
        if self._filled == len(large):
            grown = bytearray(min(need, _GROWTH * len(large)))
            grown[: self._filled] = large
            self.large = large = grown
        return memoryview(large)[self._filled : need]

    def buffer_filled(self, size: int) -> list[Frame]:
        """That many bytes were written to the room; returns the frame if it is whole now."""
        frames: list[Frame] = []
        self._filled += size
        self._share.received_bytes = self._filled
        large = self.large
        if large is None or self._filled < self._codec.bytes_needed:
            return frames
        self.large = None
        self._share.release()
        view = memoryview(large)[: self._filled]
        try:
            consumed = self._codec.decode(view, frames)
            self._store_partial(view[consumed:])
        except RemoteProtocolError as error:
            self.failure = error
        self._peek_size()
        for frame in frames:
            if isinstance(frame, RequestFrame | ReplyFrame):
                frame.payload = bytes(frame.payload)
        self._spare.release(large)
        return frames

    def _feed_large(self, data: bytes, frames: list[Frame]) -> bytes:
        """Copy what belongs to the large frame; returns what follows it."""
        while data and (room := self.receive_buffer()) is not None:
            size = min(len(room), len(data))
            room[:size] = data[:size]
            frames += self.buffer_filled(size)
            data = data[size:]
        return data

    def _store_partial(self, rest: memoryview) -> None:
        """Remember the beginning of a frame that is not whole."""
        if self._is_large(len(rest)) and self._share.reserve(self._codec.bytes_needed):
            self._start_large_frame(rest)
            return
        self._rest += rest
        if len(rest) > _UNCOUNTED_BYTES:
            self._keep_rest()

    def _keep_rest(self) -> None:
        """Make a buffer for a large frame as soon as there is room for it, and count the rest."""
        size = len(self._rest)
        if self._is_large(size) and self._share.reserve(self._codec.bytes_needed):
            self._start_large_frame(self._rest)
        elif size > _UNCOUNTED_BYTES and not self._share.hold_piece(size):
            self._rest.clear()
            self.failure = FrameTooLargeError(
                "this frame is not whole, and such frames exceed the limit unfinished_bytes_max"
            )
        self._peek_size()

    def _is_large(self, size: int) -> bool:
        """Whether a frame that has begun with so much is worth a buffer of its own."""
        return size >= LARGE_BYTES_MIN and self._codec.bytes_needed - size >= LARGE_BYTES_MIN

    def start_large_frame(self) -> None:
        """There is room for the large frame that waited."""
        if self._rest:
            self._start_large_frame(self._rest)

    def _start_large_frame(self, rest: bytearray | memoryview) -> None:
        size = len(rest)
        large = self._spare.acquire()
        if len(large) < size:
            large = bytearray(size)
        large[:size] = rest
        self._rest.clear()
        self.large = large
        self._filled = self._share.received_bytes = size
        if self._share.piece_bytes:
            self._share.hold_piece(0)
        self._peek_size()

    def drop(self) -> None:
        """Forget the frame that has begun; nothing is read any more."""
        self._rest.clear()
        self.large = None
        self._share.release()

    def _peek_size(self) -> None:
        self.is_fast_path = (
            self.large is None and self.failure is None and not self._share.is_waiting
        )


class FrameWatch:
    """Notices a peer that begins a frame and takes too long to end it.

    Ticks look for it, so that nothing has to be noted while bytes arrive.
    """

    __slots__ = ("_timeout_s", "last_frame", "seen_at")

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        # When a frame was whole the last time.
        self.last_frame = now
        # When a tick first saw the frame that has begun.
        self.seen_at: float | None = None

    def check(self, reader: FrameReader, now: float, *, is_paused: bool) -> None:
        """Raise PeerTimeoutError if the frame that has begun takes too long."""
        if not reader.is_mid_frame or is_paused:
            self.seen_at = None
        elif self.seen_at is None or self.last_frame > self.seen_at:
            self.seen_at = now
        else:
            allowed = self._timeout_s + reader.frame_bytes / _FRAME_BYTES_PER_S_MIN
            if now >= self.seen_at + allowed:
                raise PeerTimeoutError(f"a frame was not whole after {allowed:.3g} s")
