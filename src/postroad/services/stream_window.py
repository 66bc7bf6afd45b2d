"""Back-pressure of streams between nodes of this package.

Whoever sends has a window for each stream: so much may be sent and unread. All streams to one node
share another one, for what has not come there yet: servers between nodes cut off whoever is too
far behind. Whoever reads tells now and then what came and what was read. Nodes of the original
system know nothing of this: they send as fast as they can.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from postroad.core.limits import KIB, MIB

WINDOW_PARTS = 64
"""Parts of one stream that may be sent and unread."""
WINDOW_BYTES = 4 * MIB
"""Bytes of them; one part more than that may always be."""
SHARED_BYTES = 4 * MIB
"""Bytes of all streams to one node that are on their way; one part of each may always be.

Redis cuts off a node that is 8 MB behind for a minute, NATS one that is 64 MB behind.
"""
REPORTED_PARTS = WINDOW_PARTS // 4
"""Parts that come or are read before their sender is told at once, and not after a moment."""
REPORTED_BYTES = 256 * KIB
"""Bytes that come or are read before their sender is told at once."""


class SharedWindow:
    """What was sent to one node, by all streams together, and has not come there yet.

    Attributes:
        bytes: its size on the wire.
    """

    __slots__ = ("__weakref__", "_waiting", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        # Of streams that wait, the longest waiting first; each is there once.
        self._waiting: dict[SendWindow, None] = {}

    @property
    def is_full(self) -> bool:
        return self.bytes >= SHARED_BYTES

    def add(self, window: SendWindow) -> None:
        """A stream waits for room."""
        self._waiting[window] = None

    def remove(self, window: SendWindow) -> None:
        """It does not any more."""
        self._waiting.pop(window, None)

    def pass_on(self) -> None:
        """If there is room, wake the next stream; when it has sent something, it does the same."""
        if self._waiting and not self.is_full:
            window = next(iter(self._waiting))
            del self._waiting[window]
            window.wake()


class SendWindow:
    """What was sent by one stream, and has not come or was not read yet.

    Args:
        shared: that of all streams to the same node.
        wake: is called when a stream that waits can go on.
    """

    __slots__ = ("_bytes", "_flying", "_shared", "_unread", "wake")

    def __init__(self, shared: SharedWindow, wake: Callable[[], None]) -> None:
        self._shared = shared
        self.wake = wake
        # The numbers of parts and their sizes: as both ends count, and on the wire.
        self._unread: deque[tuple[int, int]] = deque()
        self._flying: deque[tuple[int, int]] = deque()
        self._bytes = 0

    @property
    def is_used_up(self) -> bool:
        """Whether nothing more may be sent before something of this stream was read."""
        return len(self._unread) >= WINDOW_PARTS or self._bytes >= WINDOW_BYTES

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be sent now."""
        return self.is_used_up or (bool(self._flying) and self._shared.is_full)

    def wait(self) -> None:
        """Ask to be woken when there is room; whoever is must send something then, or close."""
        # What used up its own window is woken by its own reader, and could not pass on the room.
        if not self.is_used_up:
            self._shared.add(self)

    def send(self, seq: int, size: int, bytes_sent: int) -> None:
        """A part is on its way; its size is what both ends count."""
        self._unread.append((seq, size))
        self._flying.append((seq, bytes_sent))
        self._bytes += size
        self._shared.bytes += bytes_sent
        self._shared.pass_on()

    def hear(self, arrived: int, read: int) -> None:
        """These parts and all before came, and were read; old news do no harm."""
        while self._unread and self._unread[0][0] <= read:
            self._bytes -= self._unread.popleft()[1]
        while self._flying and self._flying[0][0] <= arrived:
            self._shared.bytes -= self._flying.popleft()[1]
        if not self.is_full:
            self._shared.remove(self)
            self.wake()
        self._shared.pass_on()

    def close(self) -> None:
        """The stream is over."""
        self._shared.remove(self)
        self._shared.bytes -= sum(bytes_sent for _, bytes_sent in self._flying)
        self._flying.clear()
        self._shared.pass_on()

    def __repr__(self) -> str:
        return f"<SendWindow: {len(self._unread)} parts unread, {len(self._flying)} on their way>"


class ReadCount:
    """What came and was read, and what of it was told."""

    __slots__ = ("_new_bytes", "_told", "arrived", "read")

    def __init__(self) -> None:
        self.arrived = 0
        """The last part that came, with all before it."""
        self.read = 0
        """The last part that was read."""
        self._told = (0, 0)
        self._new_bytes = [0, 0]

    @property
    def is_told(self) -> bool:
        """Whether there is nothing new to tell."""
        return self._told == (self.arrived, self.read)

    def add_arrived(self, size: int) -> bool:
        """The next part came; whether it is time to tell."""
        self.arrived += 1
        return self._is_much(0, self.arrived, size)

    def add_read(self, size: int) -> bool:
        """The next part was read; whether it is time to tell."""
        self.read += 1
        return self._is_much(1, self.read, size)

    def tell(self) -> tuple[int, int]:
        """What to tell: the last part that came, and the last that was read."""
        self._told = self.arrived, self.read
        self._new_bytes = [0, 0]
        return self._told

    def _is_much(self, which: int, part: int, size: int) -> bool:
        self._new_bytes[which] += size
        return (
            part - self._told[which] >= REPORTED_PARTS or self._new_bytes[which] >= REPORTED_BYTES
        )
