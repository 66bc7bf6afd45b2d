"""Runs a handler for the messages of a queue."""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import TypeAlias

from postroad.core import tracing
from postroad.core.errors import StoreError, TransactionAbortedError
from postroad.core.log_throttle import ThrottledLogger

from .consumption import Consumption
from .message import Message
from .posting import Clerk
from .shelf import Entry
from .store import Store
from .store.turn import OPEN
from .traces import handling
from .transaction import Transaction

logger = logging.getLogger("postroad.durable")

Handler: TypeAlias = Callable[[Message, Transaction], Awaitable[object] | object]
"""Handles one message; what it writes through the transaction is committed with it."""

# Handlers that never wait must not keep everything else waiting.
_IN_A_ROW_MAX = 64
_WATCH_S = 1.0
_WARN_INTERVAL_S = 5.0
# More attempts than anybody counts.
_ATTEMPTS_MAX = 1 << 20


class Worker:
    """Handles one message after the other."""

    __slots__ = (
        "_consumer",
        "_consumption",
        "_number",
        "_seen",
        "_seen_at",
        "is_busy",
        "is_overdue",
        "task",
    )

    def __init__(self, consumer: Consumer, consumption: Consumption) -> None:
        self._consumer = consumer
        self._consumption = consumption
        self.is_busy = False
        # Counts messages; a number that is seen for too long is that of a handler that hangs.
        self._number = self._seen = 0
        self._seen_at = 0.0
        self.is_overdue = False
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self._work(), name=f"postroad consumer {consumption.queue}")

    async def _work(self) -> None:
        consumer, consumption = self._consumer, self._consumption
        # Looked up once, not for each message.
        store, clerk, handler = consumer.store, consumer.clerk, consumer.handler
        take, acknowledge, enter = consumption.take, consumption.acknowledge, OPEN.set
        in_a_row = 0
        while not consumer.is_stopping:
            entry = take()
            if entry is None:
                await consumption.wait()
                in_a_row = 0
                continue
            self._number += 1
            self.is_busy = True
            tx = Transaction(store, clerk)
            # Not inside of what was open where the consumer was made.
            enter(tx)
            try:
                if tracing.tracer is not None:
                    await consumer.handle_traced(entry, tx)
                else:
                    result = handler(Message(entry), tx)
                    if type(result) is CoroutineType or hasattr(result, "__await__"):
                        await result
            except BaseException as error:
                consumer.on_error(entry, tx, self, error)
            else:
                if tx.close_untouched():
                    acknowledge(entry)
                else:
                    consumer.on_success(entry, tx)
            self.is_busy = False
            if self.is_overdue:
                self._forgive()
            in_a_row += 1
            if in_a_row >= _IN_A_ROW_MAX:
                in_a_row = 0
                await asyncio.sleep(0)

    def _forgive(self) -> None:
        """The handler that took too long has ended, in whatever way: the next one has its time."""
        self.is_overdue = False
        while self.task.cancelling():
            self.task.uncancel()

    def check(self, now: float, handler_s: float) -> None:
        """Cancel the handler if it has been at the same message for too long."""
        if not self.is_busy or self._number != self._seen:
            self._seen, self._seen_at = self._number, now
        elif now - self._seen_at > handler_s and not self.is_overdue:
            self.is_overdue = True
            self.task.cancel()


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
        self.store = store
        self.clerk = clerk
        self.handler = handler
        self._handler_s = handler_s
        self._loop = asyncio.get_running_loop()
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        # Whether no more messages are to be taken.
        self.is_stopping = False
        self._workers = [Worker(self, consumption) for _ in range(concurrency)]
        self._watch = self._loop.call_later(_WATCH_S, self._look_at_watch)

    async def stop(self, grace: float) -> None:
        """Take no more messages; handlers that do not end within `grace` seconds are cancelled.

        So are those that are still at work when whoever waits for them is cancelled.
        """
        self.is_stopping = True
        self.consumption.changed.set()
        self._watch.cancel()
        tasks = [worker.task for worker in self._workers]
        for worker in self._workers:
            if not worker.is_busy:
                worker.task.cancel()
        try:
            await asyncio.wait(tasks, timeout=grace)
        finally:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.consumption.close()

    def _look_at_watch(self) -> None:
        """Cancel handlers that take too long."""
        now = self._loop.time()
        for worker in self._workers:
            worker.check(now, self._handler_s)
        self._watch = self._loop.call_later(_WATCH_S, self._look_at_watch)

    async def handle_traced(self, entry: Entry, tx: Transaction) -> None:
        """Have a message handled inside of a span."""
        with handling(self.clerk.node, entry):
            result = self.handler(Message(entry), tx)
            if result is not None and hasattr(result, "__await__"):
                await result

    def on_success(self, entry: Entry, tx: Transaction) -> None:
        """A handler returned: hand over what it wants committed; nobody waits for that here."""
        turn = tx.close()
        if turn is not None and turn.is_lost:
            self._fail(
                entry, TransactionAbortedError("the transaction took too long and was undone")
            )
            return
        unit = self.consumption.finish(entry, tx.posts)
        if turn is None:
            if unit is not None:
                self.consumption.submit(unit)
            return
        if unit is not None:
            self.consumption.expect(unit)
        turn.end(unit)

    def on_error(self, entry: Entry, tx: Transaction, worker: Worker, error: BaseException) -> None:
        """A handler raised, or was cancelled: because it took too long, or because all ends."""
        tx.undo()
        if tx.is_unavailable and isinstance(error, StoreError):
            # Not its fault: it comes again as soon as the store is there.
            self.consumption.give_back(entry)
            self.consumption.suspend(error)
        elif isinstance(error, Exception):
            self._fail(entry, error)
        elif isinstance(error, asyncio.CancelledError) and worker.is_overdue:
            self._fail(entry, TimeoutError(f"the handler took more than {self._handler_s} s"))
        elif isinstance(error, asyncio.CancelledError) and not worker.task.cancelling():
            # Nobody cancelled this worker: something the handler waited for was cancelled.
            self._fail(entry, RuntimeError("what the handler waited for was cancelled"))
        else:
            self.consumption.give_back(entry)
            raise error

    def _fail(self, entry: Entry, error: Exception) -> None:
        self._complain(entry, error)
        self.consumption.fail(entry, error)

    def _complain(self, entry: Entry, error: Exception) -> None:
        """Tell whoever runs this, but not of each message if many fail."""
        queue, attempts = self.consumption.queue, self.consumption.retry.attempts
        if attempts > _ATTEMPTS_MAX:
            # Whoever never gives up waits for something, and says so this way.
            logger.debug("the handler of queue %r failed: %r", queue, error)
            return
        is_dead = self.consumption.is_hopeless(entry, error)
        self._log.log(
            "dead" if is_dead else "failed",
            self._loop.time(),
            "the handler of queue %r failed, attempt %d of %d: %s%s; %s",
            queue,
            entry.failures + 1,
            attempts,
            f"{type(error).__name__}: {error}",
            _place_of(error),
            "the message is a dead letter" if is_dead else "the message comes again",
        )


def _place_of(error: Exception) -> str:
    """Where an error was raised, for people."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
