"""Asks nodes whether they are there when somebody has said something in their name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from postroad.core.errors import PostroadError

from .doubts import RESTART_S
from .errors import RequestTimeoutError
from .pings import Pings

SETTLE_S = 0.05
"""Between the two pings that a node must answer: a goodbye and an answer may cross on the way, and
so may an answer and the INFO before it."""
_ATTEMPTS = 4
# Timers of some loops are early by a part of a millisecond.
_EARLY_S = 0.001


class Verifying:
    """Pings nodes, each twice, and tells of those that answered both, and when the time is over.

    Args:
        pings: sends the pings.
        new_id: makes what an answer must repeat.
        is_linked: whether there is a connection to a node that tells its life from the next.
        answered: is told of a node, and whether it is in the life that it was in when asked.
        expired: is told that the time of a node is over.
        timeout_s: how long a node may take.
    """

    def __init__(
        self,
        pings: Pings,
        new_id: Callable[[], str],
        is_linked: Callable[[str], bool],
        answered: Callable[[str, bool], None],
        expired: Callable[[], None],
        timeout_s: float,
    ) -> None:
        self._pings = pings
        self._new_id = new_id
        self._is_linked = is_linked
        self._answered = answered
        self._expired = expired
        self._timeout_s = timeout_s
        self._running: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def verify(self, node_id: str) -> None:
        """Find out whether a node is there; one that is being asked is asked anew."""
        if self._is_closed:
            return
        before = self._running.get(node_id)
        if before is not None:
            before.cancel()
        task = asyncio.get_running_loop().create_task(self._verify(node_id))
        self._running[node_id] = task
        task.add_done_callback(lambda done: self._end(node_id, done))

    async def close(self) -> None:
        """Ask nobody any more."""
        self._is_closed = True
        running = [*self._running.values()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    async def _verify(self, node_id: str) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._timeout_s
        was_linked = self._is_linked(node_id)
        if await self._is_there(node_id, ends_at):
            self._answered(node_id, was_linked and self._is_linked(node_id))
            await asyncio.sleep(min(RESTART_S, self._timeout_s))
            self._expired()
        await asyncio.sleep(max(ends_at - loop.time(), 0.0) + _EARLY_S)
        self._expired()

    async def _is_there(self, node_id: str, ends_at: float) -> bool:
        try:
            if not await self._answers(node_id, ends_at):
                return False
            await asyncio.sleep(SETTLE_S)
            return await self._answers(node_id, ends_at)
        except PostroadError:
            return False

    async def _answers(self, node_id: str, ends_at: float) -> bool:
        """Wait for an answer; a ping may be lost on a way that loses packets.

        Not within `asyncio.timeout`: if the last ping ends in the same moment, Python 3.11 and 3.12
        cancel the task at its next wait.
        """
        loop = asyncio.get_running_loop()
        while (left_s := ends_at - loop.time()) > 0:
            attempt_s = min(self._timeout_s / _ATTEMPTS, left_s)
            try:
                await self._pings.ping(node_id, self._new_id(), attempt_s)
            except RequestTimeoutError:
                continue
            return True
        return False

    def _end(self, node_id: str, done: asyncio.Task[None]) -> None:
        if self._running.get(node_id) is done:
            del self._running[node_id]
