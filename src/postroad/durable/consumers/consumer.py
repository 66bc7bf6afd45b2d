"""Runs a handler for the messages of a queue, and commits its work with the acknowledgement.

`Consumer.on_success` asks the dispatcher for a mutation that marks the message done and sends what
the handler sent (`QueueDispatcher.prepare_ack`, `DispositionMutation`). Without statements it is
submitted alone; with statements it finishes the transaction that they run in
(`SavepointTransaction.finish`), so that one commit of the writer has all of it or nothing.
`Consumer.on_error` rolls back, and the dispatcher decides between a retry and a dead letter
(`QueueDispatcher.nack`).
"""

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
from postroad.core.log_throttle import ThrottledLogger, describe_error
from postroad.durable.consumers.dispatch_order import QueuedMessage
from postroad.durable.consumers.dispatcher import QueueDispatcher
from postroad.durable.consumers.message import Message
from postroad.durable.producer import MessageEncoder
from postroad.durable.store import Store
from postroad.durable.store.savepoints import CURRENT_TRANSACTION
from postroad.durable.telemetry import start_handle_span
from postroad.durable.transaction import Transaction

logger = logging.getLogger("postroad.durable")

DurableHandler: TypeAlias = Callable[[Message, Transaction], Awaitable[object] | object]
"""Handles one message; writes through the transaction are committed with it."""

# Handlers that never wait must yield to the event loop.
_IN_A_ROW_MAX = 64
_WATCH_S = 1.0
_WARN_INTERVAL_S = 5.0
# More attempts than any retry policy has.
_ATTEMPTS_MAX = 1 << 20


class ConsumerWorker:
    """Handles one message after the other."""

    __slots__ = (
        "_consumer",
        "_dispatcher",
        "_number",
        "_watched_number",
        "_watched_since",
        "is_busy",
        "is_overdue",
        "task",
    )

    def __init__(self, consumer: Consumer, dispatcher: QueueDispatcher) -> None:
        self._consumer = consumer
        self._dispatcher = dispatcher
        self.is_busy = False
        # Counts messages; a number that stays for too long is that of a hanging handler.
        self._number = self._watched_number = 0
        self._watched_since = 0.0
        self.is_overdue = False
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self._work(), name=f"postroad consumer {dispatcher.queue}")

    async def _work(self) -> None:
        consumer, dispatcher = self._consumer, self._dispatcher
        # Looked up once, not for each message.
        store, encoder, handler = consumer.store, consumer.encoder, consumer.handler
        next_message, ack, enter = (
            dispatcher.next_message,
            dispatcher.ack,
            CURRENT_TRANSACTION.set,
        )
        in_a_row = 0
        while not consumer.is_stopping:
            entry = next_message()
            if entry is None:
                await dispatcher.wait()
                in_a_row = 0
                continue
            self._number += 1
            self.is_busy = True
            tx = Transaction(store, encoder)
            # Outside of transactions that were open where the consumer was created.
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
                if tx.close_if_unused():
                    ack(entry)
                else:
                    consumer.on_success(entry, tx)
            self.is_busy = False
            if self.is_overdue:
                self._reset_timeout()
            in_a_row += 1
            if in_a_row >= _IN_A_ROW_MAX:
                in_a_row = 0
                await asyncio.sleep(0)

    def _reset_timeout(self) -> None:
        """Reset the timeout after a timed-out handler has ended."""
        self.is_overdue = False
        while self.task.cancelling():
            self.task.uncancel()

    def check_deadline(self, now: float, handler_timeout_s: float) -> None:
        """Cancel the handler if it exceeds its timeout."""
        if not self.is_busy or self._number != self._watched_number:
            self._watched_number, self._watched_since = self._number, now
        elif now - self._watched_since > handler_timeout_s and not self.is_overdue:
            self.is_overdue = True
            self.task.cancel()


