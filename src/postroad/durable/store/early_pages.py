"""Pages of messages that are told of before their commit ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .audience import Audience
from .rows import InPage


class EarlyPages:
    """Tells of the pages of a round while its commit is under way, and takes back what failed.

    Attributes:
        prompt: queues whose messages are handled as soon as they are told of.
        is_awaited: whether this round has any of those: then it waits for their handlers, and one
            commit does for both.
        is_trusted: whether the last round was committed; after one that was not, nothing is told
            early.
    """

    def __init__(self, audience: Audience, loop: asyncio.AbstractEventLoop) -> None:
        self._audience = audience
        self._tell_soon: Callable[..., object] = loop.call_soon_threadsafe
        self._pages: list[InPage] = []
        self.prompt: set[str] = set()
        self.is_awaited = False
        self.is_trusted = True

    def begin_round(self) -> None:
        self.is_awaited = False

    def announce(self, page: InPage) -> None:
        """Tell of a page from the thread that commits it."""
        if self.is_trusted:
            self._pages.append(page)
            self.is_awaited |= page.queue in self.prompt
            self._tell_soon(self._audience.on_arriving, page)

    def announce_at_once(self, page: InPage) -> None:
        """Tell of a page on the event loop, before its commit begins."""
        self._pages.append(page)
        self._audience.on_arriving(page)

    def confirm(self) -> None:
        """The round was committed."""
        self.is_trusted = True
        self._pages = []

    def withdraw(self) -> None:
        """Take back what was told of a round that failed, before anything follows from it."""
        self.is_trusted = False
        pages, self._pages = self._pages, []
        self._audience.on_withdrawn(pages)

    def withdraw_any(self) -> None:
        """Take back what was told before a round that never began."""
        if self._pages:
            self.withdraw()
