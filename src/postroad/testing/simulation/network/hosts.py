"""Hosts of the memory network: names, addresses, ports, sockets, and the links between them."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from postroad.core.errors import ConfigError

if TYPE_CHECKING:
    from postroad.testing.simulation.network.datagram import MemoryDatagramTransport
    from postroad.testing.simulation.network.server import MemoryListener


_KINDS = ((socket.SOCK_STREAM, 6), (socket.SOCK_DGRAM, 17))


class NameService:
    """The simulated DNS."""

    def __init__(self) -> None:
        self._addresses: dict[str, tuple[str, ...]] = {}

    def set(self, name: str, addresses: Sequence[str]) -> None:
        """Set the addresses of a name, in their order."""
        self._addresses[name.lower()] = tuple(addresses)

    def remove(self, name: str) -> None:
        self._addresses.pop(name.lower(), None)

    def resolve(self, name: str) -> tuple[str, ...]:
        """Return the addresses of a host, or raise the error of the system."""
        if is_address(name):
            return (name,)
        if name.lower() in ("localhost", "::1"):
            return (LOOPBACK,)
        addresses = self._addresses.get(name.lower())
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return addresses

    def name_of(self, address: str) -> str:
        for name, addresses in self._addresses.items():
            if address in addresses:
                return name
        return "localhost" if address == LOOPBACK else address

    def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[tuple[Any, ...]]:
        """Return addresses like `socket.getaddrinfo`."""
        if family not in (0, socket.AF_INET):
            raise socket.gaierror(socket.EAI_FAMILY, "ai_family not supported")
        if isinstance(host, bytes):
            host = host.decode("idna")
        if not host:
            addresses: tuple[str, ...] = (WILDCARD if flags & socket.AI_PASSIVE else LOOPBACK,)
        else:
            addresses = self.resolve(host)
        try:
            number = int(port or 0)
        except ValueError:
            raise socket.gaierror(
                socket.EAI_SERVICE, "Servname not supported for ai_socktype"
            ) from None
        return [
            (socket.AF_INET, kind, protocol, "", (address, number))
            for address in addresses
            for kind, protocol in _KINDS
            if type in (0, kind) and proto in (0, protocol)
        ]


def is_address(text: str) -> bool:
    """Whether the text is an IPv4 address and not a name."""
    try:
        socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True


def complete(future: asyncio.Future[None]) -> None:
    """Complete a future, unless it is done or cancelled."""
    if not future.done():
        future.set_result(None)


SocketAddress: TypeAlias = tuple[str, int]
"""An IPv4 address and a port."""

WILDCARD = "0.0.0.0"
LOOPBACK = "127.0.0.1"
_WILDCARDS = (None, "", WILDCARD, "::")
_LOOPBACKS = ("localhost", "::1")
# The first ports to search; source ports of dials and listening ports must not collide.
_FIRST_LISTENING = 32_768
_FIRST_DIALED = 45_000
_LAST_PORT = 65_535

T = TypeVar("T")


class KernelResource(Protocol):
    """A socket that the kernel of a host closes with its process."""

    def close_by_kernel(self) -> None:
        """Close because the process ended."""

    def power_off(self) -> None:
        """Drop everything without notifying process or peer: the host has no power."""


class SimTransport(asyncio.BaseTransport):
    """What all transports of the memory network have in common."""

    _protocol: Any = None
    _is_closing = False

    def is_closing(self) -> bool:
        return self._is_closing

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        assert self._protocol is not None
        return self._protocol


class PortTable(Generic[T]):
    """Owners of the ports of one protocol."""

    def __init__(self, first_free: int = _FIRST_LISTENING) -> None:
        self._owners: dict[SocketAddress, T] = {}
        self._first_free = self._next_free = first_free

    def bind(self, address: str, port: int, owner: T) -> int:
        """Bind a port, or a free one for port 0; return the port."""
        port = port or self._choose(address)
        if self._is_bound(address, port):
            raise OSError(
                errno.EADDRINUSE,
                f"error while attempting to bind on address {(address, port)}: "
                f"{os.strerror(errno.EADDRINUSE).lower()}",
            )
        self._owners[address, port] = owner
        return port

    def release(self, address: str, port: int) -> None:
        self._owners.pop((address, port), None)

    def find(self, address: str, port: int) -> T | None:
        exact = self._owners.get((address, port))
        return self._owners.get((WILDCARD, port)) if exact is None else exact

    def clear(self) -> None:
        self._owners.clear()

    def _choose(self, address: str) -> int:
        while True:
            port = self._next_free
            self._next_free = self._first_free if port == _LAST_PORT else port + 1
            if not self._is_bound(address, port):
                return port

    def _is_bound(self, address: str, port: int) -> bool:
        if address == WILDCARD:
            return any(bound == port for _, bound in self._owners)
        return (address, port) in self._owners or (WILDCARD, port) in self._owners


class SimHost:
    """A simulated machine: name, address, open sockets."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        # Whether the host has power.
        self.is_on = True
        # Bytes per second that its processes read from each connection; None means no limit.
        self.read_rate: float | None = None
        self.listeners: PortTable[MemoryListener] = PortTable()
        self.datagrams: PortTable[MemoryDatagramTransport] = PortTable()
        # Source ports of connections dialed from this host.
        self.dialed: PortTable[object] = PortTable(_FIRST_DIALED)
        # All open sockets, oldest first.
        self.sockets: dict[KernelResource, None] = {}

    def own_address(self, requested: str | None) -> str:
        """Return the address to bind; only addresses of this host can be bound."""
        if requested in _WILDCARDS:
            return WILDCARD
        if requested in _LOOPBACKS or (requested and requested.startswith("127.")):
            return LOOPBACK if requested in _LOOPBACKS else str(requested)
        if requested in (self.name, self.address):
            return self.address
        raise OSError(
            errno.EADDRNOTAVAIL,
            f"error while attempting to bind on address {requested!r}: "
            f"{os.strerror(errno.EADDRNOTAVAIL).lower()}; this is host {self.name}",
        )

    def source_address(self, target: str) -> str:
        return LOOPBACK if target.startswith("127.") else self.address

    def end_processes(self) -> None:
        """Close all sockets as the kernel does when their process is killed."""
        for each in list(self.sockets):
            each.close_by_kernel()
        self._clear()

    def lose_power(self) -> None:
        """Turn the host off: its sockets are dropped without notifying peers."""
        self.is_on = False
        for each in list(self.sockets):
            each.power_off()
        self._clear()

    def _clear(self) -> None:
        self.sockets.clear()
        self.listeners.clear()
        self.datagrams.clear()
        self.dialed.clear()

    def __repr__(self) -> str:
        return f"<SimHost {self.name} {self.address} {'on' if self.is_on else 'off'}>"


