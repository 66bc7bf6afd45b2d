"""Hosts of the memory network: names, addresses, ports and open sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

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
