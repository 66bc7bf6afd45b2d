"""Nodes that find each other by multicast: each says now and then where it listens.

A datagram is `namespace|node|port`; the host is where it comes from.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from ipaddress import ip_address

import msgspec

from postroad.core import Address, ThrottledLogger
from postroad.core.errors import ConfigError

from .tcp_addresses import is_node_id

logger = logging.getLogger("postroad.services.transporters")

# Datagrams are a namespace, a name and a number.
_DATAGRAM_BYTES_MAX = 2_048
# So many are read in one turn of the loop, so that a flood does not stop everything else.
_READ_MAX = 64
_SECOND_S = 1.0
_LOG_INTERVAL_S = 10.0
_PORT_DIGITS_MAX = 5
_ANY = "0.0.0.0"

Found = Callable[[str, Address], None]


class UdpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How nodes find each other. All must use the same group and port."""

    group: str = "239.0.0.0"
    port: int = 4445
    ttl: int = 1
    """How many routers a datagram may pass, counted from 1 for none."""
    period_s: float = 30.0
    interface: str | None = None
    """The address of the only interface to use; None for all that there are."""

    def __post_init__(self) -> None:
        if not _is_ipv4(self.group) or not ip_address(self.group).is_multicast:
            raise ConfigError(f"group={self.group!r} is no IPv4 address for multicast")
        if self.interface is not None and not _is_ipv4(self.interface):
            raise ConfigError(f"interface={self.interface!r} must be its IPv4 address")
        if not 1 <= self.port <= 65_535:
            raise ConfigError(f"port={self.port!r} must be 1 to 65535")
        if not 0 <= self.ttl <= 255:
            raise ConfigError(f"ttl={self.ttl!r} must be 0 to 255")
        if not self.period_s > 0:
            raise ConfigError(f"period_s={self.period_s!r} must be more than 0")


class UdpDiscovery:
    """Tells others where this node listens, and hears of them.

    Args:
        namespace: of this node; those of others are ignored.
        node_id: of this node.
        found: told of each node that is heard, again and again.
        config: how.
    """

    def __init__(
        self, namespace: str, node_id: str, found: Found, config: UdpConfig | None = None
    ) -> None:
        self._namespace = namespace
        self._node_id = node_id
        self._found = found
        self._config = config or UdpConfig()
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._interfaces: list[bytes] = []
        self._datagram = b""
        self._timer: asyncio.TimerHandle | None = None
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)

    def open(self, port: int) -> None:
        """Begin; `port` is where this node listens. Raises OSError if there is no multicast."""
        self._datagram = f"{self._namespace}|{self._node_id}|{port}".encode()
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._prepare(sock)
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        self._loop.add_reader(sock.fileno(), self._read)
        self._announce()
        # Who started at the same time was perhaps not there yet.
        self._timer = self._loop.call_later(_SECOND_S * random.uniform(0.5, 1), self._repeat)

    def close(self) -> None:
        """Say and hear nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        sock, self._socket = self._socket, None
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            sock.close()

    # How it is done.

    def _prepare(self, sock: socket.socket) -> None:
        config = self._config
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sys.platform != "linux" and hasattr(socket, "SO_REUSEPORT"):
            # Elsewhere only this lets several nodes of a machine hear.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, config.ttl)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        sock.bind(("", config.port))
        for membership in _memberships(config):
            try:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
                self._interfaces.append(membership)
            except OSError as error:
                logger.debug("an interface has no multicast: %s", error)
        if not self._interfaces:
            raise OSError(f"no interface takes part in the multicast group {config.group}")

    def _repeat(self) -> None:
        self._timer = self._loop.call_later(self._config.period_s, self._repeat)
        self._announce()

    def _announce(self) -> None:
        sock, config = self._socket, self._config
        if sock is None:
            return
        failure = None
        sent = 0
        for interface in self._interfaces:
            try:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
                sock.sendto(self._datagram, (config.group, config.port))
                sent += 1
            except OSError as error:
                # Many machines have interfaces that lead nowhere.
                failure = error
        if not sent:
            self._log.log("send", self._loop.time(), "multicast failed: %s", failure)

    def _read(self) -> None:
        for _ in range(_READ_MAX):
            if self._socket is None:
                return
            try:
                data, source = self._socket.recvfrom(_DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError as error:
                self._log.log("read", self._loop.time(), "multicast failed: %s", error)
                return
            self._hear(data, source[0])

    def _hear(self, data: bytes, host: str) -> None:
        namespace, node_id, port = read_datagram(data) or ("", "", 0)
        if port and namespace == self._namespace and node_id != self._node_id:
            self._found(node_id, Address(host, port))


def read_datagram(data: bytes) -> tuple[str, str, int] | None:
    """Namespace, node and port; None if it is something else."""
    try:
        parts = data.decode().split("|")
    except UnicodeDecodeError:
        return None
    if len(parts) != 3 or not is_node_id(parts[1]):
        return None
    digits = parts[2]
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _PORT_DIGITS_MAX):
        return None
    port = int(digits)
    return (parts[0], parts[1], port) if 1 <= port <= 65_535 else None


def _is_ipv4(text: str) -> bool:
    try:
        return ip_address(text).version == 4
    except ValueError:
        return False


def _memberships(config: UdpConfig) -> Iterator[bytes]:
    """The group at each interface, as the kernel wants it."""
    group = socket.inet_aton(config.group)
    if config.interface is not None:
        yield struct.pack("=4s4si", group, socket.inet_aton(config.interface), 0)
        return
    for index, _ in socket.if_nameindex():
        yield struct.pack("=4s4si", group, socket.inet_aton(_ANY), index)
