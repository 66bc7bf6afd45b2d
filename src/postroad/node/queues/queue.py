"""Durable queues whose messages have a type."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, NoReturn, TypeVar, Unpack, overload

from postroad.core.errors import UsageError
from postroad.durable import SendOptions, SyncTransaction, Transaction
from postroad.durable.names import validate_queue_name
from postroad.durable.transaction import current_thread_call
from postroad.node.current import current_node

from .codec import Codec, type_name

T = TypeVar("T")


class Queue(Generic[T]):
    """A durable queue, and the type of its messages.

        orders = Queue("orders", Order)
        await orders.send(Order("tea", 2))

    Without a type messages are bytes. A queue holds no connection and no state: one at the top of
    a module serves every node of the process, and code of a node sends as that node.

    Attributes:
        name: as operators see it.
        to: the node that has the queue; None for the one that sends.
    """

    __slots__ = ("codec", "name", "to")

    codec: Codec[T]

    @overload
    def __init__(self: Queue[bytes], name: str, *, to: str | None = None) -> None: ...
    @overload
    def __init__(self, name: str, kind: type[T], *, to: str | None = None) -> None: ...
    def __init__(self, name: str, kind: type = bytes, *, to: str | None = None) -> None:
        self.name = validate_queue_name(name)
        self.codec = Codec(kind)
        self.to = to

    @overload
    def send(
        self,
        value: T,
        *,
        to: str | None = None,
        tx: SyncTransaction,
        **options: Unpack[SendOptions],
    ) -> int: ...
    @overload
    def send(
        self,
        value: T,
        *,
        to: str | None = None,
        tx: Transaction | None = None,
        **options: Unpack[SendOptions],
    ) -> Coroutine[Any, Any, int]: ...
    def send(
        self,
        value: T,
        *,
        to: str | None = None,
        tx: Transaction | SyncTransaction | None = None,
        **options: Unpack[SendOptions],
    ) -> Coroutine[Any, Any, int] | int:
        """Send a value and return the message's id once it cannot be lost any more.

        In a plain `def` that a node runs it waits by itself, without `await`.

        Args:
            value: what the consumer gets.
            to: the node that has the queue, instead of the queue's own `to`.
            tx: send only if this transaction commits, and with it; awaiting that adds nothing.
            options: see `SendOptions`.

        Raises:
            UsageError: the value is not of the queue's type, or no node runs this code.
        """
        queues = current_node().queues
        body = self.codec.encode(value)
        to = self.to if to is None else to
        if tx is None:
            if options:
                sending = queues.send(self.name, body, to=to, **options)
            else:  # Handing on no options would take as long as encoding the value.
                sending = queues.send(self.name, body, to=to)
            call = current_thread_call()
            return sending if call is None else call.wait_for(sending)
        if not isinstance(tx, Transaction | SyncTransaction):
            raise UsageError(
                f"tx={tx!r} is no transaction: pass the one that the consumer or step was given, "
                "or that of `async with node.queues.transaction() as tx`"
            )
        id = tx.send(self.name, body, to=to, **options)
        return id if isinstance(tx, SyncTransaction) else _Sent(id)

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {type_name(self.codec.kind)})"


class _Sent(Coroutine[Any, Any, int]):
    """The id of a message that is in a transaction already, whether this is awaited or not."""

    __slots__ = ("_id",)

    def __init__(self, id: int) -> None:
        self._id = id

    def __await__(self) -> Generator[Any, Any, int]:
        return self._id
        yield

    def send(self, value: None, /) -> NoReturn:
        raise StopIteration(self._id)

    def close(self) -> None:
        """Nothing: it holds nothing that has to be let go."""

    def throw(self, error: Any, /, *_: Any) -> NoReturn:
        raise error
