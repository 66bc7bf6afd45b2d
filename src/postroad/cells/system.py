"""The cells that exist in every domain, and the one that stands for the domain itself."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.core.errors import ConfigError, UsageError

from .arguments import quote
from .cell import Cell
from .cell_views import CellView, cell_view
from .commands import command
from .domain import SYSTEM
from .layout import format_fields, format_milliseconds, format_table, one_line
from .location_manager import LocationManager
from .message import CellMessage
from .pinboard import LOG_BUFFER, LogCommands
from .probes import PingCommands
from .route_commands import RouteCommands
from .routing_manager import RoutingManager

if TYPE_CHECKING:
    from .links import DomainLink
    from .runtime import CellDomain

# Commands may wait for other domains, which may wait for this one: they must not stand in line.
_CONCURRENCY = 64
_CELL_HEADINGS = (
    *("NAME", "STATE", "WAITING", "OLDEST WAIT"),
    *("RUNNING", "HANDLED", "CLASS", "WHAT IT DOES"),
)


class SystemCell(Cell):
    """The domain itself."""

    is_system = True

    def __init__(self, name: str = SYSTEM) -> None:
        super().__init__(name, concurrency=_CONCURRENCY)
        self.command_sets = (RouteCommands(self), PingCommands(self), LogCommands())
        # Set when it starts.
        self._started_at = 0.0

    def handle(self, message: CellMessage) -> Any:
        """It takes commands only."""
        raise UsageError(f"{self.name} takes commands only; try 'help'")

    async def on_start(self) -> None:
        """Keep log lines from now on."""
        LOG_BUFFER.attach(self)
        self._started_at = asyncio.get_running_loop().time()

    async def on_stop(self) -> None:
        """Keep them no more."""
        LOG_BUFFER.detach(self)

    # What there is.

    @command("id", help="The name of this domain.", is_read=True)
    def id(self) -> str:
        """The domain's name."""
        return self.domain.name

    @command("info", help="This domain: what it is, what it did, and its tunnels.", is_read=True)
    def info(self) -> str:
        """All about the domain."""
        domain = self.domain
        identity, counts = domain.identity, msgspec.structs.asdict(domain.statistics())
        uptime_s = asyncio.get_running_loop().time() - self._started_at
        known = (
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
        return "\n\n".join((format_fields(known), format_fields(messages), self._tunnels()))

    def _tunnels(self) -> str:
        links = sorted(self.domain.links.by_domain.items())
        if not links:
            return "no tunnels"
        headings = ("TUNNEL TO", "ROLE", "ZONE", "ROUND TRIP", "SENT", "RECEIVED", "WAITING")
        return format_table(headings, (_tunnel_row(link) for _, link in links))

    @command(
        "ps",
        "[-f] [PATTERN...]",
        help="The cells of this domain, or those whose names fit.\n"
        "-f tells what each is and does; patterns have * and ?.",
        is_read=True,
    )
    def show_cells(self, *patterns: str, f: bool = False) -> str:
        """The names of cells, or all about them."""
        chosen = [it for it in self.domain.cells if not patterns or _fits(it, patterns)]
        if not chosen:
            raise ConfigError(f"no cell is called {' or '.join(map(quote, patterns[:5]))}")
        if not f:
            return "\n".join(chosen)
        return format_table(
            _CELL_HEADINGS, (_cell_row(cell_view(self.domain, it)) for it in chosen)
        )

    # What can be done.

    @command("kill", "CELL", help="Stop a cell, or close a tunnel; answers when it is gone.")
    async def kill(self, cell: str) -> str:
        """Let a cell finish what it has, and end it."""
        link = self._link_of(cell)
        if link is not None:
            link.tunnel.close("closed by an operator")
            await link.tunnel.wait_closed()
            return f"{cell} is closed; whoever dialed it will do so again"
        self._refuse_system(cell, "killed")
        await self.domain.remove_cell(cell)
        return f"{cell} is gone"

    @command(
        "drain",
        "CELL",
        help="Take a cell out of all queues and topics and wait until it has nothing to do.\n"
        "It can still be reached as CELL@DOMAIN.",
    )
    async def drain(self, cell: str) -> str:
        """Let a cell get nothing new."""
        self._refuse_system(cell, "drained")
        if await self.domain.drain_cell(cell):
            return f"{cell} is drained"
        return f"{cell} is taken out, but still at work, or others do not know yet; see 'ps -f'"

    @command(
        "send", "PATH TEXT...", help="Send a text as a message; whether it arrives is not told."
    )
    async def send_text(self, path: str, text: str, *more: str) -> str:
        """Send a message that nobody answers."""
        await self.send(path, " ".join((text, *more)))
        return f"sent to {one_line(path)}"

    def _link_of(self, gateway: str) -> DomainLink | None:
        links = self.domain.links.by_domain.values()
        return next((link for link in links if link.gateway == gateway), None)

    def _refuse_system(self, cell: str, what: str) -> None:
        if cell_view(self.domain, cell).is_system:
            raise ConfigError(f"{cell} belongs to the domain itself and cannot be {what}")


def builtin_cells(domain: CellDomain) -> list[Cell]:
    """The cells of a domain that come with it."""
    return [SystemCell(), RoutingManager(), LocationManager()]


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _cell_row(view: CellView) -> tuple[object, ...]:
    wait = format_milliseconds(view.oldest_wait_s)
    return (
        *(view.name, view.state, view.waiting, wait),
        *(view.running, view.handled, view.kind, view.description),
    )


def _tunnel_row(link: DomainLink) -> tuple[object, ...]:
    now = link.statistics()
    domain = now.domain
    trip = format_milliseconds(now.round_trip_s)
    return domain.name, domain.role.value, domain.zone, trip, now.sent, now.received, now.waiting
