"""Cells: objects with an address that messages are sent to."""

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
"""What a plain function that is a cell looks like."""


class Cell(ABC):
    """Handles the messages to one address, one after the other.

        class Echo(Cell):
            def received(self, message):
                return message.body

        await domain.add(Echo("echo"))

    Args:
        name: its name within the domain.
        consume: queues whose messages it takes, each message being for one consumer.
        subscribe: topics whose messages it gets a copy of.
        concurrency: how many messages it works on at a time; with more than one, order is lost.
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
    """Whether it belongs to the domain itself and stops after all others."""

    # What a cell is made for.

    @abstractmethod
    def handle(self, message: CellMessage) -> Any:
        """Handle a message, now or as a coroutine; what is returned is the reply to a call.

        Bytes, text and plain values can be returned. What is raised is told to the caller. It runs
        on the event loop and must not block.
        """

    def should_forward(self, message: CellMessage) -> bool:
        """Whether a message that has further hops to go is sent on; by default it is."""
        return True

    async def on_start(self) -> None:  # noqa: B027 - most cells need none
        """Called before it can be reached; it can send already."""

    async def on_stop(self) -> None:  # noqa: B027 - most cells need none
        """Called when nothing reaches it any more."""

    def describe(self) -> str:
        """A line on what it does, for `ps` and `info`."""
        return (type(self).__doc__ or type(self).__name__).strip().split("\n")[0]

    def on_command(self, line: str) -> str | Awaitable[str]:
        """Answer an operator's command."""
        return run_command(self, line)

    def is_read(self, line: str) -> bool:
        """Whether a command only looks; a cell with another `commanded` has to say so itself."""
        return type(self).on_command is Cell.on_command and is_read_command(self, line)

    # What a cell can do.

    @property
    def domain(self) -> CellDomain:
        """The domain it is in."""
        if self._domain is None:
            raise UsageError(f"cell {self.name!r} is in no domain: add() it to one")
        return self._domain

    @property
    def address(self) -> CellAddress:
        """Its full address."""
        return CellAddress(self.name, self.domain.name)

    def attach(self, domain: CellDomain | None) -> None:
        """Called by the domain that takes it in, and with None when it lets it go."""
        if domain is not None and self._domain is not None:
            raise UsageError(f"cell {self.name!r} is in domain {self._domain.name} already")
        self._domain = domain

    async def send(self, destination: Destination, body: Any = b"", **options: Any) -> None:
        """Send a message from this cell; see `CellDomain.send`."""
        await self.domain.send(destination, body, sender=self.address, **options)

    def send_nowait(self, destination: Destination, body: Any = b"", **options: Any) -> None:
        """Send a message from this cell without waiting; see `CellDomain.tell`."""
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
    """A plain function as a cell."""

    def __init__(self, name: str, handler: CellHandler, **options: Any) -> None:
        super().__init__(name, **options)
        if not callable(handler):
            raise ConfigError(f"the handler of cell {name!r} must be callable, not {handler!r}")
        self._handler = handler

    def handle(self, message: CellMessage) -> Any:
        """Call the function."""
        return self._handler(message)

    def describe(self) -> str:
        """The first line of the function's documentation, or its name."""
        text = (getattr(self._handler, "__doc__", None) or "").strip()
        return text.split("\n")[0] or getattr(self._handler, "__qualname__", repr(self._handler))


def _names(names: Iterable[str]) -> Iterable[str]:
    if isinstance(names, str):
        raise ConfigError(f"several names are needed, not the text {names!r}")
    return names
