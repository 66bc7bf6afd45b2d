"""What a routing decision depends on besides the message: the table and the cells of a domain."""

from __future__ import annotations

from collections.abc import Collection

from .address import LOCAL, CellAddress
from .domain import DomainInfo
from .route import Route, RouteType
from .routes import RouteTable


class RoutingContext:
    """A domain at one time.

    Args:
        domain: the domain.
        table: all its routes.
        cells: its cells that can be reached, gateways among them.
        hidden: those of them that are draining: only who writes `cell@domain` reaches them.
    """

    def __init__(
        self,
        domain: DomainInfo,
        table: RouteTable,
        cells: Collection[str],
        hidden: Collection[str] = (),
    ) -> None:
        self.domain = domain
        self.address = domain.address
        self.table = table
        self.cells = cells
        self.hidden = hidden

    def is_routable(self, cell: str) -> bool:
        """Whether a bare name or a route leads to the cell."""
        return cell in self.cells and cell not in self.hidden

    def is_local_target(self, target: CellAddress) -> bool:
        """Whether it is the address of a cell of this domain, be it there or not."""
        return target.domain in (self.domain.name, LOCAL) and not target.is_domain

    def is_same_zone(self, route: Route) -> bool:
        """Whether the route leads to the zone of this domain."""
        return self.domain.zone is not None and route.zone == self.domain.zone

    def resolve_gateway(self, target: CellAddress) -> str | None:
        """The cell of this domain that brings messages to a target, if there is one."""
        seen: set[CellAddress] = set()
        ahead = [target]
        while ahead:
            address = ahead.pop()
            if self.is_local_target(address):
                if self.is_routable(address.cell):
                    return address.cell
            elif address not in seen:
                seen.add(address)
                ahead += reversed(self._ways_to(address))
        return None

    def _ways_to(self, address: CellAddress) -> list[CellAddress]:
        routes = [*self.table.exacts(address), *self.table.domains(address.domain)]
        return [route.target for route in routes if route.type is not RouteType.ALIAS]
