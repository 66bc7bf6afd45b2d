"""Listening where the transporter balances: to the topics of all that this node offers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from postroad.core import ThrottledLogger
from postroad.core.errors import PostroadError

from .schema import ServiceInfo
from .transit import Transit, logger

_LOG_INTERVAL_S = 10.0


class Listening:
    """Keeps the topics a node listens to in step with its services.

    Args:
        transit: the way to the transporter.
        offered: the services as others see them.
        on_done: called whenever it listens to all that is offered.
    """

    def __init__(
        self,
        transit: Transit,
        offered: Callable[[], Iterable[ServiceInfo]],
        on_done: Callable[[], None],
    ) -> None:
        self._transit = transit
        self._offered = offered
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._is_due = False
        self._task: asyncio.Task[None] | None = None
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)

    def changed(self) -> None:
        """Something else is offered than before, or the connection is a new one."""
        self._is_due = True
        if self._task is None:
            self._task = self._loop.create_task(self._follow())

    async def settled(self) -> None:
        """Wait until it listens to all that is offered, as far as it can."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Listen to nothing any more."""
        self._offered, self._on_done = tuple, _nothing
        self.changed()
        await self.settled()

    async def _follow(self) -> None:
        try:
            while self._is_due:
                self._is_due = False
                await self._listen()
            self._on_done()
        finally:
            self._task = None

    async def _listen(self) -> None:
        topics = [*self._transit.topics.balanced(self._offered())]
        try:
            await self._transit.transporter.listen_balanced(topics)
        except (PostroadError, OSError) as error:
            # It is tried again after the next change, or when there is a connection again.
            now = self._loop.time()
            self._log.log("listen", now, "does not listen to what it offers: %s", error)


def _nothing() -> None:
    return
