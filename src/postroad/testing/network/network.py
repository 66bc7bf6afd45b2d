"""The memory network: what transports and the loop ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from postroad.core.errors import UsageError
from postroad.testing.event_log import EventLog

from .conditions import DEFAULT_CONDITIONS
from .datagram import MemoryDatagramTransport
from .dialing import DialAttempt
from .hosts import WILDCARD, SimHost, SocketAddress
from .server import MemoryServer
from .stream import MemoryTransport
from .topology import Topology

if TYPE_CHECKING:
    from postroad.testing.loop import SimLoop

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

_LOOK_UP_S_MAX = 0.002
_OWN_NAME = "test"
_OWN_ADDRESS = "10.255.255.254"


class MemoryNetwork(Topology):
    """Connects the hosts of one simulated loop, with the transports of real sockets.

    Attributes:
        own_host: where the test itself runs.
        stream_timeout_s: a connection whose data stands still for so long breaks, as with TCP.
        connect_timeout_s: nobody waits longer for an answer to a request to connect.
    """

    def __init__(self, loop: SimLoop, rng: Random, log: EventLog) -> None:
        super().__init__(loop, rng, log)
        self.stream_timeout_s = 900.0
        self.connect_timeout_s = 127.0
        self.own_host = self.add_host(_OWN_NAME, _OWN_ADDRESS)

    # For transports.

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

        delay = self.ways.delay(source.name, target.name)
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
        await asyncio.sleep(self.rng.uniform(0, _LOOK_UP_S_MAX))
        return self.names.getaddrinfo(host, port, **options)

    async def look_up_name(self, address: tuple[Any, ...]) -> tuple[str, str]:
        """The name for an address, after the time the question takes."""
        await asyncio.sleep(self.rng.uniform(0, _LOOK_UP_S_MAX))
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
            wanted = local or (source.source_address(address), 0)
            near = (source.own_address(wanted[0]), wanted[1])
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
        wanted = [names] if names is None or isinstance(names, str) else list(names)
        server = MemoryServer(self, host, factory)
        server.bind([host.own_address(name) for name in wanted], port)
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
        conditions = DEFAULT_CONDITIONS if host is sender.host else self.ways.get(*names)
        chance = self.rng.random
        if conditions.loss and chance() < conditions.loss:
            return
        copies = 2 if conditions.duplicate and chance() < conditions.duplicate else 1
        for _ in range(copies):
            when = self.loop.time() + self.ways.delay(*names)
            if conditions.reorder and chance() < conditions.reorder:
                when += self.ways.reorder_delay(*names)
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
