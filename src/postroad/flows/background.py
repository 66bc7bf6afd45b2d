"""Tasks that nobody waits for, and reading that nobody need hurry with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from postroad.core.errors import StoreError
from postroad.durable import Store
from postroad.durable.store.database import Database

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
    function: Callable[Concatenate[Database, P], T],
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
