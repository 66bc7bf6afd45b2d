"""Requests of one connection that wait for a handler, and its running handlers.

The number of running handlers is limited, and each has a deadline. Both collections are keyed by
the id of the request, which the peer chooses: a duplicate id gets a key that no id can have.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec

from postroad.net.dispatch import HandlerReturn, Subscription
from postroad.wire import DeadlineMap, RequestFrame

# Ids have 64 bits, signed or unsigned.
_FIRST_OWN_KEY = 1 << 64


class Backlog:
    """Requests that wait for a handler, in their order, each with its time of arrival."""

    __slots__ = ("_next_key", "entries")

    def __init__(self) -> None:
        # Public for hot loops. An OrderedDict, because removing the first item of a dict gets
        # slower each time.
        self.entries: OrderedDict[int, tuple[RequestFrame, float]] = OrderedDict()
        self._next_key = _FIRST_OWN_KEY

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, request: RequestFrame, arrived: float) -> None:
        key = request.id
        if key in self.entries:
            key = self._next_key
            self._next_key += 1
        self.entries[key] = (request, arrived)

    def pop_first(self) -> tuple[RequestFrame, float]:
        """Remove and return the request that has waited longest, with its time of arrival."""
        return self.entries.popitem(last=False)[1]

    def cancel(self, id: int) -> bool:
        """Remove the request with this id; return False if there is none."""
        return self.entries.pop(id, None) is not None

    def retain(self, should_retain: Callable[[RequestFrame], bool]) -> list[RequestFrame]:
        entries, self.entries = self.entries, OrderedDict()
        removed = []
        for key, entry in entries.items():
            if should_retain(entry[0]):
                self.entries[key] = entry
            else:
                removed.append(entry[0])
        return removed


class HandlerTask(msgspec.Struct, eq=False):
    """One running handler; the callback of its future, in one object to spare the collector."""

    future: asyncio.Future[HandlerReturn]
    request: RequestFrame
    subscription: Subscription
    owner: HandlerOwner
    is_one_way: bool
    key: int = 0

    def __call__(self, future: asyncio.Future[HandlerReturn]) -> None:
        """Notify the owner: the handler has finished."""
        self.owner.on_handled(self)


class HandlerOwner(Protocol):
    """The connection that runs handlers."""

    def on_handled(self, run: HandlerTask) -> None:
        """Handle the end of a handler."""


class HandlerTasks:
    """Running handlers by the id of their request; a cancelled one counts until it finishes."""

    __slots__ = ("_cancelling", "_maximum", "_next_key", "_running")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._running: DeadlineMap[HandlerTask] = DeadlineMap()
        # Cancelled handlers that have not finished yet.
        self._cancelling: set[asyncio.Future[HandlerReturn]] = set()
        self._next_key = _FIRST_OWN_KEY

    def __len__(self) -> int:
        return len(self._running.entries) + len(self._cancelling)

    @property
    def has_capacity(self) -> bool:
        """Whether another handler can start."""
        return len(self._running.entries) + len(self._cancelling) < self._maximum

    @property
    def next_deadline(self) -> float:
        return self._running.next_deadline

    def add(self, run: HandlerTask, deadline: float) -> None:
        """Add a handler that has started, and set its key."""
        key = run.request.id
        if key in self._running.entries:
            key = self._next_key
            self._next_key += 1
        run.key = key
        self._running.add(key, run, deadline)

    def finish(self, run: HandlerTask) -> bool:
        """Remove a finished handler; return False if it was cancelled before."""
        future = run.future
        if not self._cancelling or future not in self._cancelling:
            self._running.entries.pop(run.key, None)
            return True
        self._cancelling.discard(future)
        if not future.cancelled():
            # Retrieve the error, so that asyncio does not log it as never retrieved.
            future.exception()
        return False

    def cancel(self, id: int) -> bool:
        """Cancel the handler of a request; return False if there is none."""
        run = self._running.pop(id)
        if run is not None:
            self._end(run)
        return run is not None

    def expire(self, now: float) -> list[HandlerTask]:
        """Cancel and return the handlers whose deadline has passed."""
        expired = [run for _, run in self._running.pop_expired(now)]
        for run in expired:
            self._end(run)
        return expired

    def cancel_requests(self) -> None:
        """Cancel the handlers that reply; those of one-way messages continue."""
        for key, (run, _) in list(self._running.entries.items()):
            if not run.is_one_way:
                self.cancel(key)

    def cancel_all(self) -> None:
        for _, run in self._running.pop_all():
            self._end(run)

    def _end(self, run: HandlerTask) -> None:
        self._cancelling.add(run.future)
        run.future.cancel()
