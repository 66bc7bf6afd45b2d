"""Nodes that speak TCP to each other, without a server between them.

Every node listens, and connects to whom it has something to say. Who there is spreads by gossip,
which is the task of `postroad.services.gossip_presence`; addresses come from the user, by
multicast, and from other nodes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from postroad.core import Address, ThrottledLogger
from postroad.core.errors import ConfigError
from postroad.core.limits import KIB, MIB
from postroad.services.errors import BrokerDisconnectedError
from postroad.services.kinds import Kind
from postroad.services.topics import PREFIX

from .tcp_addresses import AddressBook, Urls, read_urls
from .tcp_arrivals import Arrivals
from .tcp_frames import HEADER_BYTES, NUMBERS
from .tcp_links import CONNECT_TIMEOUT_S, CONNECTIONS_MAX, Links
from .transporter import Transporter
from .udp_discovery import UdpConfig, UdpDiscovery

logger = logging.getLogger("postroad.services.transporters")

PACKET_BYTES_MAX = MIB - 64 * KIB - HEADER_BYTES
"""Nodes of the original system refuse 1 MiB, and may count what follows a packet as part of it."""
GOODBYE_S = 2.0
"""How long `disconnect` waits for what was published to leave."""

_FRAME_BYTES_MAX = 0x7FFF_FFFF
_RECEIVED_BYTES_MAX = MIB
_LOG_INTERVAL_S = 10.0
_EVERYWHERE = ("", "0.0.0.0", "::")

Introduce = Callable[[str], None]
Discovered = Callable[[str, Address], None]


class TcpTransporter(Transporter):
    """Carries packets straight from node to node. It knows no packets for all: those are dropped.

    Args:
        urls: nodes and their addresses: `tcp://host:port/node,host2:port/node2`, a list of such,
            or a mapping of nodes to `host:port`. What is said there of this node is its port.
        host: the address to listen on, and to tell others; None for all of this machine.
        port: to listen on; None for that in `urls`, or any.
        udp_discovery: whether nodes find each other by multicast, or how. By default they do if
            there are no `urls`.
        gossip_period_s: how often this node asks another what there is to know.
        connections_max: connections to keep; those that are idle for longest are ended.
        packet_bytes_max: the largest packet to send. Nodes of the original system take no more
            than the default unless they are told to.
        connect_timeout_s: time for a connection to be made.
    """

    name = "tcp"
    beats = False

    def __init__(
        self,
        urls: Urls = (),
        *,
        host: str | None = None,
        port: int | None = None,
        udp_discovery: bool | UdpConfig | None = None,
        gossip_period_s: float = 2.0,
        connections_max: int = CONNECTIONS_MAX,
        packet_bytes_max: int = PACKET_BYTES_MAX,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._urls = read_urls(urls)
        self._host = host
        self._wanted_port = _checked_port(port)
        has_udp = not self._urls if udp_discovery is None else bool(udp_discovery)
        config = udp_discovery if isinstance(udp_discovery, UdpConfig) else UdpConfig()
        self._udp_config = config if has_udp else None
        self.gossip_period_s = _checked("gossip_period_s", gossip_period_s, math.inf)
        self._connections_max = int(_checked("connections_max", connections_max, math.inf))
        self._packet_bytes_max = int(
            _checked("packet_bytes_max", packet_bytes_max, _FRAME_BYTES_MAX - HEADER_BYTES)
        )
        self._connect_timeout_s = _checked("connect_timeout_s", connect_timeout_s, math.inf)
        self.book = AddressBook()
        """Where the other nodes are."""
        self.port = 0
        """Where this node listens, while it is connected."""
        self.introduce: Introduce | None = None
        """Told that a connection to a node is being made, to say who this is before all else."""
        self.discovered: Discovered | None = None
        """Told of nodes that are heard by multicast; None takes their word for where they are."""
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)
        self._arrivals: Arrivals | None = None
        self._links: Links | None = None
        self._udp: UdpDiscovery | None = None

    @property
    def is_connected(self) -> bool:
        return self._links is not None

    @property
    def packet_bytes_max(self) -> int:
        return self._packet_bytes_max

    @property
    def connections_max(self) -> int:
        """How many connections are kept."""
        return self._connections_max

    @property
    def only_host(self) -> str:
        """The one address that this node listens on; empty for all of its machine."""
        return "" if self._host in (None, *_EVERYWHERE) else str(self._host)

    @property
    def has_discovery(self) -> bool:
        """Whether nodes may turn up that nobody told of."""
        return self._udp_config is not None

    @property
    def speaker(self) -> str | None:
        """The host whose packet the listener is being told of; None if it is told of none."""
        return self._arrivals.speaker if self._arrivals is not None else None

    async def connect(self) -> None:
        own = self._load_urls()
        port = self._wanted_port or (own.port if own else 0)
        limit = max(self._packet_bytes_max, _RECEIVED_BYTES_MAX)
        self._arrivals = Arrivals(self._receive, packet_bytes_max=limit)
        try:
            self.port = await self._arrivals.listen(self._host, port)
            self._open_udp()
        except BaseException:
            await self.disconnect()
            raise
        self._links = Links(
            self.book,
            self,
            connections_max=self._connections_max,
            connect_timeout_s=self._connect_timeout_s,
        )
        self.listener.connected(is_again=False)

    async def disconnect(self) -> None:
        udp, self._udp = self._udp, None
        links, self._links = self._links, None
        if udp is not None:
            udp.close()
        if links is not None:
            await links.close(GOODBYE_S)
        arrivals, self._arrivals = self._arrivals, None
        if arrivals is not None:
            await arrivals.close()

    def publish(self, kind: Kind, node_id: str | None, data: bytes) -> None:
        links = self._links
        if links is None:
            raise BrokerDisconnectedError
        if node_id is None or kind not in NUMBERS:
            return
        if len(data) > self._packet_bytes_max:
            self._check_size(data)
        links.send(node_id, kind, data)

    async def drain(self) -> None:
        """Wait while much waits for the node that something was published to last."""
        if self._links is not None:
            await self._links.room()

    # For those who gossip.

    def is_linked(self, node_id: str) -> bool:
        """Whether there is a connection to a node now."""
        return self._links is not None and self._links.is_open(node_id)

    def can_reach(self, node_id: str) -> bool:
        """Whether something can be sent to a node now, as far as this node knows."""
        return self._links is not None and self._links.can_try(node_id)

    def failures(self, node_id: str) -> int:
        """How often in a row a node could not be reached."""
        return self._links.failures(node_id) if self._links is not None else 0

    def see(self, node_id: str, address: Address, *, is_online: bool) -> None:
        """A node says that it is at an address.

        Nobody can prove a name, so one that is online stays where it is, unless the same host
        says so and there is no connection.
        """
        may_move = not is_online or (
            self.book.is_at(node_id, address.host) and not self.is_linked(node_id)
        )
        known = self.book.addresses(node_id)
        if self.book.see(node_id, address, may_move=may_move) and self._links is not None:
            self._links.forgive(node_id)
        if not may_move and address not in known:
            self._warn_of_rival(node_id, address, known[0])

    def forget(self, node_id: str) -> None:
        """A node is gone for good."""
        self.book.forget(node_id)
        if self._links is not None:
            self._links.forgive(node_id)

    # Told by connections.

    def link_begins(self, node_id: str) -> None:
        if self.introduce is not None:
            self.introduce(node_id)

    def link_lost(self, node_id: str, *, is_unexpected: bool) -> None:
        self.listener.node_lost(node_id, is_unexpected=is_unexpected)

    def _receive(self, kind: Kind, data: bytes) -> None:
        self.listener.received(kind, data)

    def _discover(self, node_id: str, address: Address) -> None:
        if self.discovered is not None:
            self.discovered(node_id, address)
        else:
            self.see(node_id, address, is_online=self.is_linked(node_id))

    # How it is done.

    def _load_urls(self) -> Address | None:
        """Take in the configured addresses; returns that of this node."""
        for node_id, address in self._urls.items():
            if node_id != self.topics.node_id:
                self.book.configure(node_id, address)
        return self._urls.get(self.topics.node_id)

    def _warn_of_rival(self, node_id: str, address: Address, known: Address) -> None:
        self._log.log(
            node_id,
            asyncio.get_running_loop().time(),
            "somebody at %s says it is node %s, which is at %s: has it just restarted, "
            "or do two processes have this name?",
            address,
            node_id,
            known,
        )

    def _open_udp(self) -> None:
        if self._udp_config is None:
            return
        namespace = self.topics.prefix.removeprefix(PREFIX).removeprefix("-")
        node_id = self.topics.node_id
        self._udp = UdpDiscovery(namespace, node_id, self._discover, self._udp_config)
        self._udp.open(self.port)


def _checked(name: str, value: float, most: float) -> float:
    if not (0 < value <= most and math.isfinite(value)):
        raise ConfigError(f"{name}={value!r} must be a finite number, more than 0")
    return value


def _checked_port(port: int | None) -> int | None:
    if port is not None and not 0 <= port <= 65_535:
        raise ConfigError(f"port={port!r} must be 0 to 65535")
    return port
