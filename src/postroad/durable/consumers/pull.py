"""Messages that are pulled, and acknowledged one by one."""

from __future__ import annotations

import asyncio

from postroad.core.errors import TransactionAbortedError, UsageError
from postroad.core.tracing import NOOP_SPAN, SpanLike
from postroad.durable.consumers.dispatcher import QueueDispatcher
from postroad.durable.consumers.message import Message
from postroad.durable.producer import MessageEncoder
from postroad.durable.store import Store
from postroad.durable.store.savepoints import check_not_in_transaction
from postroad.durable.telemetry import start_handle_span
from postroad.durable.transaction import Transaction


class NackedError(Exception):
    """The reason told when a message is given back without one."""


class PulledMessage(Message, eq=False):
    """A message that waits to be acknowledged; after a while it is given to somebody else.

    for message in await mail.pull("orders"):
        await message.ack()
    """

    _dispatcher: QueueDispatcher
    _store: Store
    _encoder: MessageEncoder
    _ack_timeout_s: float
    _tx: Transaction | None = None
    _ack_timer: asyncio.TimerHandle | None = None
    # From the pulling to the end of the lease, however that comes.
    _span: SpanLike = NOOP_SPAN

    def __post_init__(self) -> None:
        self._span = start_handle_span(self._encoder.node, self._queued)
        self._ack_timer = asyncio.get_running_loop().call_later(self._ack_timeout_s, self._expire)

    def _expire(self) -> None:
        self._ack_timer = None
        self._rollback()
        self._fail(TimeoutError("pulled and not acknowledged in time"))

    def _fail(self, error: Exception, pause_s: float | None = None) -> None:
        self._span.end(error)
        self._dispatcher.nack(self._queued, error, pause_s)

    def _cancel_ack_timer(self) -> None:
        if self._ack_timer is None:
            raise UsageError(f"{self!r} was acknowledged, released or redelivered already")
        self._ack_timer.cancel()
        self._ack_timer = None

    def transaction(self) -> Transaction:
        """A transaction to acknowledge it in; it is undone if the message is not."""
        self._rollback()
        self._tx = Transaction(self._store, self._encoder)
        return self._tx

    def _rollback(self) -> None:
        if self._tx is not None:
            self._tx.rollback()
            self._tx = None

    async def ack(self, tx: Transaction | None = None) -> None:
        """It is handled; returns when that is durable, with everything the transaction wrote."""
        check_not_in_transaction(self._store, but=tx)
        self._cancel_ack_timer()
        transaction = None if tx is None else tx.close()
        if transaction is not None and transaction.is_timed_out:
            lost = TransactionAbortedError("the transaction took too long and was undone")
            self._fail(lost)
            raise lost
        mutation = self._dispatcher.prepare_ack(self._queued, () if tx is None else tx.sends)
        if mutation is None:
            if transaction is not None:
                transaction.finish(None)
            raise TransactionAbortedError("the queue was reloaded; the message is redelivered")
        mutation.waiter = asyncio.get_running_loop().create_future()
        if transaction is None:
            self._dispatcher.submit(mutation)
        else:
            self._dispatcher.track(mutation)
            transaction.finish(mutation)
        await mutation.waiter
        self._span.end()

    def nack(self, reason: str = "", *, delay: float | None = None) -> None:
        """It could not be handled: it comes again later, or is a dead letter after too often."""
        self._cancel_ack_timer()
        self._rollback()
        self._fail(NackedError(reason or "not acknowledged"), delay)

    def release(self) -> None:
        """Give it back at once, as if it had not been pulled."""
        self._cancel_ack_timer()
        self._rollback()
        self._dispatcher.requeue(self._queued)
