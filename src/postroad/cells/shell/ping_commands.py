"""The commands `ping` and `traceroute`: round trips and paths to cells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from postroad.cells.addresses import CellPath
from postroad.cells.messages import PING, decode_pong
from postroad.cells.shell.commands import check_range, check_seconds, command, parse_path
from postroad.cells.shell.views import format_milliseconds, format_names, format_table, one_line
from postroad.core import PostroadError
from postroad.core.errors import MessagingError
from postroad.core.limits import MIB

if TYPE_CHECKING:
    from postroad.cells.cell import Cell
    from postroad.cells.domain import CellDomain

_COUNT_MAX = 100
# An operator waits for the result, so `ping` ends after this many lost pings in a row.
_LOST_IN_A_ROW_MAX = 3


class PingTrip(NamedTuple):
    """Round trip and paths of a ping."""

    seconds: float
    out: CellPath
    """Path of the ping, its sender first."""
    back: CellPath
    """Path of the reply, its sender first; empty if the cell is local."""


async def ping(
    domain: CellDomain, destination: CellPath, payload: bytes, timeout_s: float
) -> PingTrip:
    """Send a ping and wait for the reply.

    Raises:
        MessagingError: the ping was not delivered, or the reply timed out.
        MalformedPayloadError: the reply is no reply to a ping.
    """
    # The clock of a loop may stand still within an iteration: too coarse.
    started = time.perf_counter()
    reply = await domain.ping(destination, PING, payload, timeout_s)
    return PingTrip(time.perf_counter() - started, decode_pong(reply.payload), reply.path)


def domains_of(trip: PingTrip, local_domain: str) -> tuple[list[str], list[str]]:
    """Return the domains of the ping and of its reply, both ends included."""
    end = local_domain if trip.back.first is None else trip.back.first.domain
    out = _each_once((*(hop.domain for hop in trip.out.hops), end))
    back = _each_once((end, *(hop.domain for hop in trip.back.hops), local_domain))
    return out, back


class PingCommands:
    """`ping` and `traceroute`."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @command(
        "ping",
        "PATH [-count=N] [-size=BYTES] [-timeout=S]",
        help="Measure the round trip to a cell, or to a consumer of a queue.\n"
        f"Sends N pings of BYTES one by one, each with a timeout of S seconds; stops after\n"
        f"{_LOST_IN_A_ROW_MAX} lost pings in a row.",
        is_read=True,
    )
    async def ping(self, path: str, *, count: int = 1, size: int = 0, timeout: float = 2.0) -> str:
        """Send pings one by one."""
        destination = parse_path(path)
        check_range("-count", count, 1, _COUNT_MAX)
        check_range("-size", size, 0, MIB)
        check_seconds(timeout)
        trips: list[PingTrip] = []
        losses: list[str] = []
        lost_in_a_row = 0
        while len(trips) + len(losses) < count and lost_in_a_row < _LOST_IN_A_ROW_MAX:
            trip = await self._ping(destination, bytes(size), timeout)
            if isinstance(trip, PingTrip):
                trips.append(trip)
                lost_in_a_row = 0
            else:
                losses.append(trip)
                lost_in_a_row += 1
        return _report(path, trips, losses)

    @command(
        "traceroute",
        "PATH [-timeout=S]",
        help="Show the domains on the path to a cell and back, and the round trip to each.\n"
        "Messages to other names, and the pings to each domain, may take other paths.",
        is_read=True,
    )
    async def traceroute(self, path: str, *, timeout: float = 2.0) -> str:
        """Send a ping, and another one to each domain on its path."""
        destination = parse_path(path)
        check_seconds(timeout)
        trip = await self._ping(destination, b"", timeout)
        if not isinstance(trip, PingTrip):
            return f"no reply from {path}: {trip}"
        out, back = domains_of(trip, self._cell.domain.name)
        domains = list(dict.fromkeys((*out, *back)))
        trips = await asyncio.gather(*(self._measure(name, timeout) for name in domains))
        return "\n".join(
            (
                f"{path} replied after {format_milliseconds(trip.seconds)}",
                f"out:   {' -> '.join(out)}",
                f"back:  {' -> '.join(back)}",
                "",
                format_table(("DOMAIN", "ROUND TRIP"), zip(domains, trips, strict=True)),
            )
        )

    async def _measure(self, domain: str, timeout_s: float) -> str:
        system = CellPath.of(f"{self._cell.name}@{domain}")
        trip = await self._ping(system, b"", timeout_s)
        return (
            format_milliseconds(trip.seconds) if isinstance(trip, PingTrip) else f"no reply: {trip}"
        )

    async def _ping(
        self, destination: CellPath, payload: bytes, timeout_s: float
    ) -> PingTrip | str:
        """Return the trip, or why it failed."""
        try:
            return await ping(self._cell.domain, destination, payload, timeout_s)
        except MessagingError as error:
            return one_line(error.detail)
        except PostroadError as error:
            return one_line(error)


def _each_once(domains: Iterable[str]) -> list[str]:
    """Return the names without adjacent duplicates, such as a cell and its domain."""
    return [name for name, _ in groupby(domains)]


def _report(path: str, trips: list[PingTrip], losses: list[str]) -> str:
    lines = [f"{path}: {len(trips) + len(losses)} sent, {len(trips)} replied{_by(trips)}"]
    if trips:
        times = [trip.seconds for trip in trips]
        least, mean, most = map(
            format_milliseconds, (min(times), sum(times) / len(times), max(times))
        )
        lines.append(f"round trip: min {least}, avg {mean}, max {most}")
    lines += [f"no reply: {text}" for text in dict.fromkeys(losses)]
    return "\n".join(lines)


def _by(trips: list[PingTrip]) -> str:
    """Return the cells that replied from other domains, as text."""
    cells = sorted({str(trip.back.first) for trip in trips if trip.back})
    return f" by {format_names(cells)}" if cells else ""
