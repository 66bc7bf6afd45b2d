"""The `route` commands: list, change and explain routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from postroad.cells.addresses import CellAddress, CellPath
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.routing.decision import LOCAL_ORIGIN, MessageOrigin
from postroad.cells.routing.route import Route, RouteType
from postroad.cells.routing.router import route_message
from postroad.cells.shell.commands import command, quote
from postroad.cells.shell.operations import list_routes, parse_path
from postroad.cells.shell.views import format_table
from postroad.core.errors import ConfigError

if TYPE_CHECKING:
    from postroad.cells.cell import Cell

_HEADINGS = ("TYPE", "DESTINATION", "TARGET", "ZONE")
_TYPES = ", ".join(type.value for type in RouteType)
_ROUTE = "[-type=TYPE] [-zone=ZONE] [DESTINATION] TARGET"
_ROUTE_HELP = (
    f"TYPE is one of {_TYPES}. Without it, DESTINATION implies the type:\n"
    "a is a queue, *@d a domain, a@b an address, none the default. TARGET is a cell of this\n"
    "domain, *@d for another domain, or any address for an alias."
)


class RouteCommands:
    """`route ls`, `route add`, `route delete` and `route find`."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @command(
        "route ls",
        "[-type=TYPE] [-destination=PATTERN] [-target=PATTERN]",
        help=f"List the routes.\nTYPE is one of {_TYPES}; patterns may contain * and ?.",
        is_read=True,
    )
    async def show(
        self,
        *,
        type: str | None = None,
        destination: str | None = None,
        target: str | None = None,
    ) -> str:
        """Return the matching routes."""
        routes = await list_routes(self._cell.domain, _parse_type(type), destination, target)
        return (
            format_table(_HEADINGS, map(msgspec.structs.astuple, routes)) if routes else "no routes"
        )

    @command("route add", _ROUTE, help=f"Add a route.\n{_ROUTE_HELP}")
    def add(self, *words: str, type: str | None = None, zone: str | None = None) -> str:
        """Add a route."""
        domain = self._cell.domain
        route = self._parse_route(words, type, zone)
        domain.change_routes(added=[route])
        return f"added {route}"

    @command("route delete", _ROUTE, help=f"Delete a route; its zone is ignored.\n{_ROUTE_HELP}")
    def delete(self, *words: str, type: str | None = None, zone: str | None = None) -> str:
        """Delete a route."""
        route = self._parse_route(words, type, zone)
        self._cell.domain.change_routes(deleted=[route])
        return f"deleted {route}"

    @command(
        "route find",
        "PATH [-from=DOMAIN]",
        help="Show the routing decision for a message, step by step; no message is sent.\n"
        "The sender is a cell of this domain, or the message comes from the tunnel to DOMAIN.\n"
        "The consumer of a queue differs from message to message.",
        is_read=True,
    )
    def find(self, path: str, *, from_: str | None = None) -> str:
        """Return the routing decision for a message."""
        domain = self._cell.domain
        dispatcher = domain.dispatcher
        origin, source = LOCAL_ORIGIN, CellPath((self._cell.address,))
        if from_ is not None:
            origin, source = self._origin(from_), CellPath.of(f"System@{from_}", f"*@{from_}")
        envelope = Envelope(id=dispatcher.new_id(), destination=parse_path(path), source=source)
        decision = route_message(
            envelope,
            origin,
            table=domain.table,
            cells=domain.cells,
            domain=domain.identity,
            draining=dispatcher.registry.draining,
        )
        return decision.describe()

    def _parse_route(self, words: tuple[str, ...], type: str | None, zone: str | None) -> Route:
        """Parse a route; a target without a domain is a cell of this domain."""
        if not 1 <= len(words) <= 2:
            raise ConfigError(f"expected {_ROUTE}")
        *destination, target = words
        route = Route.parse(_parse_type(type), "".join(destination), target, zone)
        if route.type is RouteType.ALIAS or not route.target.is_local:
            return route
        target_address = self._cell.domain.identity.cell(route.target.cell)
        return msgspec.structs.replace(route, target=target_address)

    def _origin(self, name: str) -> MessageOrigin:
        links = self._cell.domain.links.by_domain
        link = links.get(CellAddress.of_domain(name).domain)
        if link is None:
            peers = ", ".join(sorted(links)) or "no domain"
            raise ConfigError(f"no tunnel to domain {quote(name)}; tunnels: {peers}")
        return MessageOrigin.from_peer(name, link.domain.role)


def _parse_type(text: str | None) -> RouteType | None:
    if text is None:
        return None
    try:
        return RouteType(text.lower())
    except ValueError:
        raise ConfigError(f"unknown route type {quote(text)}; use one of {_TYPES}") from None
