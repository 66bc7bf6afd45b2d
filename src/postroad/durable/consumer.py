"""Runs a handler for the messages of a queue."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from postroad.core.errors import TransactionLost

from .consumption import Consumption
from .message import Message
from .posting import Clerk
from .shelf import Entry
from .store import Store
from .transaction import Transaction

logger = logging.getLogger("postroad.durable")

Handler: TypeAlias = Callable[[Message, Transaction], Awaitable[object] | object]
"""Handles one message; what it writes through the transaction is committed with it."""

# Handlers that never wait must not keep everything else waiting.
_IN_A_ROW_MAX = 64
_WATCH_S = 1.0


class Consumer:
    """Workers that handle the messages of one queue."""

    def __init__(
        self,
        store: Store,
        clerk: Clerk,
        consumption: Consumption,
        handler: Handler,
        *,
        concurrency: int,
        handler_s: float,
    ) -> None:
        self.consumption = consumption
        self._store = store
        self._clerk = clerk
        self._handler = handler
        self._handler_s = handler_s
        self._loop = asyncio.get_running_loop()
        self._is_stopping = False
        # Workers that handle something, since when; those that took too long.
        self._since: dict[asyncio.Task[None], float] = {}
        self._overdue: set[asyncio.Task[None]] = set()
        self._workers = [
            self._loop.create_task(self._work(), name=f"postroad consumer {consumption.queue}")
            for _ in range(concurrency)
        ]
        self._watch = self._loop.call_later(_WATCH_S, self._look_at_watch)

    async def stop(self, grace_s: float) -> None:
        """Take no more messages; handlers that do not end in time are cancelled."""
        self._is_stopping = True
        self.consumption.changed.set()
        self._watch.cancel()
        idle = [worker for worker in self._workers if worker not in self._since]
        for worker in idle:
            worker.cancel()
        _, busy = await asyncio.wait(self._workers, timeout=grace_s)
        for worker in busy:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self.consumption.close()

    def _look_at_watch(self) -> None:
        """Cancel handlers that take too long."""
        now = self._loop.time()
        for worker, since in self._since.items():
            if now - since > self._handler_s and worker not in self._overdue:
                self._overdue.add(worker)
                worker.cancel()
        self._watch = self._loop.call_later(_WATCH_S, self._look_at_watch)

    async def _work(self) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        consumption = self.consumption
        in_a_row = 0
        while not self._is_stopping:
            entry = consumption.take()
            if entry is None:
                await consumption.wait()
                in_a_row = 0
                continue
            self._since[worker] = self._loop.time()
            try:
                await self._handle(entry, worker)
            finally:
                self._since.pop(worker, None)
            in_a_row += 1
            if in_a_row >= _IN_A_ROW_MAX:
                in_a_row = 0
                await asyncio.sleep(0)

    async def _handle(self, entry: Entry, worker: asyncio.Task[None]) -> None:
        tx = Transaction(self._store, self._clerk)
        try:
            result = self._handler(Message(entry), tx)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError:
            tx.undo()
            if worker not in self._overdue:
                self.consumption.give_back(entry)
                raise
            self._overdue.discard(worker)
            worker.uncancel()
            error = TimeoutError(f"the handler took more than {self._handler_s} s")
            self._fail(entry, error)
        except Exception as error:
            tx.undo()
            self._fail(entry, error)
        else:
            self._commit(entry, tx)

    def _fail(self, entry: Entry, error: Exception) -> None:
        logger.debug("the handler of %r failed: %r", self.consumption.queue, error)
        self.consumption.fail(entry, error)

    def _commit(self, entry: Entry, tx: Transaction) -> None:
        """Hand over what the handler wants committed; nobody waits for that here."""
        turn = tx.close()
        if turn is None and not tx.posts:
            self.consumption.acknowledge(entry)
            return
        if turn is not None and turn.is_lost:
            self._fail(entry, TransactionLost("the transaction took too long and was undone"))
            return
        unit = self.consumption.finish(entry, tx.posts)
        if turn is None:
            if unit is not None:
                self.consumption.submit(unit)
            return
        if unit is not None:
            self.consumption.expect(unit)
        turn.end(unit)
