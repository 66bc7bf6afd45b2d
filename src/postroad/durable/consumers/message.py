"""The message that durable handlers receive."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from postroad.durable.consumers.dispatch_order import QueuedMessage

_NO_HEADERS: Mapping[str, str] = {}


# A struct, which is created in a third of the time of a class: there is one for each message.
class Message(msgspec.Struct, eq=False):
    """A message as its handler sees it."""

    _queued: QueuedMessage

    @property
    def body(self) -> bytes:
        return self._queued.message.body

    @property
    def queue(self) -> str:
        return self._queued.message.queue

    @property
    def sender(self) -> str:
        """The name of the node that sent it."""
        return self._queued.location.sender

    @property
    def id(self) -> int:
        """Unique among the messages of its sender."""
        return self._queued.message.id

    @property
    def key(self) -> str | None:
        return self._queued.message.key

    @property
    def headers(self) -> Mapping[str, str]:
        return self._queued.message.headers or _NO_HEADERS

    @property
    def priority(self) -> int:
        return self._queued.message.priority

    @property
    def attempt(self) -> int:
        """1 when it is handled for the first time."""
        return self._queued.failures + 1

    @property
    def sent_at(self) -> float:
        """When it was sent, in seconds since 1970 by the sender's clock."""
        return self._queued.message.sent_ms / 1000

    @property
    def received_at(self) -> float:
        """When it was received, in seconds since 1970 by this node's clock."""
        return self._queued.location.received_ms / 1000

    @property
    def reply_to(self) -> str | None:
        """The queue of its sender that accepts a reply; None if it expects none."""
        return self._queued.message.reply_to

    @property
    def in_reply_to(self) -> int | None:
        """The id of the message that it replies to."""
        return self._queued.message.in_reply_to

    def __repr__(self) -> str:
        size = len(self.body)
        return f"<Message {self.id:x} from {self.sender} to {self.queue!r}, {size} bytes>"
