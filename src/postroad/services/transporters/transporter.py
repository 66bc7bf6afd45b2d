"""What carries packets between nodes, whatever it is made of.

A transporter knows topics and bytes, nothing of what is in them. It connects, subscribes to all
that a node listens to, and from then on keeps the connection by itself: what is lost comes back,
and its listener is told of both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, Protocol

from postroad.core.errors import MessageTooLargeError
from postroad.services.errors import BrokerDisconnectedError
from postroad.services.kinds import Kind
from postroad.services.topics import SEPARATOR, BalancedTopic, Topics


class Listener(Protocol):
    """Who is told what happens. None of these may raise or wait."""

    def received(
        self,
        kind: Kind,
        data: bytes,
        done: Callable[[], None] | None = None,
        sender: str | None = None,
    ) -> None:
        """A packet came.

        `done`, if given, is to be called once when it was dealt with. `sender` is the node that
        sent it, where that is known for certain: a packet that says something else is none.
        """
        ...

    def connected(self, *, is_again: bool) -> None:
        """There is a connection, and all topics are subscribed to."""
        ...

    def disconnected(self, reason: str) -> None:
        """The connection is lost; it will come back by itself."""
        ...

    def node_lost(self, node_id: str, *, is_unexpected: bool) -> None:
        """The connection to one node ended, where there is one for each."""
        ...


class Transporter(ABC):
    """Carries packets. Make one, and give it to a broker; it serves one broker, once."""

    name: ClassVar[str]
    """As in the options of a broker."""
    balances: ClassVar[bool] = False
    """Whether it can give a packet to one of many nodes by itself."""
    beats: ClassVar[bool] = True
    """Whether nodes tell each other by heartbeats that they live; otherwise by gossip."""
    keeps_order: ClassVar[bool] = True
    """Whether packets of one node to another come in the order they were sent."""

    separator: str = SEPARATOR
    """What is between the parts of a topic."""

    topics: Topics
    listener: Listener

    def bind(self, topics: Topics, listener: Listener) -> None:
        """Say for whom it works, before `connect`."""
        self.topics = topics
        self.listener = listener

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether packets can be sent now."""

    @property
    def packet_bytes_max(self) -> int | None:
        """The largest packet it carries; None if it has no limit of its own."""
        return None

    @abstractmethod
    async def connect(self) -> None:
        """Connect, subscribe, and tell the listener; raises OSError if that is not possible now."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Send what was published, as far as that is possible soon, and end the connection."""

    @abstractmethod
    def publish(self, kind: Kind, node_id: str | None, data: bytes) -> None:
        """Send a packet to a node, or to all, without waiting.

        Raises:
            BrokerDisconnectedError: there is no connection, so nothing was sent.
            QueueIsFullError: too much waits to be sent already.
            MessageTooLargeError: it does not carry so much.
        """

    def publish_balanced(self, topic: str, kind: Kind, data: bytes) -> None:
        """Send a packet to one of those who listen to a balanced topic; raises as `publish`."""
        raise BrokerDisconnectedError(f"{self.name} does not balance")

    async def listen_balanced(self, topics: Iterable[BalancedTopic]) -> None:
        """Listen to these balanced topics, and to no others any more."""
        raise BrokerDisconnectedError(f"{self.name} does not balance")

    async def drain(self) -> None:
        """Wait while much of what was published waits to be sent."""
        return

    def _check_size(self, data: bytes) -> None:
        limit = self.packet_bytes_max
        if limit is not None and len(data) > limit:
            raise MessageTooLargeError(
                f"a packet of {len(data)} bytes; {self.name} carries {limit}"
            )

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<{type(self).__name__} {state}>"
