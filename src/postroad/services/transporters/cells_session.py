"""A node of services in a domain: from the moment it enters until it leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from postroad.cells import CellDomain, NoRouteError
from postroad.core import PostroadError
from postroad.core.errors import NotRunningError
from postroad.services.kinds import Kind
from postroad.services.topics import BalancedTopic, Topics

from .cells_connection import Connection
from .cells_incoming import Incoming, PacketCell
from .cells_lanes import LETTER_BYTES, Lane, NodeLane, QueueLane, TopicLane
from .cells_letters import WORDS
from .cells_names import CellNames, queue_of
from .cells_outgoing import Outgoing
from .cells_peers import Peers
from .transporter import Listener

logger = logging.getLogger("postroad.services.transporters")

QUEUES_MAX = 8_192
"""Queues remembered that packets were sent to; forgetting idle ones costs little."""
GOODBYE_S = 2.0
"""How long a node that leaves waits for what it published to be sent."""
SETTLE_S = 1.0
"""How long others may take to hear what a node listens to."""

# Whoever gets one of these answers it.
_ASKING = frozenset({Kind.REQUEST, Kind.PING, Kind.DISCOVER})


class CellsStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What became of packets, since the node entered its domain."""

    lost: int
    """Packets that were published and not sent: there was no way, or none any more."""
    malformed: int
    """Messages of others that held no packets."""
    unknown: int
    """Packets of kinds that this node does not know."""


