"""Messages that nobody waits for an answer to, kept a while: a core may say that it has no route.

Then another core is tried. What is kept is bounded; the oldest are forgotten, and for those an
error is only told in the log.
"""

from __future__ import annotations

from typing import NamedTuple

from .envelope import Envelope


class SentMessage(NamedTuple):
    """A message and the choices that were tried."""

    envelope: Envelope
    avoid: frozenset[str]
    at: float
    """When it was sent."""


class ResendBuffer:
    """The messages sent last."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._sent: dict[bytes, SentMessage] = {}
        self._bytes = 0

    def put(self, sent: SentMessage) -> None:
        """Remember a message, and forget the oldest if there are too many."""
        weight = sent.envelope.memory_bytes
        if weight > self._bytes_max:
            return
        self.pop(sent.envelope.id)
        self._sent[sent.envelope.id] = sent
        self._bytes += weight
        while len(self._sent) > self._messages_max or self._bytes > self._bytes_max:
            self.pop(next(iter(self._sent)))

    def pop(self, id: bytes) -> SentMessage | None:
        """Give and forget a message."""
        sent = self._sent.pop(id, None)
        if sent is not None:
            self._bytes -= sent.envelope.memory_bytes
        return sent

    def __len__(self) -> int:
        return len(self._sent)
