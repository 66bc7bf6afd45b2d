"""Back-pressure of streams between nodes of this package.

Whoever sends has a window: so much may be on its way and unread. Whoever reads tells now and then
what was read, well before the window is used up. Nodes of the original system know nothing of
this: they send as fast as they can.
"""

from __future__ import annotations

from collections import deque

from postroad.core.limits import MIB

WINDOW_PARTS = 64
"""Parts of one stream that may be on their way."""
WINDOW_BYTES = 4 * MIB
"""Bytes of them; one part more than that may always be."""
REPORTED_PARTS = WINDOW_PARTS // 4
"""Parts that are read before their sender is told."""
REPORTED_BYTES = WINDOW_BYTES // 4
"""Bytes that are read before their sender is told."""


class SendWindow:
    """What was sent and not read yet."""

    __slots__ = ("_bytes", "_unread")

    def __init__(self) -> None:
        self._unread: deque[tuple[int, int]] = deque()
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be sent now."""
        return len(self._unread) >= WINDOW_PARTS or self._bytes >= WINDOW_BYTES

    def send(self, seq: int, size: int) -> None:
        """A part is on its way."""
        self._unread.append((seq, size))
        self._bytes += size

    def read(self, seq: int) -> None:
        """This part and all before it were read; tells of the past do no harm."""
        while self._unread and self._unread[0][0] <= seq:
            self._bytes -= self._unread.popleft()[1]

    def __repr__(self) -> str:
        return f"<SendWindow: {len(self._unread)} parts, {self._bytes} bytes on their way>"


class ReadCount:
    """What was read and not told yet."""

    __slots__ = ("_bytes", "_told", "read")

    def __init__(self) -> None:
        self._bytes = 0
        self._told = 0
        self.read = 0
        """The last part that was read."""

    def add(self, size: int) -> bool:
        """The next part was read; whether it is time to tell."""
        self.read += 1
        self._bytes += size
        return self.read - self._told >= REPORTED_PARTS or self._bytes >= REPORTED_BYTES

    def tell(self) -> int:
        """What to tell: the last part that was read."""
        self._told, self._bytes = self.read, 0
        return self.read
