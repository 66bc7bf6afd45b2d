"""Cells: domains, the cells in them, the routes between them, and commands to cells."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

from postroad.admin.errors import Forbidden, InvalidRequest, NotFound, nearest
from postroad.cells import (
    CellAddress,
    CellDomain,
    CellNotFoundError,
    CellPath,
    CommandRejectedError,
    NoRouteError,
    RouteType,
)
from postroad.cells.routing.route_table import filter_routes
from postroad.cells.shell.ping_commands import domains_of
from postroad.cells.shell.ping_commands import ping as send_ping
from postroad.cells.shell.views import CellView, cell_view
from postroad.core.errors import (
    ConfigError,
    MessagingError,
    PostroadError,
    RemoteHandlerError,
    UsageError,
)

from .limits import Seconds
from .office import Office
from .table import Effect, operation

_SYSTEM = "System"
Pings = Annotated[int, msgspec.Meta(ge=1, le=100)]


class DomainView(msgspec.Struct, frozen=True, kw_only=True):
    """A domain: this one, or one that there is a tunnel to."""

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


class CommandView(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell said."""

    text: str


# Looking.


@operation("cells.domains")
async def list_domains(office: Office) -> list[DomainView]:
    """This domain, and those that there is a tunnel to."""
    domain = office.node.domain
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
        waiting=sum(len(it.mailbox) for it in domain.dispatcher.registry.runners.values()),
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


@operation("cells.ps")
async def list_cells(
    office: Office, domain: str | None = None, pattern: str = "*"
) -> list[CellView]:
    """Cells of this domain, or of another node's; a pattern of names has `*` and `?`."""
    here = office.node.domain
    if domain is not None and domain != here.name:
        told: list[CellView] = await office.ask(domain, "cells.ps", {"pattern": pattern})
        return told
    return [cell_view(here, it) for it in here.cells if fnmatchcase(it, pattern)]


@operation("cells.routes")
async def list_routes(
    office: Office,
    type: RouteType | None = None,
    destination: str | None = None,
    target: str | None = None,
) -> list[RouteView]:
    """The routing table; destination and target are patterns with `*` and `?`."""
    chosen = filter_routes(
        office.node.domain.table, type=type, destination=destination, target=target
    )
    return [
        RouteView(
            type=it.type.value,
            destination=it.destination,
            target=str(it.target),
            zone=it.zone,
        )
        for it in chosen
    ]


@operation("cells.ping")
async def ping(
    office: Office, path: str, count: Pings = 1, timeout_s: Seconds = 2.0
) -> list[PingView]:
    """How long a cell, or whoever takes the messages of a queue, needs to answer."""
    destination = CellPath.parse(path)
    return [
        await _ping(office.node.domain, number, destination, timeout_s)
        for number in range(1, count + 1)
    ]


@operation("cells.traceroute")
async def traceroute(office: Office, path: str, timeout_s: Seconds = 2.0) -> list[HopView]:
    """The domains on the way to a cell and back, and how far away each is."""
    domain = office.node.domain
    try:
        trip = await send_ping(domain, CellPath.parse(path), b"", timeout_s)
    except NoRouteError as error:
        raise _lost(office, path, error) from None
    out, back = domains_of(trip, domain.name)
    hops = []
    for name in dict.fromkeys((*out, *back)):
        measured = await _ping(domain, 1, CellPath.of(f"{_SYSTEM}@{name}"), timeout_s)
        hops.append(
            HopView(
                domain=name,
                is_out=name in out,
                is_back=name in back,
                round_trip_ms=measured.round_trip_ms,
                error=measured.error,
            )
        )
    return hops


def _lost(office: Office, cell: str, error: NoRouteError) -> NotFound:
    """Nobody has such a cell, as far as is known here."""
    return NotFound(f"{error.detail}{nearest(cell, office.node.domain.cells)}")


# Changing.


@operation("cells.run", Effect.CHANGE)
async def run_command(office: Office, cell: str, command: str) -> CommandView:
    """Have a cell run a command, and show what it says; `help` tells which it knows."""
    try:
        return CommandView(text=await office.node.domain.run_command(cell, command))
    except NoRouteError as error:
        raise _lost(office, cell, error) from None
    except RemoteHandlerError as error:
        if error.remote_code == CommandRejectedError.code:
            raise Forbidden(error.detail) from None
        raise


@operation("cells.kill", Effect.DANGER)
async def kill_cell(office: Office, cell: str) -> CommandView:
    """Stop a cell, `name` or `name@domain`, or close a tunnel."""
    return await _tell_system(office, "kill", cell)


@operation("cells.drain", Effect.CHANGE)
async def drain_cell(office: Office, cell: str) -> CommandView:
    """Take a cell, `name` or `name@domain`, out of all queues and topics; it finishes its work."""
    return await _tell_system(office, "drain", cell)


async def _tell_system(office: Office, command: str, cell: str) -> CommandView:
    domain = office.node.domain
    address = CellAddress.parse(cell if "@" in cell else f"{cell}@{domain.name}")
    if address.is_domain:
        raise InvalidRequest(f"{cell!r} is no cell: say which of its cells")
    system = f"{_SYSTEM}@{address.domain}"
    try:
        return CommandView(text=await domain.run_command(system, f"{command} {address.cell}"))
    except RemoteHandlerError as error:
        if error.remote_code == CellNotFoundError.code:
            raise NotFound(error.detail) from None
        if error.remote_code == CommandRejectedError.code:
            raise Forbidden(error.detail) from None
        if error.remote_code == ConfigError.code:
            raise UsageError(error.detail) from None
        raise


async def _ping(
    domain: CellDomain, number: int, destination: CellPath, timeout_s: float
) -> PingView:
    try:
        trip = await send_ping(domain, destination, b"", timeout_s)
    except MessagingError as error:
        return PingView(number=number, round_trip_ms=None, answered_by=None, error=error.detail)
    except PostroadError as error:
        return PingView(number=number, round_trip_ms=None, answered_by=None, error=str(error))
    by = trip.back.first
    return PingView(
        number=number,
        round_trip_ms=_to_ms(trip.seconds),
        answered_by=None if by is None else str(by),
        error=None,
    )


def _to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
