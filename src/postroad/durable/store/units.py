"""What is committed together or not at all."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from .ledger import Ledger

T = TypeVar("T")


class Unit(ABC):
    """A change of the store. Many units share one commit.

    Attributes:
        size: about how much memory it takes while it waits.
        error: why it alone was not done, set while it is applied.
    """

    __slots__ = ("error", "size")

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.error: Exception | None = None

    @abstractmethod
    def apply(self, ledger: Ledger) -> None:
        """Make the change, in the thread of the store; may raise only if nothing was changed."""

    @abstractmethod
    def settle(self, error: Exception | None) -> None:
        """Hear what came of it, on the event loop."""


class Work(Unit, Generic[T]):
    """A function that changes the store, for those who wait for its result."""

    __slots__ = ("_function", "_result", "done")

    def __init__(self, function: Callable[[Ledger], T], size: int = 0) -> None:
        super().__init__(size)
        self._function = function
        self._result: T
        self.done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def apply(self, ledger: Ledger) -> None:
        self._result = self._function(ledger)

    def settle(self, error: Exception | None) -> None:
        if self.done.done():
            # Whoever waited for it gave up.
            return
        if error is None:
            self.done.set_result(self._result)
        else:
            self.done.set_exception(error)
