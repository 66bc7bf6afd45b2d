"""Background tasks of the engine, reads with retry, and the wake-up timer."""

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
"""The most flows that are loaded at the same time."""
_RETRY_INITIAL_DELAY_S = 0.05
_RETRY_MAX_DELAY_S = 5.0


class BackgroundTasks:
    """Tracked background tasks of the engine."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        """Run a coroutine in a task; does nothing once closed."""
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
        """Wait until at most `most` tasks run."""
        while len(self._tasks) > most:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Cancel all tasks and wait for their end."""
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
    """Read from the store, and retry for as long as it is unavailable."""
    attempt = 0
    while True:
        try:
            return await store.read(function, *args, **kwargs)
        except StoreError as error:
            attempt += 1
            logger.debug("cannot read a flow, retrying: %s", error)
            await asyncio.sleep(
                min(_RETRY_INITIAL_DELAY_S * 2.0 ** min(attempt, 16), _RETRY_MAX_DELAY_S)
            )


_SCAN_BATCH = 256
# A wall clock may jump; periodic scans make up for it.
_RESCAN_INTERVAL_S = 30.0
_STORE_RETRY_MS = 1_000


class WakeupTimer:
    """One timer for all sleeping flows in the store.

    Args:
        store: contains the flows.
        wake: resumes a flow; waits while too many are being loaded.
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
        """Scan at `due_ms`, or earlier."""
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
            # The running scan may have passed flows that are due now.
            self.set(now_ms() + _STORE_RETRY_MS)

    async def scan(self) -> None:
        """Resume the flows that are due, and set the timer for the next."""
        after = 0
        try:
            while True:
                now = now_ms()
                ids = await self._store.read(tables.list_due, now, after, _SCAN_BATCH)
                for id in ids:
                    await self._wake(id)
                if len(ids) < _SCAN_BATCH:
                    break
                after = ids[-1]
            next_ms = await self._store.read(tables.next_wakeup_ms, now)
        except StoreError as error:
            logger.debug("cannot wake flows now, retrying: %s", error)
            next_ms = now_ms() + _STORE_RETRY_MS
        except Exception:
            # Without another scan the other flows would never wake.
            logger.exception("cannot wake the flows that are due, retrying")
            next_ms = now_ms() + _STORE_RETRY_MS
        if next_ms is not None:
            self.set(next_ms)

    async def close(self) -> None:
        """Stop the timer and a running scan."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._scan_task is not None:
            self._scan_task.cancel()
            await asyncio.gather(self._scan_task, return_exceptions=True)


def now_ms() -> int:
    """Return the wall clock of this machine."""
    return time.time_ns() // 1_000_000
