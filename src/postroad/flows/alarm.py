"""Wakes flows that are not in memory when their time has come."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from postroad.core.errors import StoreError
from postroad.durable import Store

from . import tables

logger = logging.getLogger("postroad.flows")

_AT_ONCE = 256
# A wall clock may jump; looking from time to time makes up for it.
_LOOK_AGAIN_S = 30.0
_STORE_AWAY_MS = 1_000


class Alarm:
    """One timer for all flows that sleep in the store.

    Args:
        store: where they are.
        wake: takes up a flow; waits if there are too many at once.
    """

    def __init__(self, store: Store, wake: Callable[[int], Awaitable[None]]) -> None:
        self._store = store
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    def set(self, due_ms: int) -> None:
        """Look at the latest when something is due."""
        if self._is_closed:
            return
        if self._timer is not None:
            if self._due_ms <= due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        pause_s = min(max(due_ms - now_ms(), 0) / 1000, _LOOK_AGAIN_S)
        self._timer = self._loop.call_later(pause_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self.look(), name="postroad flows that are due")
        else:
            # It goes on with what is due now when it has done with what was.
            self.set(now_ms() + _STORE_AWAY_MS)

    async def look(self) -> None:
        """Take up those whose time has come, and set the timer for the next."""
        after = 0
        try:
            while True:
                now = now_ms()
                ids = await self._store.read(tables.due, now, after, _AT_ONCE)
                for id in ids:
                    await self._wake(id)
                if len(ids) < _AT_ONCE:
                    break
                after = ids[-1]
            next_ms = await self._store.read(tables.next_due_ms, now)
        except StoreError as error:
            logger.debug("no flow can be woken now: %s", error)
            next_ms = now_ms() + _STORE_AWAY_MS
        except Exception:
            # Nobody else would wake the others.
            logger.exception("flows that are due could not be woken")
            next_ms = now_ms() + _STORE_AWAY_MS
        if next_ms is not None:
            self.set(next_ms)

    async def close(self) -> None:
        """Wake nobody any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)


def now_ms() -> int:
    """The time of this machine."""
    return time.time_ns() // 1_000_000
