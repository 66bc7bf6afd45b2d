"""Domains on loopback for tests: each with a service of its own, found by fixed addresses.

There are domains as they should be (`Domains`), handlers to watch, and one that says whatever a
test wants (`ForgedDomain`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self, TypeVar

import msgspec

from postroad.cells import (
    CellAddress,
    CellDomain,
    CellHandler,
    CellMessage,
    CellPath,
    CellsConfig,
    Role,
    RouteAdvertiserConfig,
    RouteLearnerConfig,
    StaticCoreDiscovery,
)
from postroad.cells.config import RemoteCommands
from postroad.cells.delivery.domain_links import MESSAGE, ROUTES, DomainLink
from postroad.cells.delivery.envelope import Envelope, MessageKind
from postroad.cells.delivery.envelope_codec import decode_envelope, encode_envelope
from postroad.cells.delivery.failure import DeliveryFailure, decode_failure
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementUpdate,
    RouteAdvertisement,
    RoutingUpdate,
    decode_routing_update,
    encode_routing_update,
)
from postroad.core import Address, Limits
from postroad.net import MessagingService, TlsConfig, Tunnel
from postroad.wire import RequestFrame
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.process import free_port

QUICK = CellsConfig(
    call_timeout_s=10.0,
    redial_initial_delay_s=0.02,
    redial_max_delay_s=0.2,
    stop_grace_s=2.0,
    advertiser=RouteAdvertiserConfig(resend_first_s=0.2, resend_max_s=1.0, check_interval_s=1.0),
    route_learner=RouteLearnerConfig(default_delay_s=0.05),
)
"""Times that let a test end soon."""
LIMITS = Limits(heartbeat_interval_s=0.2, heartbeat_timeout_s=20.0, stop_grace_s=1.0)
"""Nobody is given up because it is held up for a moment."""
CLUSTER = "test"

H = TypeVar("H", bound=CellHandler)


class Inbox:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[CellMessage] = []

    def __call__(self, message: CellMessage) -> bytes:
        self.messages.append(message)
        return message.payload

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]


class Gate:
    """A handler that works on what it gets until it is let go, and keeps the order."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.finished: list[bytes] = []
        self.cancelled = 0
        self._opened = asyncio.Event()

    async def __call__(self, message: CellMessage) -> bytes:
        self.begun.append(message.payload)
        try:
            await self._opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.finished.append(message.payload)
        return message.payload

    def open(self) -> None:
        """Let everything through, also what is to come."""
        self._opened.set()

    def close(self) -> None:
        """Hold up what is to come."""
        self._opened.clear()


