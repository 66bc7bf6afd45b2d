"""Cells: message handlers with an address."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from postroad.cells.addresses import CellAddress, validate_cell_name
from postroad.cells.messages import CellMessage
from postroad.cells.shell.commands import is_read_command, run_command
from postroad.core.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from postroad.cells.domain import CellDomain
    from postroad.cells.sender import Destination

CellHandler: TypeAlias = Callable[[CellMessage], Any | Awaitable[Any]]
"""A plain function that handles the messages of a FunctionCell."""


class Cell(ABC):
    """Handler of the messages to one address, by default one message at a time.

        class Echo(Cell):
            def handle(self, message):
                return message.body

        await domain.add_cell(Echo("echo"))

    Args:
        name: name of the cell within its domain.
        consume: queues to consume; each message of a queue goes to one consumer.
        subscribe: topics to subscribe to; each subscriber gets a copy.
        concurrency: messages handled at a time, 1 by default; above 1, order is lost.

    Raises:
        ConfigError: a name is invalid, or `concurrency` is below 1.
    """

    def __init__(
        self,
        name: str,
        *,
        consume: Iterable[str] = (),
        subscribe: Iterable[str] = (),
        concurrency: int = 1,
    ) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency={concurrency} of cell {name!r} must be 1 or more")
        self.name = validate_cell_name(name)
        self.queues = tuple(validate_cell_name(queue) for queue in _names(consume))
        self.topics = tuple(validate_cell_name(topic) for topic in _names(subscribe))
        self.concurrency = concurrency
        self._domain: CellDomain | None = None

    is_system = False
    """Whether the cell belongs to the domain itself and stops after all others."""

    # For subclasses to implement.

    @abstractmethod
    def handle(self, message: CellMessage) -> Any:
        """Handle a message, as a plain function or a coroutine; the return value is the reply.

        Bytes, text and plain values can be returned. An exception is sent to the caller as an
        error reply. The handler runs on the event loop and must not block.
        """

    def should_forward(self, message: CellMessage) -> bool:
        """Return whether to forward a message with further hops; by default True."""
        return True

    async def on_start(self) -> None:  # noqa: B027 - most cells need none
        """Prepare the cell; called before messages reach it. It can send already."""

    async def on_stop(self) -> None:  # noqa: B027 - most cells need none
        """Clean up; called when no message can reach the cell any more."""

    def describe(self) -> str:
        """Return a one-line description of the cell, for `ps` and `info`."""
        return (type(self).__doc__ or type(self).__name__).strip().split("\n")[0]

    def on_command(self, line: str) -> str | Awaitable[str]:
        """Run a command of an operator and return its output."""
        return run_command(self, line)

    def is_read(self, line: str) -> bool:
        """Return whether a command is read-only; override it together with `on_command`."""
        return type(self).on_command is Cell.on_command and is_read_command(self, line)

    # For subclasses to call.

    @property
    def domain(self) -> CellDomain:
        """The domain of the cell; raises UsageError before it is added to one."""
        if self._domain is None:
            raise UsageError(f"cell {self.name!r} has no domain: add it with domain.add_cell()")
        return self._domain

    @property
    def address(self) -> CellAddress:
        """Full address of the cell."""
        return CellAddress(self.name, self.domain.name)

    def attach(self, domain: CellDomain | None) -> None:
        """Set the domain of the cell, or None when it is removed; called by the domain."""
        if domain is not None and self._domain is not None:
            raise UsageError(
                f"cannot add cell {self.name!r}: domain {self._domain.name} has it already"
            )
        self._domain = domain

    async def send(self, destination: Destination, body: Any = b"", **options: Any) -> None:
        """Send a message from this cell; see `CellDomain.send`."""
        await self.domain.send(destination, body, sender=self.address, **options)

    def send_nowait(self, destination: Destination, body: Any = b"", **options: Any) -> None:
        """Send a message from this cell without waiting; see `CellDomain.send_nowait`."""
        self.domain.send_nowait(destination, body, sender=self.address, **options)

    def publish(self, topic: str, body: Any = b"", **options: Any) -> None:
        """Send a copy to every subscriber of a topic; see `CellDomain.publish`."""
        self.domain.publish(topic, body, sender=self.address, **options)

    async def call(self, destination: Destination, body: Any = b"", **options: Any) -> Any:
        """Send a request from this cell and return the reply; see `CellDomain.call`."""
        return await self.domain.call(destination, body, sender=self.address, **options)

    def __repr__(self) -> str:
        where = "" if self._domain is None else f"@{self._domain.name}"
        return f"<{type(self).__name__} {self.name}{where}>"


class FunctionCell(Cell):
    """Cell whose handler is a plain function."""

    def __init__(self, name: str, handler: CellHandler, **options: Any) -> None:
        super().__init__(name, **options)
        if not callable(handler):
            raise ConfigError(f"the handler of cell {name!r} must be callable, not {handler!r}")
        self._handler = handler

    def handle(self, message: CellMessage) -> Any:
        """Call the function."""
        return self._handler(message)

    def describe(self) -> str:
        """Return the first line of the docstring of the function, or its name."""
        text = (getattr(self._handler, "__doc__", None) or "").strip()
        return text.split("\n")[0] or getattr(self._handler, "__qualname__", repr(self._handler))


def _names(names: Iterable[str]) -> Iterable[str]:
    if isinstance(names, str):
        raise ConfigError(f"expected a list of names, not the string {names!r}")
    return names
