"""What is written through a transaction happens as a whole, with the message it belongs to."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from postroad.core.errors import StoreError, UsageError
from postroad.durable.consumers.message import Message
from postroad.durable.producer import EncodedMessage, MessageEncoder, OutgoingMessage
from postroad.durable.store import Store
from postroad.durable.store.backends.backend import DatabaseRow
from postroad.durable.store.savepoints import (
    SavepointTransaction,
    TransactionScope,
    check_not_in_transaction,
)
from postroad.durable.store.sqlalchemy_session import check_sqlalchemy_installed

P = ParamSpec("P")
T = TypeVar("T")


class Transaction(TransactionScope, eq=False):
    """Collects what shall be done together: rows of the user's own tables, and further posts."""

    store: Store
    _encoder: MessageEncoder
    _savepoint: SavepointTransaction | None = None
    _starting: asyncio.Future[SavepointTransaction] | None = None
    # Made when it is needed: most handlers post nothing.
    _sends: list[EncodedMessage] | None = None

    async def execute(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[DatabaseRow]:
        """Run a statement on the database of the store and return its rows.

        From the first statement to the end of the transaction nobody else commits, so do slow
        things before it.
        """
        self._check()
        transaction = await self._start()
        return await transaction.execute(statement, parameters)

    async def run_sync(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a plain function with a DB-API 2 connection to the database of the store.

            await tx.run(book, 20)  # calls book(connection, 20)

        What it does is part of the transaction; if it raises, that much is undone. It runs in the
        thread of the store, so it blocks nobody but whoever commits. The connection is that of
        `sqlite3` or `psycopg`, but it cannot commit, and is of no use once the function has ended.
        """
        self._check()
        _check_plain(function)
        transaction = await self._start()
        return await transaction.call(lambda connection: function(connection, *args, **kwargs))

    async def run_in_session(
        self, function: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same with a `Session` of SQLAlchemy 2 in place of the connection.

        `session.commit()` and `session.rollback()` keep or undo what the session did since the
        last of them, within the transaction. What is left is kept when the function returns.

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
            # One for all statements, also if several are begun at the same time.
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
        # What its caller waits for could not be committed once it has its turn.
        await self.wait_until_idle()
        return await self.store.begin_transaction()

    def send(
        self,
        queue: str,
        body: bytes,
        *,
        to: str | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        reply_to: str | None = None,
    ) -> int:
        """Send a message if the transaction commits; returns its id.

        The arguments are those of `DurableQueues.send`.
        """
        message = OutgoingMessage(
            queue=queue,
            body=body,
            to=to,
            key=key,
            idempotency_key=idempotency_key,
            delay=delay,
            ttl=ttl,
            priority=priority,
            headers=headers,
            reply_to=reply_to,
        )
        return self.send_message(message)

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

    def _add(self, post: EncodedMessage) -> int:
        if self._sends is None:
            self._sends = [post]
        else:
            self._sends.append(post)
        return post.id

    def _check(self) -> None:
        if self.is_finished:
            raise UsageError("the transaction is over")

    # For those who made it.

    @property
    def is_open(self) -> bool:
        """Whether it has statements, and others wait for its end."""
        if self._starting is None or self.is_finished or self.is_unavailable:
            return False
        return self._savepoint is None or not self._savepoint.is_finished

    @property
    def is_unavailable(self) -> bool:
        """Whether the store could not even begin with its statements."""
        start = self._starting
        if start is None or not start.done() or start.cancelled():
            return False
        return isinstance(start.exception(), StoreError)

    @property
    def sends(self) -> Sequence[EncodedMessage]:
        """What is to be posted."""
        return self._sends or ()

    def close_if_unused(self) -> bool:
        """Take nothing more, if nothing was done with it; otherwise False."""
        if self._starting is None and self._sends is None:
            self.is_finished = True
            return True
        return False

    def close(self) -> SavepointTransaction | None:
        """Take nothing more; what its statements ran in, if there were any."""
        self.is_finished = True
        if self._savepoint is None and self._starting is not None:
            # Nobody waits for it any more.
            self._starting.add_done_callback(_abandon_start)
        return self._savepoint

    def rollback(self) -> None:
        """Give up everything."""
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
