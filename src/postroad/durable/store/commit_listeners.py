"""Listeners of commits, which are called on the event loop."""

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
    """Calls the listeners of commits; one that fails does not affect the others."""

    def __init__(self) -> None:
        self._commit_listeners: list[Callable[[CommitEvent], None]] = []
        self._precommit_listeners: list[Callable[[InboxBatch], None]] = []
        self._abort_listeners: list[Callable[[Batches], None]] = []
        self._reconnect_listeners: list[Callable[[], None]] = []

    def add(self, on_commit: Callable[[CommitEvent], None]) -> None:
        """Call a function with the event of each commit."""
        self._commit_listeners.append(on_commit)

    def remove(self, on_commit: Callable[[CommitEvent], None]) -> None:
        """Remove a listener, if it is registered."""
        if on_commit in self._commit_listeners:
            self._commit_listeners.remove(on_commit)

    def add_precommit_listener(
        self, on_precommit: Callable[[InboxBatch], None], on_aborted: Callable[[Batches], None]
    ) -> None:
        """Call functions with each batch before its commit is done, and with batches that failed.

        Such batches may be handled already: their sender stores them until they are committed
        here, and the work of their handlers is committed after them or not at all.
        """
        self._precommit_listeners.append(on_precommit)
        self._abort_listeners.append(on_aborted)

    def add_reconnect_listener(self, on_reconnected: Callable[[], None]) -> None:
        """Call a function when the connection to the database is restored."""
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
    """Notifies listeners of the batches of a commit group before its commit is done.

    Attributes:
        inline_queues: queues whose messages are handled before the commit, and share it.
        awaits_handlers: whether this group has batches of inline queues, and so waits for their
            handlers.
        is_enabled: whether the last group was committed; after a failure there is no early notice.
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
        """Notify of a batch from the thread that commits it."""
        if self.is_enabled:
            self._batches.append(batch)
            self.awaits_handlers |= batch.queue in self.inline_queues
            self._call_soon(self._listeners.publish_precommit, batch)

    def notify(self, batch: InboxBatch) -> None:
        """Notify of a batch on the event loop, before its commit starts."""
        self._batches.append(batch)
        self._listeners.publish_precommit(batch)

    def on_committed(self) -> None:
        """Forget the batches of a group that was committed."""
        self.is_enabled = True
        self._batches = []

    def abort(self) -> None:
        """Withdraw the notices of a group that failed, before its dispositions commit."""
        self.is_enabled = False
        batches, self._batches = self._batches, []
        self._listeners.publish_precommit_aborted(batches)

    def abort_pending(self) -> None:
        """Withdraw the notices of a group that was never started."""
        if self._batches:
            self.abort()
