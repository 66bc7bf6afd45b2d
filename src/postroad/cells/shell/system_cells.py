"""The built-in cells of a domain: System, location manager, and one for each tunnel."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.cells.addresses import SYSTEM, Role
from postroad.cells.cell import Cell
from postroad.cells.messages import CellMessage
from postroad.cells.shell.commands import command, quote
from postroad.cells.shell.log_buffer import LOG_BUFFER, LogCommands
from postroad.cells.shell.operations import list_domains
from postroad.cells.shell.ping_commands import PingCommands
from postroad.cells.shell.route_commands import RouteCommands
from postroad.cells.shell.routing_manager import RoutingManager
from postroad.cells.shell.views import (
    CellView,
    cell_view,
    format_fields,
    format_milliseconds,
    format_table,
    one_line,
)
from postroad.core.errors import ConfigError, HandshakeRejectedError, UsageError
from postroad.core.timing import format_duration

if TYPE_CHECKING:
    from postroad.cells.delivery.domain_links import DomainLink
    from postroad.cells.domain import CellDomain


class BuiltinCell(Cell):
    """Base class of the cells of the domain itself, which accept commands only."""

    is_system = True

    def handle(self, message: CellMessage) -> Any:
        """Reject messages."""
        raise UsageError(f"{self.name} accepts commands only; try 'help'")


class TunnelCell(BuiltinCell):
    """Tunnel to another domain."""

    def __init__(self, link: DomainLink) -> None:
        super().__init__(link.gateway)
        self._link = link

    def describe(self) -> str:
        """Return role, name and zone of the peer."""
        domain = self._link.domain
        zone = "" if domain.zone is None else f" of zone {domain.zone}"
        return f"tunnel to {domain.role.value} {domain.name}{zone}"

    @command("info", help="Show counters and queue of the tunnel.", is_read=True)
    def info(self) -> str:
        """Return counters and gauges of the tunnel."""
        now = self._link.statistics()
        trip = None if now.round_trip_s is None else format_milliseconds(now.round_trip_s)
        fields = (
            ("address", self._link.tunnel.peer.address),
            ("incarnation", now.incarnation),
            ("round trip", trip or "not measured"),
            ("sent", f"{now.sent} messages"),
            ("received", f"{now.received} messages, {now.malformed} malformed"),
            ("waiting", f"{now.waiting} messages, {now.waiting_bytes} bytes"),
            ("refused", f"{now.refused} messages"),
        )
        return f"{self.describe()}\n{format_fields(fields)}"


def make_tunnel_cell(link: DomainLink) -> TunnelCell:
    """Create the cell of a tunnel; raises HandshakeRejectedError if its name is invalid."""
    try:
        return TunnelCell(link)
    except ConfigError as error:
        raise HandshakeRejectedError(
            f"invalid name of domain {link.domain.name}: {error}"
        ) from None


_HEADINGS = ("CORE", "ZONE", "TUNNEL", "ROUND TRIP", "DIALED BY", "ENDPOINTS", "STATE")


class LocationManager(BuiltinCell):
    """Locations of the cores."""

    def __init__(self, name: str = "lm") -> None:
        super().__init__(name)

    @command("ls", help="List the cores and the tunnels to them.", is_read=True)
    def show_cores(self) -> str:
        """Return a line for each core, with the error of its last dial."""
        links = self.domain.links.by_domain
        connected_cores = {name for name, link in links.items() if link.domain.role is Role.CORE}
        cores = sorted(connected_cores | self.domain.dialer.cores.keys())
        return format_table(_HEADINGS, map(self._row, cores)) if cores else "no cores are known"

    def _row(self, name: str) -> tuple[object, ...]:
        domain = self.domain
        location = domain.dialer.cores.get(name)
        link = domain.links.by_domain.get(name)
        zone = location.zone if location is not None else None
        if zone is None and link is not None:
            zone = link.domain.zone
        return (
            name,
            zone,
            "no" if link is None else "yes",
            format_milliseconds(None if link is None else link.tunnel.round_trip_s),
            "us" if domain.dialer.should_dial(name) else "it",
            location,
            self._state_of(name),
        )

    def _state_of(self, name: str) -> str:
        """Return the problems of a core, or "ok"."""
        dialer = self.domain.dialer
        failure = dialer.failures.get(name)
        problems = []
        if name not in dialer.cores:
            problems.append("not listed by core discovery")
        elif (unlisted_s := dialer.unlisted_s(name)) is not None:
            problems.append(f"not listed by core discovery for {format_duration(unlisted_s)}")
        if failure is not None:
            problems.append(failure)
        return "; ".join(problems) or "ok"

    @command("info", help="Show the statistics of core discovery.", is_read=True)
    def info(self) -> str:
        """Return the statistics of core discovery."""
        core_discovery = self.domain.core_discovery
        counts = msgspec.structs.asdict(core_discovery.statistics())
        fields = (
            (name.removeprefix("is_").replace("_", " "), value) for name, value in counts.items()
        )
        return format_fields(
            [("source", type(core_discovery).__name__), *((k, _format_value(v)) for k, v in fields)]
        )


def _format_value(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return None if value == "" else value


# Commands may wait for other domains, which may wait for this one: a queue would deadlock.
_CONCURRENCY = 64
_CELL_HEADINGS = (
    *("NAME", "STATE", "WAITING", "OLDEST WAIT"),
    *("RUNNING", "HANDLED", "CLASS", "DESCRIPTION"),
)


class SystemCell(BuiltinCell):
    """The domain itself."""

    def __init__(self, name: str = SYSTEM) -> None:
        super().__init__(name, concurrency=_CONCURRENCY)
        self.command_sets = (RouteCommands(self), PingCommands(self), LogCommands())
        # Set when it starts.
        self._started_at = 0.0

    async def on_start(self) -> None:
        """Attach the log buffer."""
        LOG_BUFFER.attach(self)
        self._started_at = asyncio.get_running_loop().time()

    async def on_stop(self) -> None:
        """Detach the log buffer."""
        LOG_BUFFER.detach(self)

    # Queries.

    @command("id", help="Show the name of this domain.", is_read=True)
    def id(self) -> str:
        """Return the name of the domain."""
        return self.domain.name

    @command("info", help="Show identity, counters and tunnels of this domain.", is_read=True)
    async def info(self) -> str:
        """Return identity, counters and tunnels of the domain."""
        domain = self.domain
        identity, counts = domain.identity, msgspec.structs.asdict(domain.statistics())
        uptime_s = asyncio.get_running_loop().time() - self._started_at
        cores = (
            ("domain", identity.name),
            ("role", identity.role.value),
            ("zone", identity.zone),
            ("incarnation", domain.service.incarnation),
            ("address", domain.service.address),
            ("uptime", timedelta(seconds=round(uptime_s))),
            ("cells", len(domain.cells)),
            ("routes", len(domain.table)),
        )
        messages = ((name.replace("_", " "), count) for name, count in counts.items())
        return "\n\n".join((format_fields(cores), format_fields(messages), await self._tunnels()))

    async def _tunnels(self) -> str:
        _, *peers = await list_domains(self.domain)
        headings = ("TUNNEL TO", "ROLE", "ZONE", "ROUND TRIP", "SENT", "RECEIVED", "WAITING")
        rows = (
            (
                peer.name,
                peer.role,
                peer.zone,
                peer.round_trip,
                peer.sent,
                peer.received,
                peer.waiting,
            )
            for peer in peers
        )
        return format_table(headings, rows) if peers else "no tunnels"

    @command(
        "ps",
        "[-f] [PATTERN...]",
        help="List the cells of this domain, or those that match a pattern.\n"
        "-f shows state and description; patterns may contain * and ?.",
        is_read=True,
    )
    def show_cells(self, *patterns: str, f: bool = False) -> str:
        """Return the names of cells, or a table of them."""
        chosen = [name for name in self.domain.cells if not patterns or _fits(name, patterns)]
        if not chosen:
            raise ConfigError(f"no cell matches {' or '.join(map(quote, patterns[:5]))}")
        if not f:
            return "\n".join(chosen)
        return format_table(
            _CELL_HEADINGS, (_cell_row(cell_view(self.domain, name)) for name in chosen)
        )

    # Actions.

    @command("kill", "CELL", help="Remove a cell, or close a tunnel, and wait until it is gone.")
    async def kill(self, cell: str) -> str:
        """Remove a cell after it has handled its messages, or close a tunnel."""
        link = self._link_of(cell)
        if link is not None:
            link.tunnel.close("closed by an operator")
            await link.tunnel.wait_closed()
            return f"{cell} is closed; the domain that dialed it will redial"
        self._check_not_system(cell, "killed")
        await self.domain.remove_cell(cell)
        return f"{cell} is removed"

    @command(
        "drain",
        "CELL",
        help="Withdraw a cell from all queues and topics, and wait until it is idle.\n"
        "CELL@DOMAIN still reaches it.",
    )
    async def drain(self, cell: str) -> str:
        """Drain a cell."""
        self._check_not_system(cell, "drained")
        if await self.domain.drain_cell(cell):
            return f"{cell} is drained"
        return f"{cell} is withdrawn, but still busy, or not all peers acknowledged it; see 'ps -f'"

    @command("send", "PATH TEXT...", help="Send a text as a one-way message.")
    async def send_text(self, path: str, text: str, *more: str) -> str:
        """Send a one-way message."""
        await self.send(path, " ".join((text, *more)))
        return f"sent to {one_line(path)}"

    def _link_of(self, gateway: str) -> DomainLink | None:
        links = self.domain.links.by_domain.values()
        return next((link for link in links if link.gateway == gateway), None)

    def _check_not_system(self, cell: str, action: str) -> None:
        if cell_view(self.domain, cell).is_system:
            raise ConfigError(f"{cell} is a built-in cell and cannot be {action}")


def builtin_cells(domain: CellDomain) -> list[Cell]:
    """Return the built-in cells of a domain."""
    return [SystemCell(), RoutingManager(), LocationManager()]


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _cell_row(view: CellView) -> tuple[object, ...]:
    wait = format_milliseconds(view.oldest_wait_s)
    return (
        *(view.name, view.state, view.waiting, wait),
        *(view.running, view.handled, view.kind, view.description),
    )
