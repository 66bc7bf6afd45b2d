"""Incremental frame decoder: bytes in chunks of any size to complete frames.

Small frames are sliced from the chunk they arrived in. A large frame is read directly into a buffer
of its own (`receive_buffer`, `buffer_filled`), which saves a copy. That buffer grows as bytes
arrive: memory follows the bytes a peer has sent, never the size in a header. Unfinished frames
count for the budget of all connections (`unfinished_frames`).
"""

from __future__ import annotations

from postroad.core.errors import FrameTooLargeError, PeerTimeoutError, RemoteProtocolError
from postroad.core.limits import HELLO_BYTES_MAX, KIB
from postroad.wire.codecs import Codec
from postroad.wire.frames import Frame, ReplyFrame, RequestFrame
from postroad.wire.unfinished_frames import Share, UnfinishedFrames

# A frame gets a buffer of its own when this much has arrived and this much is missing.
LARGE_BYTES_MIN = 64 * KIB
# Minimum rate of a frame, in addition to the frame timeout.
_FRAME_BYTES_PER_S_MIN = 64 * KIB
_INITIAL_BUFFER_BYTES = 256 * KIB
_GROWTH = 4
# A smaller partial frame is not counted: the connection itself uses more memory.
_UNCOUNTED_BYTES = HELLO_BYTES_MAX


class BufferCache:
    """Cache of one large receive buffer for all connections: allocating fresh memory is slow."""

    def __init__(self) -> None:
        self._buffer: bytearray | None = None

    def acquire(self) -> bytearray:
        """Return the cached buffer, or a new one of the initial size."""
        buffer, self._buffer = self._buffer, None
        return bytearray(_INITIAL_BUFFER_BYTES) if buffer is None else buffer

    def release(self, buffer: bytearray) -> None:
        """Cache a buffer unless a larger one is cached already."""
        if self._buffer is None or len(buffer) > len(self._buffer):
            self._buffer = buffer