class Consumer:
    """Workers that handle the messages of one queue."""

    def __init__(
        self,
        store: Store,
        encoder: MessageEncoder,
        dispatcher: QueueDispatcher,
        handler: DurableHandler,
        *,
        concurrency: int,
        handler_timeout_s: float,
    ) -> None:
        self.dispatcher = dispatcher
        self.store = store
        self.encoder = encoder
        self.handler = handler
        self._handler_timeout_s = handler_timeout_s
        self._loop = asyncio.get_running_loop()
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        # Whether it dispatches no more messages.
        self.is_stopping = False
        self._workers = [ConsumerWorker(self, dispatcher) for _ in range(concurrency)]
        self._timeout_timer = self._loop.call_later(_WATCH_S, self._check_timeouts)

    async def stop(self, grace: float) -> None:
        """Stop; handlers that do not end within `grace` seconds are cancelled.

        If the caller is cancelled, all handlers that still run are cancelled.
        """
        self.is_stopping = True
        self.dispatcher.changed.set()
        self._timeout_timer.cancel()
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
        await self.dispatcher.close()

    def _check_timeouts(self) -> None:
        """Cancel handlers that exceed their timeout."""
        now = self._loop.time()
        for worker in self._workers:
            worker.check_deadline(now, self._handler_timeout_s)
        self._timeout_timer = self._loop.call_later(_WATCH_S, self._check_timeouts)

    async def handle_traced(self, entry: QueuedMessage, tx: Transaction) -> None:
        """Handle a message inside of a span."""
        with start_handle_span(self.encoder.node, entry):
            result = self.handler(Message(entry), tx)
            if result is not None and hasattr(result, "__await__"):
                await result

    def on_success(self, entry: QueuedMessage, tx: Transaction) -> None:
        """Submit the disposition of a handled message; does not wait for the commit."""
        transaction = tx.close()
        if transaction is not None and transaction.is_timed_out:
            self._fail(
                entry, TransactionAbortedError("the transaction took too long and was undone")
            )
            return
        mutation = self.dispatcher.prepare_ack(entry, tx.sends)
        if transaction is None:
            if mutation is not None:
                self.dispatcher.submit(mutation)
            return
        if mutation is not None:
            self.dispatcher.track(mutation)
        transaction.finish(mutation)

    def on_error(
        self, entry: QueuedMessage, tx: Transaction, worker: ConsumerWorker, error: BaseException
    ) -> None:
        """Handle the error or the cancellation of a handler."""
        tx.rollback()
        if tx.is_unavailable and isinstance(error, StoreError):
            # The store was unavailable: the message is redelivered when it is back.
            self.dispatcher.requeue(entry)
            self.dispatcher.suspend(error)
        elif isinstance(error, Exception):
            self._fail(entry, error)
        elif isinstance(error, asyncio.CancelledError) and worker.is_overdue:
            self._fail(
                entry, TimeoutError(f"the handler took more than {self._handler_timeout_s} s")
            )
        elif isinstance(error, asyncio.CancelledError) and not worker.task.cancelling():
            # This worker was not cancelled: something that the handler awaited was.
            self._fail(entry, RuntimeError("what the handler waited for was cancelled"))
        else:
            self.dispatcher.requeue(entry)
            raise error

    def _fail(self, entry: QueuedMessage, error: Exception) -> None:
        self._log_failure(entry, error)
        self.dispatcher.nack(entry, error)

    def _log_failure(self, entry: QueuedMessage, error: Exception) -> None:
        """Log a failure, throttled if many messages fail."""
        queue, attempts = self.dispatcher.queue, self.dispatcher.retry.max_attempts
        if attempts > _ATTEMPTS_MAX:
            # A handler with unlimited retries probably waits for something: log at a lower level.
            logger.debug("the handler of queue %r failed: %r", queue, error)
            return
        is_dead = self.dispatcher.is_final_failure(entry, error)
        self._log.log(
            "dead" if is_dead else "failed",
            self._loop.time(),
            "the handler of queue %r failed, attempt %d of %d: %s%s; %s",
            queue,
            entry.failures + 1,
            attempts,
            describe_error(error),
            _place_of(error),
            "the message is a dead letter" if is_dead else "the message will be redelivered",
        )


def _place_of(error: Exception) -> str:
    """Return where an error was raised, for logs."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