class Domains:
    """Cores and satellites, connected as the rules say: `async with Domains(2, 3) as domains:`.

    Args:
        cores, satellites: how many; they are called C1, C2, ... and S1, S2, ...
        config, limits: of every domain and its service.
        reach: by its name, the cores a domain is told of; all of them if it is not named here.
        zones: by its name, the zone of a domain that has one.
        limits_of: by its name, the limits of a service with other ones.
        tls: gives the certificates of each name; without it everything is in the clear.
        may_be_cores: what may be a core for every domain; None for whoever says so.
        remote_commands: which commands of others every domain answers.
    """

    def __init__(
        self,
        cores: int,
        satellites: int,
        *,
        config: CellsConfig = QUICK,
        limits: Limits = LIMITS,
        reach: Mapping[str, Iterable[str]] | None = None,
        zones: Mapping[str, str] | None = None,
        limits_of: Mapping[str, Limits] | None = None,
        tls: Callable[[str], TlsConfig] | None = None,
        may_be_cores: Iterable[str] | None = None,
        remote_commands: RemoteCommands = "change",
    ) -> None:
        self._may_be_cores = may_be_cores
        self._remote_commands: RemoteCommands = remote_commands
        self._config = config
        self._limits = limits
        self._reach = {name: frozenset(cores) for name, cores in (reach or {}).items()}
        self._zones = dict(zones or {})
        self._limits_of = dict(limits_of or {})
        self._tls = tls
        self.core_names = [f"C{n + 1}" for n in range(cores)]
        self.satellite_names = [f"S{n + 1}" for n in range(satellites)]
        self._stack = AsyncExitStack()
        self.services: dict[str, MessagingService] = {}
        self.by_name: dict[str, CellDomain] = {}

    def __getitem__(self, name: str) -> CellDomain:
        return self.by_name[name]

    async def __aenter__(self) -> Self:
        try:
            # Everybody listens before anybody dials, so that all addresses are known.
            for name in (*self.core_names, *self.satellite_names):
                await self._open_service(name)
            for name in (*self.core_names, *self.satellite_names):
                await self.start(name)
            await self.connected()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._stack.aclose()

    async def _open_service(self, name: str, bind: str = "") -> None:
        # One that nobody gets by chance, because it may be started there again.
        bind = bind or f"127.0.0.1:{free_port()}"
        limits = self._limits_of.get(name, self._limits)
        tls = None if self._tls is None else self._tls(name)
        service = MessagingService(CLUSTER, name, bind, tls=tls, limits=limits)
        await self._stack.enter_async_context(service)
        self.services[name] = service

    def locations(self, name: str) -> StaticCoreDiscovery:
        """The cores as a domain is told of them."""
        cores = [core for core in self.core_names if core in self._reached(name)]
        return StaticCoreDiscovery({name: [self.services[name].address] for name in cores})

    def _reached(self, name: str) -> frozenset[str]:
        return self._reach.get(name, frozenset(self.core_names))

    async def start(self, name: str, *, zone: str | None = None) -> CellDomain:
        """Start a domain, for the first time or with a service of its own again."""
        if name in self.by_name:
            address = str(self.services[name].address)
            await self.services[name].stop()
            await self._open_service(name, address)
        role = Role.CORE if name in self.core_names else Role.SATELLITE
        domain = CellDomain(
            self.services[name],
            role=role,
            zone=zone or self._zones.get(name),
            core_discovery=self.locations(name),
            cores=self._may_be_cores,
            remote_commands=self._remote_commands,
            config=self._config,
        )
        await self._stack.enter_async_context(domain)
        self.by_name[name] = domain
        return domain

    def add(self, name: str, cell: str, handler: H, **options: Any) -> H:
        """Add a handler to a domain as a cell; return it."""
        self.by_name[name].add_function(cell, handler, **options)
        return handler

    async def connected(self) -> None:
        """Wait until there are all tunnels there should be, and everybody knows everything."""
        await eventually(lambda: all(self._has_tunnels(name) for name in self.by_name))
        await self.settled()

    def _has_tunnels(self, name: str) -> bool:
        domain = self.by_name[name]
        peers = {peer for peer in self.by_name if peer != name and self._should_meet(name, peer)}
        if set(domain.links.by_domain) != peers:
            return False
        return name in self.core_names or len(domain.table.defaults()) == len(peers)

    def _should_meet(self, one: str, other: str) -> bool:
        """Whether there is to be a tunnel: whoever dials must be told of the other."""
        dialing, dialed = (one, other) if other in self.core_names else (other, one)
        if dialing in self.core_names:
            dialed, dialing = sorted((one, other))
        return dialed in self.core_names and dialed in self._reached(dialing)

    async def settled(self) -> None:
        """Wait until every domain knows what the others offer."""
        for domain in self.by_name.values():
            assert await domain.wait_routes_acknowledged(DEADLINE_S)


def names_of(messages: Sequence[CellMessage]) -> list[str | None]:
    """The queues and topics that messages came by."""
    return [message.route_name for message in messages]


def quick(**changes: object) -> CellsConfig:
    """The quick times with something else changed."""
    return msgspec.structs.replace(QUICK, **changes)


def link_of(domain: CellDomain, peer: str) -> DomainLink:
    """The tunnel of a domain to another one."""
    return domain.links.by_domain[peer]


async def cut(domain: CellDomain, peer: str) -> None:
    """Have a tunnel break off, as if a cable was pulled; it may be dialed again.

    One that is being dialed again since the last cut is waited for.
    """
    await eventually(lambda: peer in domain.links.by_domain)
    tunnel = link_of(domain, peer).tunnel
    tunnel.abort()
    await tunnel.wait_closed()


# A domain that says whatever a test wants.


