"""What is written through a transaction happens as a whole, with the message it belongs to."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from postroad.core.errors import StoreError, UsageError

from .message import Message
from .posting import Clerk, Draft, Post
from .store import Store
from .store.database import Row
from .store.orm import check_installed
from .store.turn import Scope, Turn, check_not_inside

P = ParamSpec("P")
T = TypeVar("T")


class Transaction(Scope, eq=False):
    """Collects what shall be done together: rows of the user's own tables, and further posts."""

    store: Store
    _clerk: Clerk
    _turn: Turn | None = None
    _beginning: asyncio.Future[Turn] | None = None
    # Made when it is needed: most handlers post nothing.
    _posts: list[Post] | None = None

    async def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> list[Row]:
        """Run a statement on the database of the store and return its rows.

        From the first statement to the end of the transaction nobody else commits, so do slow
        things before it.
        """
        self._check()
        turn = await self._begin()
        return await turn.execute(statement, parameters)

    async def run(
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
        turn = await self._begin()
        return await turn.call(lambda connection: function(connection, *args, **kwargs))

    async def run_session(
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
        check_installed()
        turn = await self._begin()
        return await turn.call_with_session(lambda session: function(session, *args, **kwargs))

    async def _begin(self) -> Turn:
        if self._turn is None:
            # One for all statements, also if several are begun at the same time.
            if self._beginning is None:
                check_not_inside(self.store, but=self)
                waiting = self.store.begin() if self._calls is None else self._wait_for_turn()
                self._beginning = asyncio.ensure_future(waiting)
            self._turn = await asyncio.shield(self._beginning)
        self.enter()
        return self._turn

    async def _wait_for_turn(self) -> Turn:
        # What its caller waits for could not be committed once it has its turn.
        await self.wait_until_idle()
        return await self.store.begin()

    def post(
        self,
        peer: str,
        queue: str,
        body: bytes,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        reply_to: str | None = None,
    ) -> int:
        """Post a message if the transaction succeeds; returns its id."""
        self._check()
        headers = self._clerk.traced(peer, queue, headers)
        post = self._clerk.post(
            peer, queue, body, key, idempotency_key, delay, ttl, priority, headers, reply_to
        )
        return self._add(post)

    def post_draft(self, draft: Draft) -> int:
        """Post a draft if the transaction succeeds; returns its id."""
        self._check()
        return self._add(self._clerk.draft(draft))

    def reply(
        self, message: Message, body: bytes, *, headers: Mapping[str, str] | None = None
    ) -> int:
        """Answer a message whose sender wants that."""
        self._check()
        if message.reply_to is None:
            raise UsageError(f"{message!r} wants no reply")
        headers = self._clerk.traced(message.sender, message.reply_to, headers)
        post = self._clerk.post(
            message.sender, message.reply_to, body, headers=headers, answers=message.id
        )
        return self._add(post)

    def _add(self, post: Post) -> int:
        if self._posts is None:
            self._posts = [post]
        else:
            self._posts.append(post)
        return post.id

    def _check(self) -> None:
        if self.is_over:
            raise UsageError("the transaction is over")

    # For those who made it.

    @property
    def has_begun(self) -> bool:
        """Whether it has statements, and others wait for its end."""
        if self._beginning is None or self.is_over or self.is_unavailable:
            return False
        return self._turn is None or not self._turn.is_over

    @property
    def is_unavailable(self) -> bool:
        """Whether the store could not even begin with its statements."""
        beginning = self._beginning
        if beginning is None or not beginning.done() or beginning.cancelled():
            return False
        return isinstance(beginning.exception(), StoreError)

    @property
    def posts(self) -> Sequence[Post]:
        """What is to be posted."""
        return self._posts or ()

    def close_untouched(self) -> bool:
        """Take nothing more, if nothing was done with it; otherwise False."""
        if self._beginning is None and self._posts is None:
            self.is_over = True
            return True
        return False

    def close(self) -> Turn | None:
        """Take nothing more; what its statements ran in, if there were any."""
        self.is_over = True
        if self._turn is None and self._beginning is not None:
            # Nobody waits for it any more.
            self._beginning.add_done_callback(_give_up)
        return self._turn

    def undo(self) -> None:
        """Give up everything."""
        turn = self.close()
        if turn is not None and not turn.is_lost:
            turn.end(None)


def _give_up(beginning: asyncio.Future[Turn]) -> None:
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result().end(None)


def _check_plain(function: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(function):
        raise UsageError(
            f"{function!r} is a coroutine function, and a connection is lent to plain functions; "
            "in coroutines use `await tx.execute(...)`"
        )
