"""What a handler is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from postroad.core import Address


class RawMessage(msgspec.Struct, frozen=True, gc=False):
    """One message as a handler sees it."""

    payload: bytes
    subject: str
    sender: Address
    """The address its sender advertises: a claim, which does not say who the sender is."""
    peer: str | None = None
    """The sender's name if known: over TLS one in its certificate, else what it claims."""
    deadline: float | None = None
    """Time of the event loop's clock after which nobody waits for the reply, where told."""
    source: Address | None = None
    """Of a datagram: where it really came from, whatever its sender says."""


HandlerReturn: TypeAlias = bytes | bytearray | memoryview | None
MessageHandler: TypeAlias = Callable[[RawMessage], HandlerReturn | Awaitable[HandlerReturn]]


class Subscription(msgspec.Struct, frozen=True):
    """A handler and how it wants to be called."""

    subject: str
    handler: MessageHandler
    one_way: bool
    """Whether it consumes messages without ever replying."""
