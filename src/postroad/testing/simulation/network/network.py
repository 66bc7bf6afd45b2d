"""Hosts, names and the ways between them, and every fault a test can cause there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from postroad.core.errors import ConfigError, UsageError
from postroad.testing.simulation.network.conditions import DEFAULT_CONDITIONS, LinkTable
from postroad.testing.simulation.network.datagram import MemoryDatagramTransport
from postroad.testing.simulation.network.dial import DialAttempt
from postroad.testing.simulation.network.hosts import WILDCARD, NameService, SimHost, SocketAddress
from postroad.testing.simulation.network.server import MemoryServer
from postroad.testing.simulation.network.transport import MemoryTransport, reset_error
from postroad.testing.simulation.simulation import EventLog

if TYPE_CHECKING:
    from postroad.testing.simulation.loop import SimLoop

# What connections that stood still take longer, at most, once they can go on.
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
        # What tries again when a way opens or a host comes back.
        self._waiting: list[Callable[[], None]] = []
        # Actions of the network belong to no simulated process; set by the loop.
        self.context: Context
        self.stream_timeout_s = 900.0
        self.connect_timeout_s = 127.0
        self.own_host = self.add_host(_OWN_NAME, _OWN_ADDRESS)

    # Hosts and names.

    def add_host(self, name: str, address: str | None = None) -> SimHost:
        """A machine; its name resolves to its address, 10.0.0.1 for the first one."""
        number = len(self._hosts)
        net, last = divmod(max(number - 1, 0), _HOSTS_PER_NET)
        address = address or f"10.0.{net}.{last + 1}"
        if name in self._hosts or address in self._by_address:
            raise UsageError(f"there is a host {name!r} or one at {address} already")
        host = SimHost(name, address)
        self._hosts[name] = self._by_address[address] = host
        self.names.set(name, [address])
        return host

    def host(self, name: str) -> SimHost:
        """The machine of that name."""
        if name not in self._hosts:
            raise ConfigError(f"no host {name!r}; there are: {', '.join(self._hosts)}")
        return self._hosts[name]

    def set_name(self, name: str, addresses: str | Sequence[str]) -> None:
        """Change what a name resolves to: addresses, or names of hosts."""
        targets = [addresses] if isinstance(addresses, str) else addresses
        resolved = [
            self._hosts[target].address if target in self._hosts else target for target in targets
        ]
        self.names.set(name, resolved)
        self._log.add("network", "name", f"{name} is {', '.join(resolved)}")

    def remove_name(self, name: str) -> None:
        """Have the name unknown from now on."""
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
        """Change how the ways are, all of them or those between two hosts.

        Args:
            between: names of two hosts; without them all ways change, those set before too.
            delay_s: least and most time that anything takes.
            loss: chance of a datagram to be lost.
            duplicate: chance of a datagram to arrive twice.
            reorder: chance of a datagram to be overtaken by later ones.
        """
        settings = {"delay_s": delay_s, "loss": loss, "duplicate": duplicate, "reorder": reorder}
        changes = {name: value for name, value in settings.items() if value is not None}
        before = self.links.default
        if between is not None:
            before = self.links.get(*(self.host(name).name for name in between))
        self.links.set(msgspec.structs.replace(before, **changes), between)
        scope = "everywhere" if between is None else f"between {between[0]} and {between[1]}"
        description = ", ".join(f"{name} {value}" for name, value in changes.items())
        self._log.add("network", "disturbed", f"{scope}: {description}")

    def reset_conditions(self) -> None:
        """Take back everything that `disturb` changed."""
        self.links.set(DEFAULT_CONDITIONS, None)
        self._log.add("network", "calm")

    def partition(
        self, group: Iterable[str] | str, other: Iterable[str] | str, *, one_way: bool = False
    ) -> None:
        """Let nothing through between two groups, or from the first to the second.

        Data of connections waits, and arrives when the partition is healed; datagrams are lost.
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
        """End every partition, or what keeps two groups apart."""
        if group is None or other is None:
            self.links.unblock(None)
            self._log.add("network", "healed")
        else:
            firsts, seconds = self._names(group), self._names(other)
            self.links.unblock((firsts, seconds))
            self._log.add("network", "healed", f"{','.join(firsts)} and {','.join(seconds)}")
        self._try_again()

    def reset_connections(self, first: str, second: str) -> int:
        """Break the connections between two hosts; returns how many there were."""
        far = self.host(second).name
        transports = [
            transport
            for transport in self.host(first).sockets
            if isinstance(transport, MemoryTransport) and transport.outgoing.target.host.name == far
        ]
        for transport in transports:
            self.break_connection(transport, reset_error())
        self._log.add("network", "reset", f"{first} and {second}: {len(transports)} connections")
        return len(transports)

    def slow_reader(self, name: str, bytes_per_s: float | None) -> None:
        """Have the processes of a host read each connection no faster; None lifts that."""
        if bytes_per_s is not None and not bytes_per_s > 0:
            raise ConfigError(f"bytes_per_s={bytes_per_s} must be more than 0, or None")
        self.host(name).read_rate = bytes_per_s
        rate = "without limit" if bytes_per_s is None else f"{bytes_per_s:g} bytes/s"
        self._log.add(name, "reads", rate)

    def lose_power(self, name: str) -> None:
        """Turn a host off: it says nothing to anybody."""
        self.host(name).lose_power()

    def restore_power(self, name: str) -> None:
        """Turn a host on again; it knows of none of its old connections."""
        host = self.host(name)
        if not host.is_on:
            host.is_on = True
            self._try_again()

    def _names(self, group: Iterable[str] | str) -> list[str]:
        names = [group] if isinstance(group, str) else group
        return sorted(self.host(name).name for name in set(names))

    # For transports.

    def reaches(self, source: SimHost, target: SimHost) -> bool:
        """Whether something from the source arrives at the target now."""
        return target.is_on and self.links.is_reachable(source.name, target.name)

    def on_link_open(self, retry: Callable[[], None]) -> None:
        """Have something called when a way may have opened."""
        self._waiting.append(retry)

    def break_connection(self, transport: MemoryTransport, error: OSError) -> None:
        """Have both ends lose a connection."""
        peer = transport.outgoing.target
        transport.reset_by_kernel(error)
        peer.reset_by_kernel(reset_error())

    def _try_again(self) -> None:
        waiting, self._waiting = self._waiting, []
        for retry in waiting:
            delay_s = self.rng.uniform(0, _RETRY_S_MAX)
            self.loop.call_later(delay_s, retry, context=self.context)

    def log(self, host: SimHost, verb: str, details: str) -> None:
        """Write down what happened at a host."""
        self._log.add(host.name, verb, details)

    def deliver(self, source: SimHost, target: SimHost, action: Callable[[], None]) -> None:
        """Act when a packet has arrived that is sent again until it does."""

        def arrive() -> None:
            if self.reaches(source, target):
                action()
            else:
                self.on_link_open(arrive)

        delay = self.links.delay(source.name, target.name)
        self.loop.call_later(delay, arrive, context=self.context)

    def host_at(self, address: str, source: SimHost) -> SimHost | None:
        """Who is reached at an address from a host."""
        if address.startswith("127.") or address == WILDCARD:
            return source
        return self._by_address.get(address)

    def _current_host(self) -> SimHost:
        return self.loop.current_process.host

    # For the loop.

    async def resolve(self, host: Any, port: Any, **options: Any) -> list[tuple[Any, ...]]:
        """What a name resolves to, after the time the question takes."""
        await asyncio.sleep(self.rng.uniform(0, _RESOLVE_S_MAX))
        return self.names.getaddrinfo(host, port, **options)

    async def look_up_name(self, address: tuple[Any, ...]) -> tuple[str, str]:
        """The name for an address, after the time the question takes."""
        await asyncio.sleep(self.rng.uniform(0, _RESOLVE_S_MAX))
        return (self.names.name_of(str(address[0])), str(address[1]))

    async def connect(
        self,
        factory: Callable[[], ProtocolT],
        name: str | None,
        port: int | None,
        local: tuple[str, int] | None,
    ) -> tuple[asyncio.Transport, ProtocolT]:
        """Open a connection; tries the addresses of a name one after another."""
        if not port:
            raise UsageError("a connection needs the port of its peer")
        source = self._current_host()
        errors: list[OSError] = []
        for address in [entry[4][0] for entry in await self.resolve(name, port, proto=6)]:
            bound = local or (source.source_address(address), 0)
            near = (source.own_address(bound[0]), bound[1])
            own = (near[0], source.dialed.take(*near, object()))
            try:
                transport = await DialAttempt(self, source, own, (address, port)).connect()
            except BaseException as error:
                source.dialed.release(*own)
                if not isinstance(error, OSError):
                    raise
                errors.append(error)
                continue
            return await self._begin(transport, factory())
        if len(errors) == 1:
            raise errors[0]
        raise OSError(f"Multiple exceptions: {', '.join(map(str, errors))}")

    async def _begin(
        self, transport: MemoryTransport, protocol: ProtocolT
    ) -> tuple[asyncio.Transport, ProtocolT]:
        ready = self.loop.create_future()
        transport.begin(protocol, ready)
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
        """Bind at the caller's own host."""
        host = self._current_host()
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
        """Bind a datagram socket at the caller's own host."""
        host = self._current_host()
        peer = None if remote is None else (await self.resolve(*remote, proto=17))[0][4]
        own = host.source_address(peer[0]) if peer is not None else WILDCARD
        near = (own, 0) if local is None else (host.own_address(local[0]), local[1])
        transport = MemoryDatagramTransport(self, host, near, peer)
        protocol = factory()
        ready = self.loop.create_future()
        transport.begin(protocol, ready)
        await ready
        return transport, protocol

    # Datagrams on their way.

    def send_datagram(
        self, sender: MemoryDatagramTransport, data: bytes, target: SocketAddress
    ) -> None:
        """Send one; it may be lost, doubled, late."""
        host = self.host_at(target[0], sender.host)
        if host is None:
            return
        names = (sender.host.name, host.name)
        conditions = DEFAULT_CONDITIONS if host is sender.host else self.links.get(*names)
        chance = self.rng.random
        if conditions.loss and chance() < conditions.loss:
            return
        copies = 2 if conditions.duplicate and chance() < conditions.duplicate else 1
        for _ in range(copies):
            when = self.loop.time() + self.links.delay(*names)
            if conditions.reorder and chance() < conditions.reorder:
                when += self.links.reorder_delay(*names)
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
