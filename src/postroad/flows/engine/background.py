"""Background tasks of the engine, reads that are retried, and the timer of flows not in memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from postroad.core.errors import StoreError
from postroad.durable import Store
from postroad.durable.store.backends.backend import StoreConnection
from postroad.flows.engine import tables

logger = logging.getLogger("postroad.flows")

P = ParamSpec("P")
T = TypeVar("T")

LOADING_MAX = 1_024
"""As many flows are read at once where there are many to read."""
_RETRY_INITIAL_DELAY_S = 0.05
_RETRY_MAX_DELAY_S = 5.0


class BackgroundTasks:
    """Tasks that go on meanwhile."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Do something meanwhile; nothing, once closed."""
        if self._is_closed:
            coroutine.close()
            return
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)

    async def wait_for_capacity(self, most: int) -> None:
        """Wait until no more than so many go on."""
        while len(self._tasks) > most:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Stop all of them."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_with_retry(
    store: Store,
    function: Callable[Concatenate[StoreConnection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Read from a store, however long that is away."""
    attempt = 0
    while True:
        try:
            return await store.read(function, *args, **kwargs)
        except StoreError as error:
            attempt += 1
            logger.debug("a flow cannot be read: %s", error)
            await asyncio.sleep(
                min(_RETRY_INITIAL_DELAY_S * 2.0 ** min(attempt, 16), _RETRY_MAX_DELAY_S)
            )


_PAGE_SIZE = 256
# A wall clock may jump; looking from time to time makes up for it.
_RESCAN_INTERVAL_S = 30.0
_STORE_RETRY_MS = 1_000


class WakeupTimer:
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
        self._scan_task: asyncio.Task[None] | None = None
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
        pause_s = min(max(due_ms - now_ms(), 0) / 1000, _RESCAN_INTERVAL_S)
        self._timer = self._loop.call_later(pause_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._scan_task is None or self._scan_task.done():
            self._scan_task = self._loop.create_task(
                self.scan(), name="postroad flows that are due"
            )
        else:
            # It goes on with what is due now when it has done with what was.
            self.set(now_ms() + _STORE_RETRY_MS)

    async def scan(self) -> None:
        """Take up those whose time has come, and set the timer for the next."""
        after = 0
        try:
            while True:
                now = now_ms()
                ids = await self._store.read(tables.list_due, now, after, _PAGE_SIZE)
                for id in ids:
                    await self._wake(id)
                if len(ids) < _PAGE_SIZE:
                    break
                after = ids[-1]
            next_ms = await self._store.read(tables.next_wakeup_ms, now)
        except StoreError as error:
            logger.debug("no flow can be woken now: %s", error)
            next_ms = now_ms() + _STORE_RETRY_MS
        except Exception:
            # Nobody else would wake the others.
            logger.exception("flows that are due could not be woken")
            next_ms = now_ms() + _STORE_RETRY_MS
        if next_ms is not None:
            self.set(next_ms)

    async def close(self) -> None:
        """Wake nobody any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._scan_task is not None:
            self._scan_task.cancel()
            await asyncio.gather(self._scan_task, return_exceptions=True)


def now_ms() -> int:
    """The time of this machine."""
    return time.time_ns() // 1_000_000
