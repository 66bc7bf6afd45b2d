"""The built-in cells of a domain: System, location manager, and one for each tunnel."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from postroad.cells.addresses import SYSTEM, CellAddress, CellPath, Role
from postroad.cells.cell import Cell
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.messages import CellMessage
from postroad.cells.routing.decision import LOCAL_ORIGIN, MessageOrigin
from postroad.cells.routing.route import Route, RouteType
from postroad.cells.routing.router import route_message
from postroad.cells.shell.commands import command, quote
from postroad.cells.shell.log_buffer import LINES_MAX, LOG_BUFFER
from postroad.cells.shell.operations import OPERATIONS, parse_path
from postroad.cells.shell.routing_manager import RoutingManager
from postroad.cells.shell.views import (
    format_fields,
    format_milliseconds,
    format_table,
    one_line,
    render,
)
from postroad.core.errors import ConfigError, UsageError
from postroad.core.timing import format_duration

if TYPE_CHECKING:
    from postroad.cells.delivery.domain_links import DomainLink


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

    @command("info", is_read=True)
    def info(self) -> str:
        """Show counters and queue of the tunnel."""
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


_HEADINGS = ("CORE", "ZONE", "TUNNEL", "ROUND TRIP", "DIALED BY", "ENDPOINTS", "STATE")


class LocationManager(BuiltinCell):
    """Locations of the cores."""

    @command("ls", is_read=True)
    def show_cores(self) -> str:
        """List the cores and the tunnels to them, with the error of the last dial."""
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

    @command("info", is_read=True)
    def info(self) -> str:
        """Show the statistics of core discovery."""
        core_discovery = self.domain.core_discovery
        source = format_fields([("source", type(core_discovery).__name__)])
        return f"{source}\n{render(core_discovery.statistics())}"


Lines: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=LINES_MAX)]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error", "critical"]


class SystemCell(BuiltinCell):
    """The domain itself: the operations of domains, and commands that only text can run."""

    domain_operations = (OPERATIONS,)

    # Set when it starts.
    _started_at = 0.0

    async def on_start(self) -> None:
        """Attach the log buffer."""
        LOG_BUFFER.attach(self)
        self._started_at = asyncio.get_running_loop().time()

    async def on_stop(self) -> None:
        """Detach the log buffer."""
        LOG_BUFFER.detach(self)

    @command("info", is_read=True)
    def info(self) -> str:
        """Show identity and counters of this domain."""
        domain = self.domain
        identity, counts = domain.identity, msgspec.structs.asdict(domain.statistics())
        uptime_s = asyncio.get_running_loop().time() - self._started_at
        fields = (
            ("domain", identity.name),
            ("role", identity.role.value),
            ("zone", identity.zone),
            ("incarnation", domain.service.incarnation),
            ("address", domain.service.address),
            ("uptime", timedelta(seconds=round(uptime_s))),
            ("cells", len(domain.cells)),
            ("routes", len(domain.table)),
            *((name.replace("_", " "), count) for name, count in counts.items()),
        )
        return format_fields(fields)

    @command("send")
    async def send_text(self, path: str, text: list[str]) -> str:
        """Send a text as a one-way message."""
        await self.send(path, " ".join(text))
        return f"sent to {one_line(path)}"

    # Routes.

    @command("route add")
    def add_route(
        self, route: list[str], type: RouteType | None = None, zone: str | None = None
    ) -> str:
        """Add a route, [DESTINATION] TARGET.

        Without TYPE, DESTINATION implies it: a is a queue, *@d a domain, a@b an address, none the
        default. TARGET is a cell of this domain, *@d for another domain, or any address for an
        alias.
        """
        added = self._parse_route(route, type, zone)
        self.domain.change_routes(added=[added])
        return f"added {added}"

    @command("route delete")
    def delete_route(
        self, route: list[str], type: RouteType | None = None, zone: str | None = None
    ) -> str:
        """Delete a route, written as for 'route add'; its zone is ignored."""
        deleted = self._parse_route(route, type, zone)
        self.domain.change_routes(deleted=[deleted])
        return f"deleted {deleted}"

    @command("route find", is_read=True)
    def find_route(self, path: str, origin: str | None = None) -> str:
        """Show the routing decision for a message, step by step; no message is sent.

        The sender is a cell of this domain, or the message comes from the tunnel to ORIGIN. The
        consumer of a queue differs from message to message.
        """
        domain = self.domain
        message_origin, source = LOCAL_ORIGIN, CellPath((self.address,))
        if origin is not None:
            message_origin, source = self._origin(origin), CellPath.of(f"*@{origin}")
        envelope = Envelope(
            id=domain.dispatcher.new_id(), destination=parse_path(path), source=source
        )
        decision = route_message(
            envelope,
            message_origin,
            table=domain.table,
            cells=domain.cells,
            domain=domain.identity,
            draining=domain.dispatcher.registry.draining,
        )
        return decision.describe()

    def _parse_route(self, words: list[str], type: RouteType | None, zone: str | None) -> Route:
        """Parse a route; a target without a domain is a cell of this domain."""
        if not 1 <= len(words) <= 2:
            raise ConfigError("expected [DESTINATION] TARGET")
        *destination, target = words
        route = Route.parse(type, "".join(destination), target, zone)
        if route.type is RouteType.ALIAS or not route.target.is_local:
            return route
        target_address = self.domain.identity.cell(route.target.cell)
        return msgspec.structs.replace(route, target=target_address)

    def _origin(self, name: str) -> MessageOrigin:
        links = self.domain.links.by_domain
        link = links.get(CellAddress.of_domain(name).domain)
        if link is None:
            peers = ", ".join(sorted(links)) or "no domain"
            raise ConfigError(f"no tunnel to domain {quote(name)}; tunnels: {peers}")
        return MessageOrigin.from_peer(name, link.domain.role)

    # Log.

    @command("log", is_read=True)
    def show_log(self, lines: Lines = 20) -> str:
        """Show the last log lines."""
        return "\n".join(LOG_BUFFER.lines(lines)) or "no log lines"

    @command("log ls", is_read=True)
    def show_levels(self) -> str:
        """List the loggers of this process and their levels."""
        return format_table(("LOGGER", "LEVEL"), LOG_BUFFER.levels())

    @command("log set")
    def set_level(self, level: LogLevel) -> str:
        """Set the log level of this process, until 'log reset' or until the domain stops."""
        LOG_BUFFER.set_level(getattr(logging, level.upper()))
        return f"level {level}"

    @command("log reset")
    def reset_level(self) -> str:
        """Restore the level of before 'log set'."""
        LOG_BUFFER.reset_level()
        return f"level {LOG_BUFFER.levels()[0][1]}"


def builtin_cells() -> list[Cell]:
    """Return new built-in cells for a domain."""
    return [
        # Commands may wait for other domains, which may wait for this one: a queue would deadlock.
        SystemCell(SYSTEM, concurrency=64),
        RoutingManager(),
        LocationManager("lm"),
    ]
