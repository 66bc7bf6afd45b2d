"""Durable queues whose messages have a type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar, overload

from postroad.core.codec import Codec, type_name
from postroad.durable import Transaction
from postroad.durable.names import validate_queue_name

from .current import current_node

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

    async def send(
        self,
        value: T,
        *,
        to: str | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        tx: Transaction | None = None,
    ) -> int:
        """Send a value and return the message's id once it cannot be lost any more.

        Args:
            value: what the consumer gets.
            to: the node that has the queue, instead of the queue's own `to`.
            key: messages of equal keys are handled one after the other, in this order.
            idempotency_key: sending again with the same key does nothing, for a week.
            delay: seconds before it is handled.
            ttl: seconds after which it is a dead letter instead of being handled.
            priority: higher ones are handled first, also within a key.
            headers: what travels beside the value.
            tx: send only if this transaction commits, and with it.

        Raises:
            UsageError: the value is not of the queue's type, or no node runs this code.
        """
        node = current_node()
        return await node.queues.send(
            self.name,
            self.codec.encode(value),
            to=to or self.to or node.name,
            key=key,
            idempotency_key=idempotency_key,
            delay=delay,
            ttl=ttl,
            priority=priority,
            headers=headers,
            tx=tx,
        )

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {type_name(self.codec.kind)})"
