"""Where nodes are: what was configured, what they say, and where they were seen. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address

from postroad.core import Address
from postroad.core.errors import ConfigError
from postroad.services.packet_fields import NODE_ID_LENGTH_MAX

SCHEME = "tcp://"
PEERS_MAX = 10_000
"""Nodes whose addresses are known; more are refused."""
HEARSAY_MAX = 256
"""Nodes that only say they are there, and nobody has heard more of; the oldest make room."""
HOSTS_MAX = 4
"""Hosts of one node that are tried."""

Urls = str | Sequence[str] | Mapping[str, str]


def read_urls(urls: Urls) -> dict[str, Address]:
    """Nodes and their addresses from `tcp://host:port/node,...`, a list of such, or a mapping.

    Raises:
        ConfigError: one of them is not of that form.
    """
    if isinstance(urls, str):
        urls = urls.split(",")
    if isinstance(urls, Mapping):
        urls = [f"{address}/{node_id}" for node_id, address in urls.items()]
    found: dict[str, Address] = {}
    for entry in urls:
        text = entry.strip().removeprefix(SCHEME)
        if text:
            node_id, address = _read_entry(text)
            if found.setdefault(node_id, address) != address:
                raise ConfigError(f"node {node_id!r} has two addresses")
    return found


def _read_entry(text: str) -> tuple[str, Address]:
    where, slash, node_id = text.partition("/")
    if "@" in where:
        raise ConfigError("the address of a TCP node has no user or password")
    if not (slash and is_node_id(node_id)):
        raise ConfigError(f"{text!r:.200} is not of the form host:port/node")
    address = Address.parse(where)
    if not address.port:
        raise ConfigError(f"{text!r:.200}: the port of a node cannot be 0")
    return node_id, address


def is_node_id(text: str) -> bool:
    """Whether a text can be the name of a node."""
    return 0 < len(text) <= NODE_ID_LENGTH_MAX and text.isprintable()


def plain_host(host: str) -> str:
    """An address as others write it: IPv4 seen through IPv6 is IPv4."""
    mapped = getattr(_parsed(host), "ipv4_mapped", None)
    return host if mapped is None else str(mapped)


def _parsed(host: str) -> object:
    try:
        return ip_address(host)
    except ValueError:
        return None


class _Peer:
    """What is known of where one node is."""

    __slots__ = ("claim", "configured", "hosts", "port", "seen_at")

    def __init__(self, configured: Address | None = None) -> None:
        # Where a user says it is. The node may not know: it tells what it is called where it runs.
        self.configured = configured
        # Where it was seen: the source of its connection or datagram.
        self.seen_at: str | None = None
        # What it says: a host name and addresses.
        self.hosts: tuple[str, ...] = ()
        self.port = None if configured is None else configured.port
        # Where somebody in its name says it is, while it is believed to be elsewhere.
        self.claim: Address | None = None


class AddressBook:
    """The addresses of all nodes but this one."""

    def __init__(self, peers_max: int = PEERS_MAX) -> None:
        self._peers_max = peers_max
        self._peers: dict[str, _Peer] = {}
        # Those that were seen, and neither configured nor described.
        self._hearsay: dict[str, None] = {}

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._peers

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def configure(self, node_id: str, address: Address) -> None:
        """A user says where a node is; it is never forgotten."""
        self._peers[node_id] = _Peer(address)
        self._hearsay.pop(node_id, None)

    def see(self, node_id: str, address: Address, *, may_move: bool) -> bool:
        """A node was seen at an address, or somebody who uses its name.

        Args:
            node_id: as it says.
            address: the source of what it sent, and the port it says it listens on.
            may_move: whether a node that is known to be elsewhere may have moved there. If not,
                the address counts only when the node cannot be reached where it is.

        Returns:
            Whether the node is known now; there may be too many.
        """
        peer = self._peers.get(node_id) or self._add(node_id)
        if peer is None:
            return False
        if may_move or peer.port is None:
            peer.seen_at, peer.port, peer.claim = address.host, address.port, None
        elif (peer.seen_at, peer.port) != address:
            peer.claim = address
        return True

    def describe(
        self, node_id: str, hostname: str, ip_list: Iterable[str], port: int | None
    ) -> None:
        """A node tells of itself; others may have brought that here."""
        peer = self._peers.get(node_id) or self._add(node_id)
        if peer is None:
            return
        self._hearsay.pop(node_id, None)
        hosts = tuple(dict.fromkeys(host for host in (hostname, *ip_list) if host))[:HOSTS_MAX]
        if peer.hosts and not set(hosts) & set(peer.hosts) and peer.seen_at not in hosts:
            peer.seen_at = None if hosts else peer.seen_at
        peer.hosts = hosts or peer.hosts
        peer.port = port or peer.port

    def is_at(self, node_id: str, host: str) -> bool:
        """Whether a node is known to be at a host."""
        return any(host == it.host for it in self.addresses(node_id))

    def addresses(self, node_id: str) -> list[Address]:
        """Where to try to reach a node, the most likely address first."""
        peer = self._peers.get(node_id)
        if peer is None or peer.port is None:
            return []
        found = [Address(host, peer.port) for host in (peer.seen_at, *peer.hosts) if host]
        if peer.configured is not None:
            found.append(peer.configured)
        return [*dict.fromkeys(found)]

    def miss(self, node_id: str) -> None:
        """A node was not there: it may be where somebody said it is."""
        peer = self._peers.get(node_id)
        if peer is not None and peer.claim is not None:
            peer.seen_at, peer.port = peer.claim
            peer.claim = None

    def forget(self, node_id: str) -> None:
        """A node is gone for good, unless it was configured."""
        peer = self._peers.get(node_id)
        if peer is not None and peer.configured is None:
            del self._peers[node_id]
            self._hearsay.pop(node_id, None)

    def _add(self, node_id: str) -> _Peer | None:
        if not is_node_id(node_id):
            return None
        is_full = len(self._peers) >= self._peers_max
        if self._hearsay and (is_full or len(self._hearsay) >= HEARSAY_MAX):
            self.forget(next(iter(self._hearsay)))
        elif is_full:
            return None
        peer = self._peers[node_id] = _Peer()
        self._hearsay[node_id] = None
        return peer
