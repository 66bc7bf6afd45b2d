"""Events that cannot be lost: what carries them is plugged in by whoever has a store."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from .context import Context

METADATA = "durableEvents"
"""In the metadata of a node, by which others know that it takes such events."""
TRANSACTION = "transaction"
"""In the locals of a context: the transaction in which its event is handled, or is sent."""
IDEMPOTENCY_KEY = "idempotencyKey"
"""In the locals of a context: sending its event again with the same key does nothing."""


class DurableEmitter(Protocol):
    """Carries events to every group once, whatever dies on the way."""

    async def emit(self, ctx: Context, groups: Collection[str]) -> None:
        """Take an event; returns once it cannot be lost any more."""
        ...
