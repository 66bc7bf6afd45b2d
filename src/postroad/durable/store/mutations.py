"""Mutations: atomic changes of the store."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from postroad.durable.store.tables.rows import InboxBatch
from postroad.durable.store.tables.store_tables import StoreTables

T = TypeVar("T")

logger = logging.getLogger("postroad.durable")


class Mutation(ABC):
    """An atomic change of the store; many mutations share one commit.

    Attributes:
        size: about how much memory it takes while it waits.
        error: why it alone was not done, set while it is applied.
        has_user_statements: whether it belongs to statements of a user, which cannot be repeated.
    """

    __slots__ = ("error", "has_user_statements", "size")

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.error: Exception | None = None
        self.has_user_statements = False

    @abstractmethod
    def apply(self, tables: StoreTables) -> None:
        """Apply the change in the thread of the store; may raise only if nothing was changed."""

    def prepare(self, tables: StoreTables) -> InboxBatch | None:
        """Return the batch that will certainly be stored, for early notice; on the event loop.

        Called at submission if nothing else is being committed or queued: nothing else uses the
        tables until its commit, so it may read their memory and reserve their numbers.
        """
        return None

    def fail(self, error: Exception) -> None:
        """Fail, in the thread of the store: the statements it belongs to were rolled back."""
        self.error = error

    @abstractmethod
    def on_complete(self, error: Exception | None) -> None:
        """Handle the result of the commit, on the event loop."""


Mutations: TypeAlias = Sequence[Mutation]


class FunctionMutation(Mutation, Generic[T]):
    """A function that changes the store, for callers that wait for its result."""

    __slots__ = ("_function", "_result", "done")

    def __init__(self, function: Callable[[StoreTables], T], size: int = 0) -> None:
        super().__init__(size)
        self._function = function
        self._result: T
        self.done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def apply(self, tables: StoreTables) -> None:
        self._result = self._function(tables)

    def on_complete(self, error: Exception | None) -> None:
        if error is None and not self.done.done():
            self.done.set_result(self._result)
        elif error is not None:
            resolve_future(self.done, error)


def complete_all(mutations: Mutations, error: Exception | None) -> None:
    """Call `on_complete` of mutations with their own error, or the common one."""
    for mutation in mutations:
        try:
            mutation.on_complete(mutation.error or error)
        except Exception:
            logger.exception("on_complete of %s failed", type(mutation).__name__)


def resolve_future(done: asyncio.Future[Any], error: Exception | None) -> None:
    """Set the result or the exception of a future, unless it is done or cancelled."""
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
