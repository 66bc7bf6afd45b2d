"""Requests of one connection that wait for a handler, and handlers at work for it.

The latter are a limited number, each with a deadline. Both are found by the id of their request,
which the peer chooses: one whose id is in use already gets a key that no id can be.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from postroad.net.dispatch import HandlerReturn
from postroad.wire import DeadlineMap, RequestFrame

# Ids have 64 bits, signed or not.
_FIRST_OWN_KEY = 1 << 64


class Backlog:
    """Requests read but not yet begun, in their order, each with the time it arrived."""

    __slots__ = ("_entries", "_next_key")

    def __init__(self) -> None:
        # Ordered, because taking the first out of a plain dictionary gets slower each time.
        self._entries: OrderedDict[int, tuple[RequestFrame, float]] = OrderedDict()
        self._next_key = _FIRST_OWN_KEY

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, request: RequestFrame, arrived: float) -> None:
        """Put a request to the end."""
        key = request.id
        if key in self._entries:
            key = self._next_key
            self._next_key += 1
        self._entries[key] = (request, arrived)

    def take_first(self) -> tuple[RequestFrame, float]:
        """The one that has waited for longest."""
        return self._entries.popitem(last=False)[1]

    def cancel(self, id: int) -> bool:
        """Forget the request of that id; False if there is none."""
        return self._entries.pop(id, None) is not None

    def keep(self, is_kept: Callable[[RequestFrame], bool]) -> list[RequestFrame]:
        """Forget all others, and return them."""
        entries, self._entries = self._entries, OrderedDict()
        others = []
        for key, entry in entries.items():
            if is_kept(entry[0]):
                self._entries[key] = entry
            else:
                others.append(entry[0])
        return others

    def clear(self) -> None:
        """Forget them all."""
        self._entries.clear()


class HandlerTask(NamedTuple):
    """One handler at work."""

    future: asyncio.Future[HandlerReturn]
    request: RequestFrame
    is_one_way: bool


class HandlerTasks:
    """Handlers by the id of their request. A cancelled one counts until it is really over."""

    __slots__ = ("_cancelling", "_maximum", "_next_key", "_running")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._running: DeadlineMap[HandlerTask] = DeadlineMap()
        # Handlers that were cancelled and are not over yet.
        self._cancelling: set[asyncio.Future[HandlerReturn]] = set()
        self._next_key = _FIRST_OWN_KEY

    def __len__(self) -> int:
        return len(self._running.entries) + len(self._cancelling)

    @property
    def has_capacity(self) -> bool:
        """Whether another may begin."""
        return len(self) < self._maximum

    @property
    def next_deadline(self) -> float:
        """When `expire` may find something."""
        return self._running.next_deadline

    def add(self, run: HandlerTask, deadline: float) -> int:
        """Remember a handler that has begun; returns its key."""
        key = run.request.id
        if key in self._running.entries:
            key = self._next_key
            self._next_key += 1
        self._running.add(key, run, deadline)
        return key

    def finish(self, key: int, future: asyncio.Future[HandlerReturn]) -> bool:
        """A handler is over; whether anybody still wants its result."""
        if future not in self._cancelling:
            self._running.pop(key)
            return True
        self._cancelling.discard(future)
        if not future.cancelled():
            # Asked for, or it would be reported as never looked at.
            future.exception()
        return False

    def cancel(self, id: int) -> bool:
        """Cancel the handler of that request; False if there is none."""
        run = self._running.pop(id)
        if run is not None:
            self._end(run)
        return run is not None

    def expire(self, now: float) -> list[HandlerTask]:
        """Cancel and return those whose time is over."""
        expired = [run for _, run in self._running.pop_expired(now)]
        for run in expired:
            self._end(run)
        return expired

    def cancel_requests(self) -> None:
        """Cancel those whose reply nobody can get any more; one-way messages are handled."""
        for key, (run, _) in list(self._running.entries.items()):
            if not run.is_one_way:
                self.cancel(key)

    def cancel_all(self) -> None:
        """Cancel everything."""
        for _, run in self._running.pop_all():
            self._end(run)

    def _end(self, run: HandlerTask) -> None:
        self._cancelling.add(run.future)
        run.future.cancel()
