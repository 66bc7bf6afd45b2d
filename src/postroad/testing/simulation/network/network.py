"""The memory network: hosts, names, connections, datagrams, and the faults that a test injects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from postroad.core.errors import ConfigError, UsageError
from postroad.testing.simulation.network.datagram import MemoryDatagramTransport
from postroad.testing.simulation.network.hosts import (
    DEFAULT_CONDITIONS,
    LATE_FACTOR,
    WILDCARD,
    LinkTable,
    NameService,
    SimHost,
    SocketAddress,
)
from postroad.testing.simulation.network.server import DialAttempt, MemoryServer
from postroad.testing.simulation.network.transport import MemoryTransport, reset_error
from postroad.testing.simulation.simulation import EventLog

if TYPE_CHECKING:
    from postroad.testing.simulation.loop import SimLoop

# Maximum delay of a blocked connection after its link has opened.
_RETRY_S_MAX = 0.2
_HOSTS_PER_NET = 250
_RESOLVE_S_MAX = 0.002
_OWN_NAME = "test"
_OWN_ADDRESS = "10.255.255.254"

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)


class MemoryNetwork:
    """Connects the hosts of one simulated loop, with the transports of real sockets.

    Faults can be set at any moment and last until they are reset; random decisions follow from the
    seed of the loop.

    Attributes:
        own_host: the host of the test itself.
        stream_timeout_s: a connection whose data is blocked for longer breaks, as with TCP.
        connect_timeout_s: an unanswered request to connect fails after so many seconds.
    """

    def __init__(self, loop: SimLoop, rng: Random, log: EventLog) -> None:
        self.loop = loop
        self.rng = rng
        self.links = LinkTable(rng)
        self.names = NameService()
        self._log = log
        self._hosts: dict[str, SimHost] = {}
        self._by_address: dict[str, SimHost] = {}
        # Called when a link opens or a host is turned on again.
        self._waiting: list[Callable[[], None]] = []
        # Actions of the network belong to no simulated process; set by the loop.
        self.context: Context
        self.stream_timeout_s = 900.0
        self.connect_timeout_s = 127.0
        self.own_host = self.add_host(_OWN_NAME, _OWN_ADDRESS)

    # Hosts and names.

    def add_host(self, name: str, address: str | None = None) -> SimHost:
        """Add a host; its name resolves to its address, 10.0.0.1 for the first host."""
        number = len(self._hosts)
        net, last = divmod(max(number - 1, 0), _HOSTS_PER_NET)
        address = address or f"10.0.{net}.{last + 1}"
        if name in self._hosts or address in self._by_address:
            raise UsageError(
                f"cannot add host {name!r} at {address}: the name or the address is in use"
            )
        host = SimHost(name, address)
        self._hosts[name] = self._by_address[address] = host
        self.names.set(name, [address])
        return host

    def host(self, name: str) -> SimHost:
        if name not in self._hosts:
            raise ConfigError(f"unknown host {name!r}; known hosts: {', '.join(self._hosts)}")
        return self._hosts[name]

    def set_name(self, name: str, addresses: str | Sequence[str]) -> None:
        """Set the addresses, or names of hosts, to which a name resolves."""
        targets = [addresses] if isinstance(addresses, str) else addresses
        resolved = [
            self._hosts[target].address if target in self._hosts else target for target in targets
        ]
        self.names.set(name, resolved)
        self._log.add("network", "name", f"{name} is {', '.join(resolved)}")

    def remove_name(self, name: str) -> None:
        """Remove a name: it does not resolve any more."""
        self.names.remove(name)
        self._log.add("network", "name", f"{name} is unknown")

    # Faults.

    def set_conditions(
        self,
        *,
        between: tuple[str, str] | None = None,
        delay_s: tuple[float, float] | None = None,
        loss: float | None = None,
        duplicate: float | None = None,
        reorder: float | None = None,
    ) -> None:
        """Change the conditions of all links, or of those between two hosts.

        Without two hosts, all links change, also those set before; see `LinkConditions`.
        """
        settings = {"delay_s": delay_s, "loss": loss, "duplicate": duplicate, "reorder": reorder}
        changes = {name: value for name, value in settings.items() if value is not None}
        before = self.links.default
        if between is not None:
            before = self.links.get(*(self.host(name).name for name in between))
        self.links.set(msgspec.structs.replace(before, **changes), between)
        scope = "everywhere" if between is None else f"between {between[0]} and {between[1]}"
        description = ", ".join(f"{name} {value}" for name, value in changes.items())
        self._log.add("network", "conditions", f"{scope}: {description}")

    def reset_conditions(self) -> None:
        self.links.set(DEFAULT_CONDITIONS, None)
        self._log.add("network", "conditions", "everywhere: default")

    def partition(
        self, group: Iterable[str] | str, other: Iterable[str] | str, *, one_way: bool = False
    ) -> None:
        """Block the links between two groups, or only those from the first to the second.

        Data of connections arrives when the partition is healed; datagrams are lost.
        """
        firsts, seconds = self._names(group), self._names(other)
        self.links.block(firsts, seconds)
        if not one_way:
            self.links.block(seconds, firsts)
        arrow = "to" if one_way else "and"
        self._log.add("network", "partition", f"{','.join(firsts)} {arrow} {','.join(seconds)}")

    def heal(
        self, group: Iterable[str] | str | None = None, other: Iterable[str] | str | None = None
    ) -> None:
        """Remove all partitions, or those between two groups."""
        if group is None or other is None:
            self.links.unblock(None)
            self._log.add("network", "healed")
        else:
            firsts, seconds = self._names(group), self._names(other)
            self.links.unblock((firsts, seconds))
            self._log.add("network", "healed", f"{','.join(firsts)} and {','.join(seconds)}")
        self._retry_waiting()

    def reset_connections(self, first: str, second: str) -> int:
        """Reset the connections between two hosts; return their number."""
        name = self.host(second).name
        transports = [
            transport
            for transport in self.host(first).sockets
            if isinstance(transport, MemoryTransport)
            and transport.outgoing.target.host.name == name
        ]
        for transport in transports:
            self.break_connection(transport, reset_error())
        self._log.add("network", "reset", f"{first} and {second}: {len(transports)} connections")
        return len(transports)

    def slow_reader(self, name: str, bytes_per_s: float | None) -> None:
        """Limit the rate at which processes of a host read a connection; None removes the limit."""
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ConfigError(f"bytes_per_s={bytes_per_s} must be more than 0, or None")
        self.host(name).read_rate = bytes_per_s
        rate = "without limit" if bytes_per_s is None else f"{bytes_per_s:g} bytes/s"
        self._log.add(name, "reads", rate)

    def lose_power(self, name: str) -> None:
        """Turn a host off: its peers receive nothing."""
        self.host(name).lose_power()

    def restore_power(self, name: str) -> None:
        """Turn a host on again, without its old connections."""
        host = self.host(name)
        if not host.is_on:
            host.is_on = True
            self._retry_waiting()

    def _names(self, group: Iterable[str] | str) -> list[str]:
        names = [group] if isinstance(group, str) else group
        return sorted(self.host(name).name for name in set(names))

    # For transports.

    def reaches(self, source: SimHost, target: SimHost) -> bool:
        return target.is_on and self.links.is_reachable(source.name, target.name)

    def on_link_open(self, retry: Callable[[], None]) -> None:
        """Call a function once when a link may have opened."""
        self._waiting.append(retry)

    def break_connection(self, transport: MemoryTransport, error: OSError) -> None:
        """Reset both ends of a connection."""
        peer = transport.outgoing.target
        transport.reset_by_kernel(error)
        peer.reset_by_kernel(reset_error())

    def _retry_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for retry in waiting:
            delay_s = self.rng.uniform(0, _RETRY_S_MAX)
            self.loop.call_later(delay_s, retry, context=self.context)

    def log(self, host: SimHost, verb: str, details: str) -> None:
        self._log.add(host.name, verb, details)

    def deliver(self, source: SimHost, target: SimHost, action: Callable[[], None]) -> None:
        """Call an action when a packet arrives, which is retransmitted until then."""

        def arrive() -> None:
            if self.reaches(source, target):
                action()
            else:
                self.on_link_open(arrive)

        delay = self.links.delay(source.name, target.name)
        self.loop.call_later(delay, arrive, context=self.context)

    def host_at(self, address: str, source: SimHost) -> SimHost | None:
        if address.startswith("127.") or address == WILDCARD:
            return source
        return self._by_address.get(address)

    # For the loop.

    async def resolve(self, host: Any, port: Any, **options: Any) -> list[tuple[Any, ...]]:
        """Resolve a name, after a random delay."""
        await asyncio.sleep(self.rng.uniform(0, _RESOLVE_S_MAX))
        return self.names.getaddrinfo(host, port, **options)

    async def getnameinfo(self, address: tuple[Any, ...]) -> tuple[str, str]:
        """Return the name of an address, after a random delay."""
        await asyncio.sleep(self.rng.uniform(0, _RESOLVE_S_MAX))
        return (self.names.name_of(str(address[0])), str(address[1]))

    async def connect(
        self,
        factory: Callable[[], ProtocolT],
        name: str | None,
        port: int | None,
        local: tuple[str, int] | None,
    ) -> tuple[asyncio.Transport, ProtocolT]:
        """Open a connection to the first address of a name that accepts it."""
        if not port:
            raise UsageError("cannot connect without a port: pass the port of the peer")
        source = self.loop.current_process.host
        errors: list[OSError] = []
        for address in [entry[4][0] for entry in await self.resolve(name, port, proto=6)]:
            bound = local or (source.source_address(address), 0)
            host = source.own_address(bound[0])
            own = (host, source.dialed.bind(host, bound[1], object()))
            try:
                transport = await DialAttempt(self, source, own, (address, port)).connect()
            except BaseException as error:
                source.dialed.release(*own)
                if not isinstance(error, OSError):
                    raise
                errors.append(error)
                continue
            return await self._start(transport, factory())
        if len(errors) == 1:
            raise errors[0]
        raise OSError(f"Multiple exceptions: {', '.join(map(str, errors))}")

    async def _start(
        self, transport: MemoryTransport, protocol: ProtocolT
    ) -> tuple[asyncio.Transport, ProtocolT]:
        ready = self.loop.create_future()
        transport.start(protocol, ready)
        try:
            await ready
        except BaseException:
            transport.close()
            raise
        return transport, protocol

    def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        names: str | Sequence[str] | None,
        port: int,
    ) -> MemoryServer:
        """Bind a server at the host of the caller."""
        host = self.loop.current_process.host
        requested = [names] if names is None or isinstance(names, str) else list(names)
        server = MemoryServer(self, host, factory)
        server.bind([host.own_address(name) for name in requested], port)
        return server

    async def open_datagrams(
        self,
        factory: Callable[[], ProtocolT],
        local: tuple[str, int] | None,
        remote: tuple[str, int] | None,
    ) -> tuple[asyncio.DatagramTransport, ProtocolT]:
        """Bind a datagram socket at the host of the caller."""
        host = self.loop.current_process.host
        peer = None if remote is None else (await self.resolve(*remote, proto=17))[0][4]
        source = host.source_address(peer[0]) if peer is not None else WILDCARD
        bound = (source, 0) if local is None else (host.own_address(local[0]), local[1])
        transport = MemoryDatagramTransport(self, host, bound, peer)
        protocol = factory()
        ready = self.loop.create_future()
        transport.start(protocol, ready)
        await ready
        return transport, protocol

    # Datagrams.

    def send_datagram(
        self, sender: MemoryDatagramTransport, data: bytes, target: SocketAddress
    ) -> None:
        """Send a datagram, which may be lost, duplicated or reordered."""
        host = self.host_at(target[0], sender.host)
        if host is None:
            return
        names = (sender.host.name, host.name)
        conditions = DEFAULT_CONDITIONS if host is sender.host else self.links.get(*names)
        random = self.rng.random
        if conditions.loss and random() < conditions.loss:
            return
        copies = 2 if conditions.duplicate and random() < conditions.duplicate else 1
        for _ in range(copies):
            when = self.loop.time() + self.links.delay(*names)
            if conditions.reorder and random() < conditions.reorder:
                when += self.links.get(*names).delay_s[1] * LATE_FACTOR * random()
            else:
                when = sender.in_order(target, when)
            self.loop.call_at(when, self._arrive, sender, host, data, target, context=self.context)

    def _arrive(
        self, sender: MemoryDatagramTransport, host: SimHost, data: bytes, target: SocketAddress
    ) -> None:
        if not self.reaches(sender.host, host):
            return
        receiver = host.datagrams.find(*target)
        if receiver is not None:
            receiver.on_datagram(data, sender.source_for(target[0]))
        elif self.reaches(host, sender.host):
            sender.on_unreachable()
