"""Receives messages of a queue for flows, each in one commit with its consequences.

Which flow gets one is decided by the subclasses, in session_receiver.py and request_receiver.py.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from postroad.core.errors import Reject, StoreError
from postroad.durable.consumers.dispatch_order import QueuedMessage
from postroad.durable.consumers.dispatcher import QueueDispatcher
from postroad.flows.engine.engine import FlowEngine

logger = logging.getLogger("postroad.flows")

T = TypeVar("T")

# This many messages are dispatched before the event loop continues.
_MESSAGES_PER_TURN = 64


class QueueReceiver(ABC):
    """Dispatches the messages of a queue to the engine.

    Args:
        engine: what runs the flows.
        queue: a queue of this node that nothing else consumes.
    """

    dispatcher: QueueDispatcher

    def __init__(self, engine: FlowEngine, queue: str) -> None:
        self.engine = engine
        self._queue = queue
        self._task: asyncio.Task[None] | None = None
        self._lookups: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to receive messages."""
        self.dispatcher = await self.engine.queues.dispatchers.open(self._queue)
        self.engine.mutations.dispatchers[self._queue] = self.dispatcher
        # A message and the transition that it causes share a commit if the flow is in memory.
        self.engine.store.writer.precommit.inline_queues.add(self._queue)
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"postroad {self._queue}"
        )

    async def stop(self) -> None:
        """Receive no more; messages stay in the queue."""
        if self._task is not None:
            tasks = [self._task, *self._lookups]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Release the queue after all messages are committed or requeued."""
        if self._task is not None:
            self.engine.store.writer.precommit.inline_queues.discard(self._queue)
            await self.dispatcher.close()
            self.engine.queues.dispatchers.release(self._queue)

    async def _run(self) -> None:
        in_a_row = 0
        while True:
            entry = self.dispatcher.next_message()
            if entry is None:
                await self.dispatcher.wait()
                in_a_row = 0
                continue
            try:
                self.dispatch(entry)
            except Exception as error:
                self._fail(entry, error)
            in_a_row += 1
            if in_a_row >= _MESSAGES_PER_TURN:
                in_a_row = 0
                await asyncio.sleep(0)

    @abstractmethod
    def dispatch(self, entry: QueuedMessage) -> None:
        """Dispatch one message to its flow; raises Reject if it is invalid."""

    def look_up(
        self, entry: QueuedMessage, handle: Callable[[QueuedMessage, T], Awaitable[None]], body: T
    ) -> None:
        """Dispatch a message in the background, after a read from the store."""
        task = asyncio.get_running_loop().create_task(self._run_lookup(entry, handle, body))
        self._lookups.add(task)
        task.add_done_callback(partial(self._on_looked_up, entry))

    async def _run_lookup(
        self, entry: QueuedMessage, handle: Callable[[QueuedMessage, T], Awaitable[None]], body: T
    ) -> None:
        try:
            await handle(entry, body)
        except Exception as error:
            self._fail(entry, error)

    def _on_looked_up(self, entry: QueuedMessage, task: asyncio.Task[None]) -> None:
        self._lookups.discard(task)
        if task.cancelled():
            # Perhaps before it began.
            self.dispatcher.requeue(entry)

    def _fail(self, entry: QueuedMessage, error: Exception) -> None:
        if not isinstance(error, Reject | StoreError):
            logger.error("a message of queue %r was not taken", self._queue, exc_info=error)
        self.dispatcher.nack(entry, error)
