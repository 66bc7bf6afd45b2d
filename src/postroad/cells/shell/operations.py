"""What operators can see of a domain and do to it: for text commands, HTTP, CLI and dashboard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import msgspec

from postroad.cells.addresses import SYSTEM, CellPath
from postroad.cells.messages import PING, decode_pong
from postroad.cells.routing.route import RouteType
from postroad.cells.routing.route_table import filter_routes
from postroad.cells.shell.views import one_line
from postroad.core.errors import ConfigError, MessagingError, PostroadError
from postroad.core.limits import MIB
from postroad.core.operations import Operations

if TYPE_CHECKING:
    from postroad.cells.domain import CellDomain

OPERATIONS = Operations()
operation = OPERATIONS.operation

Pings: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=100)]
PingBytes: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MIB)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=60)]

# An operator waits for the result, so `ping` ends after this many lost pings in a row.
LOST_IN_A_ROW_MAX = 3


class DomainView(msgspec.Struct, frozen=True, kw_only=True):
    """A domain: this one, or one that it has a tunnel to."""

    name: str
    role: str
    """`core` or `satellite`."""
    zone: str | None
    is_local: bool
    gateway: str | None
    """The cell that stands for the tunnel."""
    round_trip_ms: float | None
    sent: int
    """Messages; of this domain itself, those handed to tunnels."""
    received: int
    """Messages; of this domain itself, those handed to its cells."""
    waiting: int
    """Messages that wait for the tunnel, or for the cells of this domain."""

    @property
    def round_trip(self) -> str | None:
        """The round trip as text."""
        return None if self.round_trip_ms is None else f"{self.round_trip_ms:.2f} ms"


class RouteView(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the routing table."""

    type: str
    destination: str
    target: str
    zone: str | None


class PingView(msgspec.Struct, frozen=True, kw_only=True):
    """A ping to a cell."""

    number: int
    round_trip_ms: float | None
    """None if it was not answered."""
    answered_by: str | None
    """The cell that answered; None if it is one of this domain."""
    error: str | None


class HopView(msgspec.Struct, frozen=True, kw_only=True):
    """A domain on the way to a cell and back."""

    domain: str
    is_out: bool
    """Whether the ping came through."""
    is_back: bool
    """Whether the answer did."""
    round_trip_ms: float | None
    """From here to that domain; None if it does not answer."""
    error: str | None


# Queries.


@operation("cells.domains")
async def list_domains(domain: CellDomain) -> list[DomainView]:
    """This domain, and those that there is a tunnel to."""
    statistics = domain.statistics()
    here = DomainView(
        name=domain.name,
        role=domain.identity.role.value,
        zone=domain.identity.zone,
        is_local=True,
        gateway=None,
        round_trip_ms=None,
        sent=statistics.forwarded,
        received=statistics.delivered,
        waiting=sum(len(runner.mailbox) for runner in domain.dispatcher.registry.runners.values()),
    )
    others = []
    for name, link in sorted(domain.links.by_domain.items()):
        now = link.statistics()
        others.append(
            DomainView(
                name=name,
                role=now.domain.role.value,
                zone=now.domain.zone,
                is_local=False,
                gateway=link.gateway,
                round_trip_ms=_to_ms(now.round_trip_s),
                sent=now.sent,
                received=now.received,
                waiting=now.waiting,
            )
        )
    return [here, *others]


@operation("cells.routes")
async def list_routes(
    domain: CellDomain,
    type: RouteType | None = None,
    destination: str | None = None,
    target: str | None = None,
) -> list[RouteView]:
    """The routing table; destination and target are patterns with `*` and `?`."""
    return [
        RouteView(
            type=route.type.value,
            destination=route.destination,
            target=str(route.target),
            zone=route.zone,
        )
        for route in filter_routes(domain.table, type=type, destination=destination, target=target)
    ]


@operation("cells.ping")
async def ping(
    domain: CellDomain, path: str, count: Pings = 1, timeout_s: Seconds = 2.0, size: PingBytes = 0
) -> list[PingView]:
    """How long a cell, or whoever takes the messages of a queue, needs to answer."""
    destination = parse_path(path)
    pings: list[PingView] = []
    lost_in_a_row = 0
    while len(pings) < count and lost_in_a_row < LOST_IN_A_ROW_MAX:
        pings.append(await _ping(domain, len(pings) + 1, destination, timeout_s, bytes(size)))
        lost_in_a_row = 0 if pings[-1].error is None else lost_in_a_row + 1
    return pings


@operation("cells.traceroute")
async def traceroute(domain: CellDomain, path: str, timeout_s: Seconds = 2.0) -> list[HopView]:
    """The domains on the way to a cell and back, and how far away each is."""
    return (await trace(domain, path, timeout_s)).hops


# Pings.


class PingTrip(NamedTuple):
    """Round trip and paths of a ping."""

    seconds: float
    out: CellPath
    """Path of the ping, its sender first."""
    back: CellPath
    """Path of the reply, its sender first; empty if the cell is local."""


class Trace(NamedTuple):
    """Path to a cell and back."""

    seconds: float
    out: list[str]
    """Domains of the ping, both ends included."""
    back: list[str]
    """Domains of the reply, both ends included."""
    hops: list[HopView]
    """Each of these domains once."""


async def trace(domain: CellDomain, path: str, timeout_s: float) -> Trace:
    """Send a ping to a cell, and another one to each domain on its path; raises MessagingError."""
    trip = await _send_ping(domain, parse_path(path), b"", timeout_s)
    end = domain.name if trip.back.first is None else trip.back.first.domain
    out = _each_once((*(hop.domain for hop in trip.out.hops), end))
    back = _each_once((end, *(hop.domain for hop in trip.back.hops), domain.name))
    names = list(dict.fromkeys((*out, *back)))
    pings = await asyncio.gather(
        *(_ping(domain, 1, CellPath.of(f"{SYSTEM}@{name}"), timeout_s, b"") for name in names)
    )
    hops = [
        HopView(
            domain=name,
            is_out=name in out,
            is_back=name in back,
            round_trip_ms=measured.round_trip_ms,
            error=measured.error,
        )
        for name, measured in zip(names, pings, strict=True)
    ]
    return Trace(trip.seconds, out, back, hops)


async def _send_ping(
    domain: CellDomain, destination: CellPath, payload: bytes, timeout_s: float
) -> PingTrip:
    # The clock of a loop may stand still within an iteration: too coarse.
    started = time.perf_counter()
    reply = await domain.ping(destination, PING, payload, timeout_s)
    return PingTrip(time.perf_counter() - started, decode_pong(reply.payload), reply.path)


async def _ping(
    domain: CellDomain, number: int, destination: CellPath, timeout_s: float, payload: bytes
) -> PingView:
    trip, problem = None, None
    try:
        trip = await _send_ping(domain, destination, payload, timeout_s)
    except MessagingError as error:
        problem = one_line(error.detail)
    except PostroadError as error:
        problem = one_line(error)
    answered_by = None if trip is None or trip.back.first is None else str(trip.back.first)
    round_trip_ms = None if trip is None else _to_ms(trip.seconds)
    return PingView(
        number=number, round_trip_ms=round_trip_ms, answered_by=answered_by, error=problem
    )


def parse_path(text: str) -> CellPath:
    """Parse a path; raises ConfigError if it is invalid or empty."""
    path = CellPath.parse(text)
    if not path:
        raise ConfigError("PATH is empty; write cell@domain, or a name")
    return path


def _each_once(domains: Iterable[str]) -> list[str]:
    """Return the names without adjacent duplicates, such as a cell and its domain."""
    return [name for name, _ in groupby(domains)]


def _to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
