"""Operations of a domain for operators: for text commands, HTTP, CLI and dashboard."""

from __future__ import annotations

import asyncio
import time
from difflib import get_close_matches
from fnmatch import fnmatchcase
from shlex import quote
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec

from postroad.cells.addresses import SYSTEM, CellAddress, CellPath
from postroad.cells.errors import CellNotFoundError, CommandRejectedError, NoRouteError
from postroad.cells.messages import PING, decode_pong
from postroad.cells.routing.route import RouteType
from postroad.cells.routing.route_table import filter_routes
from postroad.cells.shell.views import CellView, CommandView, cell_view, one_line
from postroad.core.errors import (
    ConfigError,
    MessagingError,
    PostroadError,
    RemoteHandlerError,
    UsageError,
)
from postroad.core.limits import MIB
from postroad.core.operations import Effect, Operations

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
    """The cell of the tunnel."""
    round_trip_ms: float | None
    sent: int
    """Messages sent through the tunnel; for this domain, through all tunnels."""
    received: int
    """Messages received through the tunnel; for this domain, delivered to its cells."""
    waiting: int
    """Messages queued for the tunnel; for this domain, in the mailboxes of its cells."""


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
    """None if there was no reply."""
    answered_by: str | None
    """The cell that replied; None if it is a cell of this domain."""
    error: str | None


class HopView(msgspec.Struct, frozen=True, kw_only=True):
    """A domain on the path to a cell and back."""

    domain: str
    is_out: bool
    """Whether it is on the path of the ping."""
    is_back: bool
    """Whether it is on the path of the reply."""
    round_trip_ms: float | None
    """From this domain to that one and back; None if there was no reply."""
    error: str | None


# Queries.


@operation("cells.domains")
async def list_domains(domain: CellDomain) -> list[DomainView]:
    """List this domain, and the domains that it has a tunnel to."""
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
                round_trip_ms=None if now.round_trip_s is None else now.round_trip_s * 1000,
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
    """List the route table; destination and target are patterns with `*` and `?`."""
    return [
        RouteView(
            type=route.type.value,
            destination=route.destination,
            target=str(route.target),
            zone=route.zone,
        )
        for route in filter_routes(domain.table, type=type, destination=destination, target=target)
    ]


@operation("cells.ps")
async def list_cells(domain: CellDomain, pattern: str = "*") -> list[CellView]:
    """List the cells of this domain; a pattern of names has `*` and `?`."""
    return [cell_view(domain, name) for name in domain.cells if fnmatchcase(name, pattern)]


@operation("cells.ping")
async def ping(
    domain: CellDomain, path: str, count: Pings = 1, timeout_s: Seconds = 2.0, size: PingBytes = 0
) -> list[PingView]:
    """Measure the round trip to a cell, or to a consumer of a queue."""
    destination = parse_path(path)
    pings: list[PingView] = []
    lost_in_a_row = 0
    while len(pings) < count and lost_in_a_row < LOST_IN_A_ROW_MAX:
        pings.append(await _ping(domain, len(pings) + 1, destination, timeout_s, bytes(size)))
        lost_in_a_row = 0 if pings[-1].error is None else lost_in_a_row + 1
    return pings


@operation("cells.traceroute")
async def traceroute(domain: CellDomain, path: str, timeout_s: Seconds = 2.0) -> list[HopView]:
    """List the domains on the path to a cell and back, and the round trip to each."""
    try:
        _, path_out, path_back = await _send_ping(domain, parse_path(path), b"", timeout_s)
    except NoRouteError as error:
        raise _not_found(domain, path, error) from None
    end = domain.name if path_back.first is None else path_back.first.domain
    out = (*(hop.domain for hop in path_out.hops), end)
    back = (end, *(hop.domain for hop in path_back.hops), domain.name)
    names = list(dict.fromkeys((*out, *back)))
    pings = await asyncio.gather(
        *(_ping(domain, 1, CellPath.of(f"{SYSTEM}@{name}"), timeout_s, b"") for name in names)
    )
    return [
        HopView(
            domain=name,
            is_out=name in out,
            is_back=name in back,
            round_trip_ms=measured.round_trip_ms,
            error=measured.error,
        )
        for name, measured in zip(names, pings, strict=True)
    ]


# Changes.


@operation("cells.run", Effect.CHANGE)
async def run_command(domain: CellDomain, cell: str, command: str) -> CommandView:
    """Run a command in a cell, and show its output; `help` lists its commands."""
    return await _run(domain, cell, cell, command)