# Within one host nothing is lost and delays are short.
_LOCAL_DELAY_S = (0.000_005, 0.000_05)
# The delay that reordering adds to a datagram, in maximum delays.
LATE_FACTOR = 10.0


class LinkConditions(msgspec.Struct, frozen=True, kw_only=True):
    """Delay, loss, duplication and reordering of a link; by default a good local network."""

    delay_s: tuple[float, float] = (0.000_1, 0.001)
    """Minimum and maximum delay."""
    loss: float = 0.0
    """Probability that a datagram is lost."""
    duplicate: float = 0.0
    """Probability that a datagram arrives twice."""
    reorder: float = 0.0
    """Probability that later datagrams overtake a datagram."""

    def __post_init__(self) -> None:
        least, most = self.delay_s
        if not 0 <= least <= most:
            raise ConfigError(f"delay_s={self.delay_s} must be two times, the shorter one first")
        for name in ("loss", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be a probability from 0 to 1")


DEFAULT_CONDITIONS = LinkConditions()


class LinkTable:
    """Conditions of the link from each host to each other, by their names."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.default = DEFAULT_CONDITIONS
        self._by_pair: dict[tuple[str, str], LinkConditions] = {}
        self._blocked: set[tuple[str, str]] = set()

    def set(self, conditions: LinkConditions, between: tuple[str, str] | None) -> None:
        """Set the conditions of all links, or of both directions between two hosts."""
        if between is None:
            self.default = conditions
            self._by_pair.clear()
        else:
            first, second = between
            self._by_pair[first, second] = self._by_pair[second, first] = conditions

    def get(self, source: str, target: str) -> LinkConditions:
        return self._by_pair.get((source, target), self.default) if self._by_pair else self.default

    def delay(self, source: str, target: str) -> float:
        """Return a random delay for the next packet."""
        least, most = _LOCAL_DELAY_S if source == target else self.get(source, target).delay_s
        return least + (most - least) * self._rng.random()

    def is_reachable(self, source: str, target: str) -> bool:
        return (source, target) not in self._blocked

    def block(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Block the links from all sources to all targets; a host always reaches itself."""
        self._blocked |= {(a, b) for a in sources for b in targets if a != b}

    def unblock(self, between: tuple[Iterable[str], Iterable[str]] | None) -> None:
        """Unblock all links, or those between two groups."""
        if between is None:
            self._blocked.clear()
        else:
            firsts, seconds = (set(group) for group in between)
            self._blocked -= {(a, b) for a in firsts for b in seconds}
            self._blocked -= {(b, a) for a in firsts for b in seconds}
