"""Transactions: statements and sends that are committed together with a message.

`Transaction` is for coroutines. `SyncTransaction` is for plain functions, which run in threads.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context, ContextVar
from functools import lru_cache
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from postroad.core.errors import StoreError, UsageError
from postroad.durable.consumers.message import Message
from postroad.durable.injection import name_of
from postroad.durable.producer import (
    EncodedMessage,
    MessageEncoder,
    OutgoingMessage,
    SendOptions,
    StartableFlow,
)
from postroad.durable.store import Store
from postroad.durable.store.backends.backend import DatabaseRow
from postroad.durable.store.savepoints import (
    SavepointTransaction,
    TransactionScope,
    check_not_in_transaction,
)
from postroad.durable.store.sqlalchemy_session import check_sqlalchemy_installed
from postroad.durable.store.worker_threads import ThreadRunner

P = ParamSpec("P")
T = TypeVar("T")


class Transaction(TransactionScope, eq=False):
    """Statements on the application's tables, and sends, that are committed together."""

    store: Store
    _encoder: MessageEncoder
    _savepoint: SavepointTransaction | None = None
    _starting: asyncio.Future[SavepointTransaction] | None = None
    # Created when needed: most handlers send nothing.
    _sends: list[EncodedMessage] | None = None

    async def execute(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[DatabaseRow]:
        """Run a statement on the database of the store and return its rows.

        From the first statement to the end of the transaction no other commit runs, so do slow
        work before it.
        """
        self._check()
        transaction = await self._start()
        return await transaction.execute(statement, parameters)

    async def run_sync(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a plain function with a DB-API 2 connection to the database of the store.

            await tx.run_sync(book, 20)  # calls book(connection, 20)

        Its statements are part of the transaction; if it raises, they are rolled back. It runs in
        the thread of the store, so it blocks only commits. The connection is one of `sqlite3` or
        `psycopg`; it cannot commit, and cannot be used after the function has returned.
        """
        self._check()
        _check_plain(function)
        transaction = await self._start()
        return await transaction.call(lambda connection: function(connection, *args, **kwargs))

    async def run_in_session(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a plain function with a `Session` of SQLAlchemy 2 instead of the connection.

        `session.commit()` and `session.rollback()` act on a savepoint within the transaction. The
        rest of the session is kept when the function returns.

        Raises:
            MissingExtraError: the `sqlalchemy` extra is not installed.
        """
        self._check()
        _check_plain(function)
        check_sqlalchemy_installed()
        transaction = await self._start()
        return await transaction.call_with_session(
            lambda session: function(session, *args, **kwargs)
        )

    async def _start(self) -> SavepointTransaction:
        if self._savepoint is None:
            # All statements share it, also if several start at the same time.
            if self._starting is None:
                check_not_in_transaction(self.store, but=self)
                waiting = (
                    self.store.begin_transaction()
                    if self._waits is None
                    else self._start_when_idle()
                )
                self._starting = asyncio.ensure_future(waiting)
            self._savepoint = await asyncio.shield(self._starting)
        self.enter()
        return self._savepoint

    async def _start_when_idle(self) -> SavepointTransaction:
        # The caller's pending commits could not complete once this transaction has started.
        await self.wait_until_idle()
        return await self.store.begin_transaction()

    def send(
        self,
        queue: str,
        body: bytes,
        *,
        to: str | None = None,
        reply_to: str | None = None,
        **options: Unpack[SendOptions],
    ) -> int:
        """Send a message if the transaction commits; returns its id.

        The arguments are those of `DurableQueues.send`.
        """
        return self.send_message(
            OutgoingMessage(queue=queue, body=body, to=to, reply_to=reply_to, **options)
        )

    def send_message(self, message: OutgoingMessage) -> int:
        """Send a message if the transaction commits; returns its id."""
        self._check()
        return self._add(self._encoder.encode_traced(message))

    def reply(
        self, message: Message, body: bytes, *, headers: Mapping[str, str] | None = None
    ) -> int:
        """Reply to a message if the transaction commits; returns the id of the reply."""
        self._check()
        if message.reply_to is None:
            raise UsageError(f"cannot reply to {message!r}: it was sent without `reply_to`")
        reply = OutgoingMessage(
            queue=message.reply_to, body=body, to=message.sender, headers=headers
        )
        return self._add(self._encoder.encode_traced(reply, in_reply_to=message.id))

    # Flows.

    def start_flow(self, definition: StartableFlow[P], *args: P.args, **kwargs: P.kwargs) -> str:
        """Start a flow of this node if the transaction commits; returns its client id.

        `flows.get_by_client_id` finds it once it was started, soon after the commit.

        Raises:
            UsageError: the arguments do not fit, or this node runs no flows.
        """
        return self._start_flow(None, definition, args, kwargs)

    def start_flow_with_id(
        self, client_id: str, definition: StartableFlow[P], *args: P.args, **kwargs: P.kwargs
    ) -> str:
        """Start a flow if the transaction commits, unless one was started under that id."""
        return self._start_flow(client_id, definition, args, kwargs)

    def _start_flow(
        self,
        client_id: str | None,
        definition: StartableFlow[...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> str:
        requests = self._encoder.flow_requests
        client_id, message = requests.start(client_id, definition, args, kwargs)
        self.send_message(message)
        return client_id

    def signal(self, flow: str, name: str, value: Any = None) -> None:
        """Send a signal to a flow of this node if the transaction commits.

        A signal that the flow cannot take becomes a dead letter.

        Args:
            flow: the client id it was started with, or its own id.
            name: the signal that the code of the flow waits for.
            value: comes with the signal.
        """
        self.send_message(self._encoder.flow_requests.signal(flow, name, value))

    def _add(self, message: EncodedMessage) -> int:
        if self._sends is None:
            self._sends = [message]
        else:
            self._sends.append(message)
        return message.id

    def _check(self) -> None:
        if self.is_finished:
            raise UsageError("the transaction is over")

    # For its creator.

    @property
    def is_open(self) -> bool:
        """Whether it has statements, and others wait for its end."""
        if self._starting is None or self.is_finished or self.is_unavailable:
            return False
        return self._savepoint is None or not self._savepoint.is_finished

    @property
    def is_unavailable(self) -> bool:
        """Whether the store could not start the transaction."""
        start = self._starting
        if start is None or not start.done() or start.cancelled():
            return False
        return isinstance(start.exception(), StoreError)

    @property
    def sends(self) -> Sequence[EncodedMessage]:
        """The messages to be sent."""
        return self._sends or ()

    def close_if_unused(self) -> bool:
        """Close the transaction and return True if it was not used."""
        if self._starting is None and self._sends is None:
            self.is_finished = True
            return True
        return False

    def close(self) -> SavepointTransaction | None:
        """Close the transaction; return the one in the store if it had statements."""
        self.is_finished = True
        if self._savepoint is None and self._starting is not None:
            # Its start is not awaited any more.
            self._starting.add_done_callback(_abandon_start)
        return self._savepoint

    def rollback(self) -> None:
        """Close the transaction and roll everything back."""
        transaction = self.close()
        if transaction is not None and not transaction.is_timed_out:
            transaction.finish(None)


def _abandon_start(start: asyncio.Future[SavepointTransaction]) -> None:
    if not start.cancelled() and start.exception() is None:
        start.result().finish(None)


def _check_plain(function: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(function):
        raise UsageError(
            f"{function!r} is a coroutine function, and a connection is lent to plain functions; "
            "in coroutines use `await tx.execute(...)`"
        )


# Transactions of plain functions, which run in threads.


class SyncTransaction:
    """A `Transaction` for a plain `def`, which runs in a thread: its methods block.

    @consumer(orders)
    def bill(order: Order, tx: SyncTransaction) -> None:
        tx.execute("INSERT INTO bills VALUES (?)", (order.item,))
        invoices.send(order, tx=tx)
    """

    __slots__ = ("_call", "_tx", "reply", "send", "send_message", "signal")

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._call = ThreadCall(asyncio.get_running_loop())
        # These methods do not wait.
        self.send = tx.send
        self.send_message = tx.send_message
        self.reply = tx.reply
        self.signal = tx.signal

    def start_flow(self, definition: StartableFlow[P], *args: P.args, **kwargs: P.kwargs) -> str:
        """Start a flow if the transaction commits: see `Transaction.start_flow`."""
        return self._tx.start_flow(definition, *args, **kwargs)

    def start_flow_with_id(
        self, client_id: str, definition: StartableFlow[P], *args: P.args, **kwargs: P.kwargs
    ) -> str:
        """Start a flow unless the id is taken: see `Transaction.start_flow_with_id`."""
        return self._tx.start_flow_with_id(client_id, definition, *args, **kwargs)

    def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> list[DatabaseRow]:
        """Run a statement and return its rows: see `Transaction.execute`."""
        return self._call.wait_for(self._tx.execute(statement, parameters))

    def run_sync(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function with a DB-API 2 connection: see `Transaction.run_sync`."""
        return self._call.wait_for(self._tx.run_sync(function, *args, **kwargs))

    def run_in_session(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function with a `Session` of SQLAlchemy: see `Transaction.run_in_session`."""
        return self._call.wait_for(self._tx.run_in_session(function, *args, **kwargs))


class ThreadCall:
    """A call of a plain function in a thread.

    Attributes:
        forgotten: names of the coroutines that it created and did not await.
    """

    __slots__ = ("_loop", "forgotten")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.forgotten: list[str] = []

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the node and return its result.

        Raises:
            UsageError: called on the event loop, which would deadlock.
        """
        if asyncio._get_running_loop() is None and _CURRENT.get() is not None:
            if not _is_simulated(self._loop):
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
            reason = "the simulator has no threads, so a plain `def` cannot wait in it"
        else:
            reason = "only the plain `def` that it was passed to can wait with it, in its thread"
        name = name_of(coroutine)
        coroutine.close()
        raise UsageError(f"{name}() cannot wait here: {reason}; write an `async def`, and await it")


_CURRENT: ContextVar[ThreadCall | None] = ContextVar("postroad_thread_call", default=None)


def current_thread_call() -> ThreadCall | None:
    """Return the current call of a plain function in its thread; None elsewhere."""
    call = _CURRENT.get()
    return None if call is None or asyncio._get_running_loop() is not None else call


def call_in_thread(
    threads: ThreadRunner,
    context: Context,
    function: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> asyncio.Future[T]:
    """Call a plain function in a thread; fails if it does not await a coroutine."""
    _collect_forgotten()
    call = ThreadCall(asyncio.get_running_loop())
    return threads.run(context.run, _run, call, function, args, kwargs or {})


def _run(
    call: ThreadCall, function: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> T:
    _CURRENT.set(call)
    result = function(*args, **kwargs)
    if call.forgotten:
        names = ", ".join(f"{name}()" for name in call.forgotten)
        raise UsageError(
            f"{name_of(function)} is a plain `def` and called {names}, which did nothing because "
            "nothing awaited it: make it an `async def` and await, or call no coroutine functions"
        )
    return result


def _is_simulated(loop: asyncio.AbstractEventLoop) -> bool:
    # By name: the simulator is above this layer.
    return type(loop).__name__ == "SimLoop"


@lru_cache(maxsize=1)
def _collect_forgotten() -> None:
    """Report coroutines that were never awaited to the plain function that created them."""
    # The interpreter looks this name up when it drops a coroutine that was never awaited.
    warn = getattr(warnings, "_warn_unawaited_coroutine", None)
    if warn is None:
        return

    def collect(coroutine: Coroutine[Any, Any, object]) -> None:
        call = _CURRENT.get()
        if call is None:
            warn(coroutine)
        else:
            call.forgotten.append(name_of(coroutine))

    setattr(warnings, "_warn_unawaited_coroutine", collect)  # noqa: B010
