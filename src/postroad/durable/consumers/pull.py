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
    """The default reason of a nack."""


class PulledMessage(Message, eq=False):
    """A message to be acknowledged; without an ack it is redelivered after `ack_timeout_s`.

    for message in await queues.pull("orders"):
        await message.ack()
    """

    _dispatcher: QueueDispatcher
    _store: Store
    _encoder: MessageEncoder
    _ack_timeout_s: float
    _tx: Transaction | None = None
    _ack_timer: asyncio.TimerHandle | None = None
    # From the pull to the ack, nack, release or timeout.
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
        """A transaction that commits with the ack; otherwise it is rolled back."""
        self._rollback()
        self._tx = Transaction(self._store, self._encoder)
        return self._tx

    def _rollback(self) -> None:
        if self._tx is not None:
            self._tx.rollback()
            self._tx = None

    async def ack(self, tx: Transaction | None = None) -> None:
        """Acknowledge; returns when the ack and the transaction are durable."""
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
        """Report a failure: the message is redelivered later, or becomes a dead letter."""
        self._cancel_ack_timer()
        self._rollback()
        self._fail(NackedError(reason or "not acknowledged"), delay)

    def release(self) -> None:
        """Return the message to the queue at once, as if it had not been pulled."""
        self._cancel_ack_timer()
        self._rollback()
        self._dispatcher.requeue(self._queued)
