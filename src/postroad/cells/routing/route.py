"""Routes: type, destination, target, and the zone of the domain that advertises it."""

from __future__ import annotations

import enum

import msgspec

from postroad.cells.addresses import (
    ANY,
    CellAddress,
    validate_cell_name,
    validate_domain_name,
    validate_zone,
)
from postroad.core.errors import ConfigError


class RouteType(enum.Enum):
    """Types of routes, in the order of listings."""

    TOPIC = "topic"
    """Each route of the topic gets a copy."""
    EXACT = "exact"
    """Messages to one address go through a gateway."""
    ALIAS = "alias"
    """Messages to one address go to another address instead."""
    QUEUE = "queue"
    """One route of the queue gets the message."""
    DOMAIN = "domain"
    """Messages to cells of a domain go through a gateway."""
    DEFAULT = "default"
    """Messages without any other route."""

    @property
    def has_cell(self) -> bool:
        """Whether the destination contains a cell name."""
        return self not in (RouteType.DOMAIN, RouteType.DEFAULT)

    @property
    def has_domain(self) -> bool:
        """Whether the destination contains a domain name or `local`."""
        return self in (RouteType.EXACT, RouteType.ALIAS, RouteType.DOMAIN)


class Route(msgspec.Struct, frozen=True, gc=False):
    """A route. `*` stands for the part that routes of its type do not name.

    A table treats two routes that differ only in their zone as the same.
    """

    type: RouteType
    cell: str
    domain: str
    target: CellAddress
    zone: str | None = None

    def __post_init__(self) -> None:
        if self.type.has_cell == (self.cell == ANY):
            raise ConfigError(f"invalid cell {self.cell!r} in a route of type {self.type.value}")
        if self.type.has_domain == (self.domain == ANY):
            raise ConfigError(
                f"invalid domain {self.domain!r} in a route of type {self.type.value}"
            )
        if self.type is RouteType.DOMAIN:
            validate_domain_name(self.domain)
        elif self.type.has_domain:
            CellAddress(self.cell, self.domain)
        elif self.type.has_cell:
            validate_cell_name(self.cell)
        if self.zone is not None:
            validate_zone(self.zone)

    @classmethod
    def to_topic(cls, name: str, target: CellAddress, zone: str | None = None) -> Route:
        """Return a route of a topic to a subscriber or to a domain with subscribers."""
        return cls(RouteType.TOPIC, name, ANY, target, zone)

    @classmethod
    def to_queue(cls, name: str, target: CellAddress, zone: str | None = None) -> Route:
        """Return a route of a queue to a consumer or to a domain with consumers."""
        return cls(RouteType.QUEUE, name, ANY, target, zone)

    @classmethod
    def to_domain(cls, domain: str, target: CellAddress) -> Route:
        """Return a route to a domain."""
        return cls(RouteType.DOMAIN, ANY, domain, target)

    @classmethod
    def to_address(cls, address: CellAddress, target: CellAddress) -> Route:
        """Return a route for one address."""
        return cls(RouteType.EXACT, address.cell, address.domain, target)

    @classmethod
    def alias(cls, address: CellAddress, target: CellAddress) -> Route:
        """Return an alias of an address."""
        return cls(RouteType.ALIAS, address.cell, address.domain, target)

    @classmethod
    def default(cls, target: CellAddress, zone: str | None = None) -> Route:
        """Return a default route."""
        return cls(RouteType.DEFAULT, ANY, ANY, target, zone)

    @classmethod
    def parse(
        cls, type: RouteType | None, destination: str, target: str, zone: str | None = None
    ) -> Route:
        """Parse a route as operators type it; without a type it is inferred from the destination.

        `a` and `a@*` are queues, `*@d` is a domain, `a@b` an address, nothing or `*@*` the default.
        """
        cell, _, domain = destination.partition("@")
        type = type or _type_of(cell, domain)
        if not type.has_domain and domain not in ("", ANY):
            raise ConfigError(
                f"a route of type {type.value} has no domain: write {cell!r}, not {destination!r}"
            )
        domain = (domain or "local") if type.has_domain else ANY
        if type is RouteType.DOMAIN and cell not in ("", ANY) and "@" not in destination:
            cell, domain = ANY, cell
        return cls(type, cell or ANY, domain, CellAddress.parse(target), zone)

    @property
    def identity(self) -> tuple[RouteType, CellAddress]:
        """Key among the routes of the same destination."""
        return self.type, self.target

    @property
    def destination(self) -> str:
        """Destination as text."""
        return f"{self.cell}@{self.domain}"

    @property
    def target_name(self) -> str:
        """Name of the target in rankings: its domain, or else the cell."""
        return self.target.domain if self.target.is_domain else str(self.target)

    def __str__(self) -> str:
        zone = "" if self.zone is None else f" zone {self.zone}"
        return f"{self.type.value} {self.destination} -> {self.target}{zone}"


def _type_of(cell: str, domain: str) -> RouteType:
    is_any_cell = cell in ("", ANY)
    if domain in ("", ANY):
        return RouteType.DEFAULT if is_any_cell else RouteType.QUEUE
    return RouteType.DOMAIN if is_any_cell else RouteType.EXACT
