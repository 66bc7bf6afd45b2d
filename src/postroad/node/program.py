"""Runs what a user wrote, inside of a node whose layers run.

What brings messages of others opens after everything that their handlers may need, and calls of
other nodes come last. In reverse, that is how it closes.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from postroad.durable.injection import is_async_function
from postroad.durable.store.worker_threads import ThreadRunner

from .app import App
from .durable_events import DurableEvents
from .queues.consuming import Consuming, run_in_threads
from .settings import Layer

if TYPE_CHECKING:
    from .node import Node

# How long handlers may take to end when the node stops and was not drained before.
_GRACE_S = 5.0


class Program:
    """The program of a node, while it runs.

    Args:
        node: its layers run; its services can be called by itself.
        app: the program.
        events: hands durable events to services; None without them.
        stack: is given whatever must be closed, in the order it was opened.
    """

    def __init__(
        self, node: Node, app: App, events: DurableEvents | None, stack: AsyncExitStack
    ) -> None:
        self._node = node
        self._app = app
        self._events = events
        self._stack = stack
        self._consumed: list[str] = []
        self._threads: list[ThreadRunner] = []

    async def open(self) -> None:
        """Run everything, and let others in."""
        app = self._app
        if app.lifespan is not None:
            await self._stack.enter_async_context(app.lifespan(self._node))
        await self._open_cells()
        if self._has(Layer.FLOWS):
            self._stack.push_async_callback(self._node.flows.execution.halt_steps)
            self._node.flows.execution.resume_steps()
        self._stack.push_async_callback(self._stop_consuming, _GRACE_S)
        if self._events is not None:
            await self._events.start()
        for consuming in app.consumers:
            await self._consume(consuming)
        if self._has(Layer.SERVICES):
            self._stack.push_async_callback(self._node.broker.withdraw)
            await self._node.broker.open()

    async def rest(self, timeout_s: float) -> None:
        """Let no other node call services here, and take no more mail; wait for what runs."""
        broker = self._node.broker if self._has(Layer.SERVICES) else None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stop_consuming(timeout_s))
            if broker is not None:
                group.create_task(broker.withdraw(timeout_s))

    def _has(self, layer: Layer) -> bool:
        return self._node.config.has(layer)

    async def _open_cells(self) -> None:
        self._stack.push_async_callback(self._close_cells)
        for cell in self._app.cells:
            await self._node.domain.add_cell(cell)
        if self._has(Layer.CELLS) and self._has(Layer.QUEUES):
            await self._node.guaranteed.release()

    async def _close_cells(self) -> None:
        """Let the cells of the program go, when others know that and they have nothing left."""
        if self._has(Layer.CELLS) and self._has(Layer.QUEUES):
            await self._node.guaranteed.rest()
        if self._app.cells:
            domain = self._node.domain
            there = {*domain.cells}
            names = [it.name for it in self._app.cells if it.name in there]
            await asyncio.gather(*map(domain.drain_cell, names))
            await asyncio.gather(*map(domain.remove_cell, names))

    async def _consume(self, it: Consuming) -> None:
        handler = it.handler
        if not is_async_function(handler):
            name = f"postroad consumer {it.queue}"
            threads = self._node.queues.store.thread_factory(name, it.concurrency)
            self._threads.append(threads)
            handler = run_in_threads(handler, threads)
        await self._node.queues.consume(
            it.queue,
            handler,
            concurrency=it.concurrency,
            ordered_by_key=it.ordered_by_key,
            retry=it.retry,
        )
        self._consumed.append(it.queue)

    async def _stop_consuming(self, grace_s: float) -> None:
        """Have handlers of mail finish what they are at, and take no more."""
        queues, self._consumed = self._consumed, []
        ends = [self._node.queues.stop_consuming(it, grace_s) for it in queues]
        if self._events is not None:
            ends.append(self._events.stop(grace_s))
        await asyncio.gather(*ends)
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.stop()
