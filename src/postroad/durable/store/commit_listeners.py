"""Those who want to know what commits bring. All of them hear of it on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVarTuple

from postroad.durable.store.tables.rows import InboxBatch
from postroad.durable.store.tables.store_tables import CommitEvent

logger = logging.getLogger("postroad.durable")

Ts = TypeVarTuple("Ts")
Batches: TypeAlias = Sequence[InboxBatch]


class CommitListeners:
    """Passes on what happened; a listener that fails harms no other."""

    def __init__(self) -> None:
        self._commit_listeners: list[Callable[[CommitEvent], None]] = []
        self._precommit_listeners: list[Callable[[InboxBatch], None]] = []
        self._abort_listeners: list[Callable[[Batches], None]] = []
        self._reconnect_listeners: list[Callable[[], None]] = []

    def add(self, on_commit: Callable[[CommitEvent], None]) -> None:
        """Have a function called with what each commit brought."""
        self._commit_listeners.append(on_commit)

    def remove(self, on_commit: Callable[[CommitEvent], None]) -> None:
        """Call a function no more; it may be gone already."""
        if on_commit in self._commit_listeners:
            self._commit_listeners.remove(on_commit)

    def add_precommit_listener(
        self, on_precommit: Callable[[InboxBatch], None], on_aborted: Callable[[Batches], None]
    ) -> None:
        """Have functions called with a page whose commit is under way, and with those whose fails.

        Such pages are real already, because whoever sent them keeps them until they are committed
        here. They may be handled: what follows from that is committed after them or not at all.
        """
        self._precommit_listeners.append(on_precommit)
        self._abort_listeners.append(on_aborted)

    def add_reconnect_listener(self, on_reconnected: Callable[[], None]) -> None:
        """Have a function called when the database is reached again after it was lost."""
        self._reconnect_listeners.append(on_reconnected)

    def publish_commit(self, event: CommitEvent) -> None:
        _call_all(self._commit_listeners, event)

    def publish_precommit(self, batch: InboxBatch) -> None:
        _call_all(self._precommit_listeners, batch)

    def publish_precommit_aborted(self, batches: Batches) -> None:
        _call_all(self._abort_listeners, batches)

    def publish_reconnect(self) -> None:
        _call_all(self._reconnect_listeners)


def _call_all(listeners: Sequence[Callable[[*Ts], None]], *event: *Ts) -> None:
    for listener in tuple(listeners):
        try:
            listener(*event)
        except Exception:
            logger.exception("commit listener %r failed", listener)


class PrecommitNotifier:
    """Tells of the pages of a round while its commit is under way, and takes back what failed.

    Attributes:
        prompt: queues whose messages are handled as soon as they are told of.
        is_awaited: whether this round has any of those: then it waits for their handlers, and one
            commit does for both.
        is_trusted: whether the last round was committed; after one that was not, nothing is told
            early.
    """

    def __init__(self, listeners: CommitListeners, loop: asyncio.AbstractEventLoop) -> None:
        self._listeners = listeners
        self._call_soon: Callable[..., object] = loop.call_soon_threadsafe
        self._batches: list[InboxBatch] = []
        self.inline_queues: set[str] = set()
        self.awaits_handlers = False
        self.is_enabled = True

    def begin_group(self) -> None:
        self.awaits_handlers = False

    def notify_threadsafe(self, batch: InboxBatch) -> None:
        """Tell of a page from the thread that commits it."""
        if self.is_enabled:
            self._batches.append(batch)
            self.awaits_handlers |= batch.queue in self.inline_queues
            self._call_soon(self._listeners.publish_precommit, batch)

    def notify(self, batch: InboxBatch) -> None:
        """Tell of a page on the event loop, before its commit begins."""
        self._batches.append(batch)
        self._listeners.publish_precommit(batch)

    def on_committed(self) -> None:
        """The round was committed."""
        self.is_enabled = True
        self._batches = []

    def abort(self) -> None:
        """Take back what was told of a round that failed, before anything follows from it."""
        self.is_enabled = False
        batches, self._batches = self._batches, []
        self._listeners.publish_precommit_aborted(batches)

    def abort_pending(self) -> None:
        """Take back what was told before a round that never began."""
        if self._batches:
            self.abort()
