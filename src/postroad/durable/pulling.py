"""Messages that are pulled, and acknowledged one by one."""

from __future__ import annotations

import asyncio

from postroad.core.errors import TransactionAbortedError, UsageError
from postroad.core.tracing import NOOP_SPAN, SpanLike

from .consumption import Consumption
from .message import Message
from .posting import Clerk
from .store import Store
from .store.turn import check_not_inside
from .traces import handling
from .transaction import Transaction


class Nacked(Exception):
    """The reason told when a message is given back without one."""


class Pulled(Message, eq=False):
    """A message that waits to be acknowledged; after a while it is given to somebody else.

    for message in await mail.pull("orders"):
        await message.ack()
    """

    _consumption: Consumption
    _store: Store
    _clerk: Clerk
    _lease_s: float
    _tx: Transaction | None = None
    _lease: asyncio.TimerHandle | None = None
    # From the pulling to the end of the lease, however that comes.
    _span: SpanLike = NOOP_SPAN

    def __post_init__(self) -> None:
        self._span = handling(self._clerk.node, self._entry)
        self._lease = asyncio.get_running_loop().call_later(self._lease_s, self._expire)

    def _expire(self) -> None:
        self._lease = None
        self._undo()
        self._fail(TimeoutError("it was pulled and not acknowledged"))

    def _fail(self, error: Exception, pause_s: float | None = None) -> None:
        self._span.end(error)
        self._consumption.fail(self._entry, error, pause_s)

    def _end_lease(self) -> None:
        if self._lease is None:
            raise UsageError(f"{self!r} is not yours any more")
        self._lease.cancel()
        self._lease = None

    def begin(self) -> Transaction:
        """A transaction to acknowledge it in; it is undone if the message is not."""
        self._undo()
        self._tx = Transaction(self._store, self._clerk)
        return self._tx

    def _undo(self) -> None:
        if self._tx is not None:
            self._tx.undo()
            self._tx = None

    async def ack(self, tx: Transaction | None = None) -> None:
        """It is handled; returns when that is durable, with everything the transaction wrote."""
        check_not_inside(self._store, but=tx)
        self._end_lease()
        turn = None if tx is None else tx.close()
        if turn is not None and turn.is_lost:
            lost = TransactionAbortedError("the transaction took too long and was undone")
            self._fail(lost)
            raise lost
        unit = self._consumption.finish(self._entry, () if tx is None else tx.posts)
        if unit is None:
            if turn is not None:
                turn.end(None)
            raise TransactionAbortedError("the queue is read again; the message comes once more")
        unit.waiter = asyncio.get_running_loop().create_future()
        if turn is None:
            self._consumption.submit(unit)
        else:
            self._consumption.expect(unit)
            turn.end(unit)
        await unit.waiter
        self._span.end()

    def nack(self, reason: str = "", *, delay: float | None = None) -> None:
        """It could not be handled: it comes again later, or is a dead letter after too often."""
        self._end_lease()
        self._undo()
        self._fail(Nacked(reason or "not acknowledged"), delay)

    def release(self) -> None:
        """Give it back at once, as if it had not been pulled."""
        self._end_lease()
        self._undo()
        self._consumption.give_back(self._entry)