class ForgedDomain:
    """One end of a tunnel, by hand: the other end is a real domain."""

    def __init__(self, service: MessagingService) -> None:
        self.service = service
        self.name = service.name
        self.tunnel: Tunnel
        self.requests: list[RequestFrame] = []
        self.lost_because: str | None = None

    # The user of the tunnel.

    def on_messages(self, requests: list[RequestFrame]) -> None:
        self.requests += requests

    def on_writable(self) -> None:
        """Tests post so little that it never matters."""

    def on_lost(self, reason: str) -> None:
        self.lost_because = reason

    # What it says.

    async def connect(self, address: Address) -> Self:
        self.tunnel = await self.service.tunnels.open(address, lambda tunnel: self)
        return self

    def send_encoded(self, payload: bytes, subject: str = MESSAGE) -> None:
        """Say anything."""
        self.tunnel.send_nowait(subject, payload)

    def send(
        self,
        destination: str,
        payload: bytes = b"",
        *,
        source: CellPath | None = None,
        **fields: object,
    ) -> bytes:
        """Send a request, from a cell `p` unless it says otherwise; gives its id."""
        id = os.urandom(16)
        envelope = Envelope(
            **{
                "id": id,
                "destination": CellPath.parse(destination),
                "source": self.path("p") if source is None else source,
                "wants_reply": True,
                "payload": payload,
                **fields,
            }  # type: ignore[arg-type]
        )
        self.send_encoded(encode_envelope(envelope))
        return id

    def path(self, *cells: str) -> CellPath:
        """A source path of cells of this domain, which the domain itself has sent on."""
        hops = [CellAddress(cell, self.name) for cell in cells]
        return CellPath((*hops, CellAddress.of_domain(self.name)))

    def send_update(self, update: RoutingUpdate) -> None:
        """Send news of routes."""
        self.send_encoded(encode_routing_update(update), ROUTES)

    def advertise(self, number: int, advertisement: RouteAdvertisement) -> None:
        self.send_update(AdvertisementUpdate(self.service.incarnation, number, advertisement))

    async def acknowledge(self, peer: CellDomain) -> None:
        """Say that everything is known that the peer offers; until then it tells no more."""
        await eventually(
            lambda: any(isinstance(update, AdvertisementUpdate) for update in self.updates)
        )
        update = [update for update in self.updates if isinstance(update, AdvertisementUpdate)][-1]
        self.send_update(
            AdvertisementAck(update.incarnation, update.number, update.advertisement.digest())
        )
        await eventually(lambda: self.name not in peer.propagator.advertiser.unacknowledged())

    # What it hears.

    @property
    def envelopes(self) -> list[Envelope]:
        return [
            decode_envelope(request.payload)
            for request in self.requests
            if request.subject == MESSAGE
        ]

    @property
    def updates(self) -> list[RoutingUpdate]:
        return [
            decode_routing_update(request.payload)
            for request in self.requests
            if request.subject == ROUTES
        ]

    def answers_to(self, id: bytes) -> list[Envelope]:
        return [envelope for envelope in self.envelopes if envelope.in_reply_to == id]

    async def answer_to(self, id: bytes) -> Envelope:
        """The reply or error that answers a request."""
        await eventually(lambda: self.answers_to(id))
        return self.answers_to(id)[0]

    async def failure_of(self, id: bytes) -> DeliveryFailure:
        """What the error reply to a request says."""
        answer = await self.answer_to(id)
        assert answer.kind is MessageKind.ERROR
        return decode_failure(answer.payload)


@asynccontextmanager
async def forged_domain(
    peer: CellDomain, name: str = "X", *, role: Role = Role.SATELLITE, limits: Limits = LIMITS
) -> AsyncIterator[ForgedDomain]:
    """A domain by hand that is connected to a real one."""
    async with MessagingService(CLUSTER, name, limits=limits) as service:
        service.set_hello_role(role.value, None)
        forged = await ForgedDomain(service).connect(peer.service.address)
        await eventually(lambda: name in peer.links.by_domain)
        yield forged


@asynccontextmanager
async def beside_others(role: Role = Role.SATELLITE) -> AsyncIterator[tuple[Domains, ForgedDomain]]:
    """A forged domain at C1; in the end its tunnel, and everybody else, must be as before."""
    async with Domains(1, 2) as domains:
        inbox = Inbox()
        domains["C1"].add_function("echo", inbox)
        domains["S2"].add_function("echo", inbox)
        async with forged_domain(domains["C1"], role=role) as forged:
            yield domains, forged
            reply = await forged.answer_to(forged.send("echo@C1", b"still here"))
            assert reply.payload == b"still here"
            assert forged.lost_because is None
            assert await domains["S1"].call("echo@S2", b"x") == b"x"