@operation("cells.kill", Effect.DANGER)
async def kill_cell(domain: CellDomain, cell: str) -> CommandView:
    """Stop a cell, `name` or `name@domain`, or close a tunnel."""
    address = _parse_cell(domain, cell)
    if address.domain != domain.name:
        return await _run(domain, cell, f"{SYSTEM}@{address.domain}", f"kill {quote(address.cell)}")
    links = domain.links.by_domain.values()
    link = next((link for link in links if link.gateway == address.cell), None)
    if link is not None:
        link.tunnel.close("closed by an operator")
        await link.tunnel.wait_closed()
        return CommandView(text=f"{link.gateway} is closed; the domain that dialed it will redial")
    _check_not_system(domain, address.cell, "killed")
    await domain.remove_cell(address.cell)
    return CommandView(text=f"{address.cell} is removed")


@operation("cells.drain", Effect.CHANGE)
async def drain_cell(domain: CellDomain, cell: str) -> CommandView:
    """Withdraw a cell, `name` or `name@domain`, from all queues and topics; wait until idle."""
    address = _parse_cell(domain, cell)
    if address.domain != domain.name:
        system, command = f"{SYSTEM}@{address.domain}", f"drain {quote(address.cell)}"
        return await _run(domain, cell, system, command)
    _check_not_system(domain, address.cell, "drained")
    if await domain.drain_cell(address.cell):
        return CommandView(text=f"{address.cell} is drained")
    return CommandView(
        text=f"{address.cell} is withdrawn, but still busy, or a peer has not acknowledged it; "
        "see 'ps'"
    )


async def _run(domain: CellDomain, cell: str, destination: str, line: str) -> CommandView:
    """Run a text command; raises its errors as they would be raised in this domain."""
    try:
        return CommandView(text=await domain.run_command(destination, line))
    except NoRouteError as error:
        raise _not_found(domain, cell, error) from None
    except RemoteHandlerError as error:
        kind = _REMOTE_ERRORS.get(error.remote_code)
        if kind is None:
            raise
        raise kind(error.detail) from None


_REMOTE_ERRORS: dict[int, type[PostroadError]] = {
    kind.code: kind for kind in (CellNotFoundError, CommandRejectedError, ConfigError, UsageError)
}


def _not_found(domain: CellDomain, cell: str, error: NoRouteError) -> CellNotFoundError:
    near = get_close_matches(cell, domain.cells, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return CellNotFoundError(f"{error.detail}{hint}")


def _parse_cell(domain: CellDomain, text: str) -> CellAddress:
    """Parse the name or address of a cell; raises ConfigError if it is no cell."""
    address = CellAddress.parse(text if "@" in text else f"{text}@{domain.name}")
    if address.is_domain:
        raise ConfigError(f"{text!r} is no cell: write CELL@DOMAIN")
    return address


def _check_not_system(domain: CellDomain, cell: str, action: str) -> None:
    if cell_view(domain, cell).is_system:
        raise UsageError(f"{cell} is a built-in cell and cannot be {action}")


# Pings.


async def _send_ping(
    domain: CellDomain, destination: CellPath, payload: bytes, timeout_s: float
) -> tuple[float, CellPath, CellPath]:
    """Return the seconds of the round trip, and the paths of the ping and of its reply."""
    # The clock of a loop may stand still within an iteration: too coarse.
    started = time.perf_counter()
    reply = await domain.ping(destination, PING, payload, timeout_s)
    return time.perf_counter() - started, decode_pong(reply.payload), reply.path


async def _ping(
    domain: CellDomain, number: int, destination: CellPath, timeout_s: float, payload: bytes
) -> PingView:
    round_trip_ms = answered_by = problem = None
    try:
        seconds, _, back = await _send_ping(domain, destination, payload, timeout_s)
        round_trip_ms = seconds * 1000
        answered_by = None if back.first is None else str(back.first)
    except MessagingError as error:
        problem = one_line(error.detail)
    except PostroadError as error:
        problem = one_line(error)
    return PingView(
        number=number, round_trip_ms=round_trip_ms, answered_by=answered_by, error=problem
    )


def parse_path(text: str) -> CellPath:
    """Parse a path; raises ConfigError if it is invalid or empty."""
    path = CellPath.parse(text)
    if not path:
        raise ConfigError("PATH is empty; write cell@domain, or a name")
    return path
