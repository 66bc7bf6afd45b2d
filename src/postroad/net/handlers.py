"""Asynchronous handlers at work for one connection: a limited number, each with a deadline."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from postroad.wire import Pending, Request

from .message import Result


class Run(NamedTuple):
    """One handler at work."""

    future: asyncio.Future[Result]
    request: Request
    is_one_way: bool


class HandlerRuns:
    """Handlers by the id of their request. A cancelled one counts until it is really over."""

    __slots__ = ("_duplicates", "_ending", "_maximum", "_running")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._running: Pending[Run] = Pending()
        # Handlers that were cancelled and are not over yet.
        self._ending: set[asyncio.Future[Result]] = set()
        # Keys for requests whose id is in use already, counting down.
        self._duplicates = 0

    def __len__(self) -> int:
        return len(self._running.entries) + len(self._ending)

    @property
    def has_capacity(self) -> bool:
        """Whether another may begin."""
        return len(self) < self._maximum

    @property
    def next_deadline(self) -> float:
        """When `expire` may find something."""
        return self._running.next_deadline

    def add(self, run: Run, deadline: float) -> int:
        """Remember a handler that has begun; returns its key."""
        key = run.request.id
        if key in self._running.entries:
            self._duplicates -= 1
            key = self._duplicates
        self._running.add(key, run, deadline)
        return key

    def finish(self, key: int, future: asyncio.Future[Result]) -> bool:
        """A handler is over; whether anybody still wants its result."""
        if future not in self._ending:
            self._running.take(key)
            return True
        self._ending.discard(future)
        if not future.cancelled():
            # Asked for, or it would be reported as never looked at.
            future.exception()
        return False

    def cancel(self, id: int) -> bool:
        """Cancel the handler of that request; False if there is none."""
        run = self._running.take(id)
        if run is not None:
            self._end(run)
        return run is not None

    def expire(self, now: float) -> list[Run]:
        """Cancel and return those whose time is over."""
        expired = [run for _, run in self._running.take_expired(now)]
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
        for _, run in self._running.take_all():
            self._end(run)

    def _end(self, run: Run) -> None:
        self._ending.add(run.future)
        run.future.cancel()