class CellsSession:
    """One node in one domain.

    Args:
        domain: it is running.
        topics: of the node.
        listener: of the node.
        packet_bytes_max: the largest packet.
    """

    def __init__(
        self, domain: CellDomain, topics: Topics, listener: Listener, packet_bytes_max: int
    ) -> None:
        self._domain = domain
        self._topics = topics
        self._listener = listener
        self._names = names = CellNames(topics.prefix)
        own = domain.identity.cell(names.node(topics.node_id))
        self._outgoing = Outgoing(domain, own, self._miss)
        self._peers = Peers(
            names,
            domain.identity,
            letter_bytes=min(LETTER_BYTES, packet_bytes_max),
            ping=self._outgoing.ping,
            on_lost=self._lose_node,
            is_domain=self._is_domain,
        )
        self._incoming = Incoming(listener, own, names.broadcast, self._peers.hear)
        self._cell = PacketCell(
            own.cell,
            self._incoming.receive,
            consume=[own.cell],
            subscribe=[names.broadcast],
            on_stop=self._stopped,
        )
        self._all = TopicLane(names.broadcast)
        self._queues: dict[str, QueueLane] = {}
        # The cell that consumes balanced topics, and how many there were.
        self._consumer: PacketCell | None = None
        self._consumers = 0
        self._listening = asyncio.Lock()
        self._connection = Connection(domain, on_up=self._rise, on_down=self._fall)
        self._is_inside = self._was_up = False

    @property
    def is_up(self) -> bool:
        """Whether packets can be sent."""
        return self._connection.is_up

    def statistics(self) -> CellsStatistics:
        """The counters as they are now."""
        incoming = self._incoming
        return CellsStatistics(
            lost=self._outgoing.lost, malformed=incoming.malformed, unknown=incoming.unknown
        )

    # Coming and going.

    async def enter(self, timeout_s: float) -> None:
        """Be reached by others, and reach them; raises OSError if that takes too long."""
        try:
            await self._domain.add_cell(self._cell)
            self._is_inside = True
            self._connection.open()
            async with asyncio.timeout(timeout_s):
                await self._connection.wait_up()
        except NotRunningError as error:
            raise ConnectionError(f"cells: {error}") from None
        except TimeoutError:
            raise TimeoutError(self._connection.explain()) from None

    def _rise(self) -> None:
        is_again, self._was_up = self._was_up, True
        if not is_again:
            self._peers.watch()
        self._incoming.is_open = True
        self._listener.connected(is_again=is_again)

    def _fall(self, reason: str) -> None:
        lost = self._clear()
        logger.warning("%s; %d packets were not sent", reason, lost)
        self._listener.disconnected(reason)

    def _stopped(self) -> None:
        self._connection.end(f"cells: domain {self._domain.name} stops")

    async def leave(self) -> None:
        """Send what was published, and be reached no more."""
        if self.is_up:
            await self._outgoing.finish(GOODBYE_S)
        await self._connection.close()
        async with self._listening:
            await self._replace_consumer(None)
        self._incoming.is_open = False
        self._clear()
        await self._peers.close()
        await self._outgoing.close()
        if self._is_inside:
            await self._let_go(self._cell)

    def _clear(self) -> int:
        before = self._outgoing.lost
        lanes: list[Lane] = [*self._peers, *self._queues.values(), self._all]
        for lane in lanes:
            self._outgoing.clear(lane)
        return self._outgoing.lost - before

    # Sending.

    def publish(self, kind: Kind, node_id: str, data: bytes) -> None:
        """Send a packet to a node; raises ConfigError if it is of a kind that goes to none."""
        lane = self._peers.get(node_id)
        # Asked for in vain, the name of a topic says what is wrong.
        word = WORDS.get(kind) or self._topics.name_of(kind, node_id)
        self._outgoing.put(lane, word, data)
        if kind in _ASKING:
            lane.is_asked = True

    def publish_to_all(self, kind: Kind, data: bytes) -> None:
        """Send a packet to all nodes; raises ConfigError if it is of no such kind."""
        self._topics.name_of(kind)
        self._outgoing.put_to_all(self._all, WORDS[kind], data)

    def publish_balanced(self, topic: str, kind: Kind, data: bytes) -> None:
        """Send a packet to one of those who listen to a topic."""
        lane = self._queues.get(topic) or self._open_queue(topic)
        self._outgoing.put(lane, WORDS[kind], data)

    def _open_queue(self, topic: str) -> QueueLane:
        if len(self._queues) >= QUEUES_MAX:
            self._queues = {name: it for name, it in self._queues.items() if not it.is_idle}
        lane = self._queues[topic] = QueueLane(queue_of(topic))
        return lane

    async def drain(self) -> None:
        """Wait while much is on its way to whoever the last packet went to."""
        await self._outgoing.drain()

    # Listening.

    async def listen_balanced(self, topics: Iterable[BalancedTopic]) -> None:
        """Take packets of these topics, and of no others any more.

        What others sent before they knew is still taken.
        """
        queues = sorted({queue_of(topic.name) for topic in topics})
        async with self._listening:
            consumer = self._make_consumer(queues) if queues else None
            if consumer is not None:
                await self._domain.add_cell(consumer)
            await self._replace_consumer(consumer)
            await self._domain.wait_routes_acknowledged(SETTLE_S)

    def _make_consumer(self, queues: list[str]) -> PacketCell:
        self._consumers += 1
        name = self._names.listener(self._topics.node_id, self._consumers)
        return PacketCell(name, self._incoming.receive, consume=queues)

    async def _replace_consumer(self, consumer: PacketCell | None) -> None:
        old, self._consumer = self._consumer, consumer
        if old is not None:
            with suppress(PostroadError):
                await self._domain.drain_cell(old.name, SETTLE_S)
            await self._let_go(old)

    async def _let_go(self, cell: PacketCell) -> None:
        with suppress(PostroadError):
            # If the domain has stopped, its cells are gone.
            await self._domain.remove_cell(cell.name, 0.0)

    # What becomes of other nodes.

    def _is_domain(self, name: str) -> bool:
        return name == self._domain.name or bool(self._domain.table.domains(name))

    def _miss(self, lane: Lane, error: NoRouteError) -> None:
        self._peers.miss(lane, error)

    def _lose_node(self, lane: NodeLane) -> None:
        self._outgoing.clear(lane)
        logger.info("cells: node %r is gone", lane.node_id)
        self._listener.node_lost(lane.node_id, is_unexpected=True)
