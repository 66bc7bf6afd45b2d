"""Tasks that nobody waits for: none is lost sight of, and none fails in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger("postroad.flows")


class Background:
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

    async def wait_for_room(self, most: int) -> None:
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
