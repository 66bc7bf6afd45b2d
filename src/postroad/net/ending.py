"""The end of many links: asked to stop, given time, then cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Protocol

from .link import LINGER_S


class Drainable(Protocol):
    """A link that can end in order."""

    def drain(self) -> None:
        """Take nothing new, finish what has begun, then close."""

    async def wait_finished(self) -> None:
        """Return once nothing of it is left."""

    def abort(self) -> None:
        """Give up on everything."""


async def drain_connections(links: Collection[Drainable], grace_s: float) -> None:
    """Stop them all; links that are over remove themselves from the collection."""
    for link in list(links):
        link.drain()
    waiting = [asyncio.ensure_future(link.wait_finished()) for link in links]
    if waiting:
        await asyncio.wait(waiting, timeout=grace_s)
    for link in list(links):
        link.abort()
    if waiting:
        # Cancelled handlers get a moment to clean up.
        await asyncio.wait(waiting, timeout=LINGER_S)
        for waiter in waiting:
            waiter.cancel()