class FrameReader:
    """Decodes the frames of one connection. After a failure it decodes nothing more."""

    __slots__ = (
        "_buffer_cache",
        "_codec",
        "_filled",
        "failure",
        "is_fast_path",
        "large",
        "last_frame",
        "rest",
        "share",
        "unfinished_at",
    )

    def __init__(self, codec: Codec, buffer_cache: BufferCache, share: Share | None = None) -> None:
        self._codec = codec
        self._buffer_cache = buffer_cache
        # Part of the memory budget; a reader without one has a budget of its own, which allows one
        # frame of any size.
        self.share = share or UnfinishedFrames(0).share("", None)
        # Received bytes of an unfinished small frame, or of a large one that waits for memory.
        self.rest = bytearray()
        # Buffer of an unfinished large frame, and how much of it is filled.
        self.large: bytearray | None = None
        self._filled = 0
        # Time of the last complete frame, and of the first tick that saw the unfinished one.
        self.last_frame = 0.0
        self.unfinished_at: float | None = None
        # Whether there is no large frame, started or waiting, and no failure.
        self.is_fast_path = True
        # Set when the peer sent an invalid frame; the frames before it are valid.
        self.failure: RemoteProtocolError | None = None

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame has started and is unfinished."""
        return self.large is not None or bool(self.rest)

    def feed(self, data: bytes) -> list[Frame]:
        """Decode bytes; return all frames that are complete now."""
        frames: list[Frame] = []
        if self.rest or not self.is_fast_path:
            data = self._join(data, frames)
            if not data:
                return frames
        try:
            consumed = self._codec.decode(data, frames)
        except RemoteProtocolError as error:
            self.failure = error
            self._update_fast_path()
            return frames
        if consumed != len(data):
            self._store_partial(memoryview(data)[consumed:])
        return frames

    def _join(self, data: bytes, frames: list[Frame]) -> bytes:
        """Add bytes to the unfinished frame; return the bytes that can be decoded."""
        if self.large is not None:
            data = self._feed_large(data, frames)
        if self.failure is not None:
            return b""
        if self.rest:
            self.rest += data
            if len(self.rest) < self._codec.bytes_needed:
                self._count_rest()
                return b""
            data = bytes(self.rest)
            self.rest.clear()
            if self.share.piece_bytes:
                self.share.release()
                self._update_fast_path()
        return data

    def receive_buffer(self) -> memoryview | None:
        """Return the buffer for the next bytes of a large frame, or None without one."""
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
        """Process bytes written to `receive_buffer`; return the frame if it is complete now."""
        frames: list[Frame] = []
        self._filled += size
        self.share.received_bytes = self._filled
        large = self.large
        if large is None or self._filled < self._codec.bytes_needed:
            return frames
        self.large = None
        self.share.release()
        view = memoryview(large)[: self._filled]
        try:
            consumed = self._codec.decode(view, frames)
            self._store_partial(view[consumed:])
        except RemoteProtocolError as error:
            self.failure = error
        self._update_fast_path()
        for frame in frames:
            if isinstance(frame, RequestFrame | ReplyFrame):
                frame.payload = bytes(frame.payload)
        self._buffer_cache.release(large)
        return frames

    def _feed_large(self, data: bytes, frames: list[Frame]) -> bytes:
        """Copy the bytes of the large frame; return the bytes after it."""
        while data and (buffer := self.receive_buffer()) is not None:
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            frames += self.buffer_filled(size)
            data = data[size:]
        return data

    def _store_partial(self, rest: memoryview) -> None:
        """Store the first bytes of an unfinished frame."""
        if self._is_large(len(rest)) and self.share.reserve(self._codec.bytes_needed):
            self._start_large_frame(rest)
            return
        self.rest += rest
        if len(rest) > _UNCOUNTED_BYTES:
            self._count_rest()

    def _count_rest(self) -> None:
        """Start a large frame if its memory can be reserved, else count the bytes in `rest`."""
        size = len(self.rest)
        if self._is_large(size) and self.share.reserve(self._codec.bytes_needed):
            self._start_large_frame(self.rest)
        elif size > _UNCOUNTED_BYTES and not self.share.hold_piece(size):
            self.rest.clear()
            self.failure = FrameTooLargeError(
                "unfinished frames of all connections exceed the limit unfinished_bytes_max; "
                "this one was evicted"
            )
        self._update_fast_path()

    def _is_large(self, size: int) -> bool:
        """Return whether a frame with this many received bytes gets a buffer of its own."""
        return size >= LARGE_BYTES_MIN and self._codec.bytes_needed - size >= LARGE_BYTES_MIN

    def start_large_frame(self) -> None:
        """Continue with the large frame that waited: its memory is reserved now."""
        if self.rest:
            self._start_large_frame(self.rest)

    def _start_large_frame(self, rest: bytearray | memoryview) -> None:
        size = len(rest)
        large = self._buffer_cache.acquire()
        if len(large) < size:
            large = bytearray(size)
        large[:size] = rest
        self.rest.clear()
        self.large = large
        self._filled = self.share.received_bytes = size
        if self.share.piece_bytes:
            self.share.hold_piece(0)
        self._update_fast_path()

    def drop(self) -> None:
        """Drop the unfinished frame and return its memory."""
        self.rest.clear()
        self.large = None
        self.share.release()

    def _update_fast_path(self) -> None:
        self.is_fast_path = (
            self.large is None and self.failure is None and not self.share.is_waiting
        )

    def check_progress(self, now: float, timeout_s: float) -> None:
        """Raise PeerTimeoutError if the unfinished frame takes too long.

        It is polled by ticks, so that the hot path records nothing when bytes arrive.
        """
        if not self.is_mid_frame:
            self.unfinished_at = None
        elif self.unfinished_at is None or self.last_frame > self.unfinished_at:
            self.unfinished_at = now
        else:
            timeout_s += self._codec.bytes_needed / _FRAME_BYTES_PER_S_MIN
            if now >= self.unfinished_at + timeout_s:
                raise PeerTimeoutError(f"the peer did not finish a frame within {timeout_s:.3g} s")
