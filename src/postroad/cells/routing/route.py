"""One route: a type, what it is for, where it leads, and the zone of who offers it."""

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
    """The types of routes, in the order they are listed."""

    TOPIC = "topic"
    """Every route of the name gets a copy."""
    EXACT = "exact"
    """Messages to one address are handed to a gateway."""
    ALIAS = "alias"
    """Messages to one address go to another instead."""
    QUEUE = "queue"
    """One route of the name gets the message."""
    DOMAIN = "domain"
    """Messages to cells of a domain are handed to a gateway."""
    DEFAULT = "default"
    """Whatever nothing else is known of."""

    @property
    def has_cell(self) -> bool:
        """Whether its destination names a cell."""
        return self not in (RouteType.DOMAIN, RouteType.DEFAULT)

    @property
    def has_domain(self) -> bool:
        """Whether its destination names a domain, be it `local`."""
        return self in (RouteType.EXACT, RouteType.ALIAS, RouteType.DOMAIN)


class Route(msgspec.Struct, frozen=True, gc=False):
    """A route. `*` stands for what routes of its type do not name.

    Two routes that differ only in their zone are the same to a table.
    """

    type: RouteType
    cell: str
    domain: str
    target: CellAddress
    zone: str | None = None

    def __post_init__(self) -> None:
        if self.type.has_cell == (self.cell == ANY):
            raise ConfigError(f"a route of type {self.type.value} for cell {self.cell!r}")
        if self.type.has_domain == (self.domain == ANY):
            raise ConfigError(f"a route of type {self.type.value} for domain {self.domain!r}")
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
        """One subscriber, or a domain with subscribers, of a topic."""
        return cls(RouteType.TOPIC, name, ANY, target, zone)

    @classmethod
    def to_queue(cls, name: str, target: CellAddress, zone: str | None = None) -> Route:
        """One consumer, or a domain with consumers, of a queue."""
        return cls(RouteType.QUEUE, name, ANY, target, zone)

    @classmethod
    def to_domain(cls, domain: str, target: CellAddress) -> Route:
        """The gateway to a domain."""
        return cls(RouteType.DOMAIN, ANY, domain, target)

    @classmethod
    def to_address(cls, address: CellAddress, target: CellAddress) -> Route:
        """The gateway for one address alone."""
        return cls(RouteType.EXACT, address.cell, address.domain, target)

    @classmethod
    def alias(cls, address: CellAddress, target: CellAddress) -> Route:
        """Another address instead of the one that is written."""
        return cls(RouteType.ALIAS, address.cell, address.domain, target)

    @classmethod
    def default(cls, target: CellAddress, zone: str | None = None) -> Route:
        """The way for everything else."""
        return cls(RouteType.DEFAULT, ANY, ANY, target, zone)

    @classmethod
    def parse(
        cls, type: RouteType | None, destination: str, target: str, zone: str | None = None
    ) -> Route:
        """Read a route as an operator writes it; without a type the destination tells it.

        `a` and `a@*` are queues, `*@d` is a domain, `a@b` an address, nothing or `*@*` the default.
        """
        cell, _, domain = destination.partition("@")
        type = type or _type_of(cell, domain)
        if not type.has_domain and domain not in ("", ANY):
            raise ConfigError(f"a route of type {type.value} is for {cell!r} in any domain")
        domain = (domain or "local") if type.has_domain else ANY
        if type is RouteType.DOMAIN and cell not in ("", ANY) and "@" not in destination:
            cell, domain = ANY, cell
        return cls(type, cell or ANY, domain, CellAddress.parse(target), zone)

    @property
    def identity(self) -> tuple[RouteType, CellAddress]:
        """What tells it from other routes to the same destination."""
        return self.type, self.target

    @property
    def destination(self) -> str:
        """What it is for, as text."""
        return f"{self.cell}@{self.domain}"

    @property
    def target_name(self) -> str:
        """What a choice among routes goes by: the domain it leads to, or else the cell."""
        return self.target.domain if self.target.is_domain else str(self.target)

    def __str__(self) -> str:
        zone = "" if self.zone is None else f" zone {self.zone}"
        return f"{self.type.value} {self.destination} -> {self.target}{zone}"


def _type_of(cell: str, domain: str) -> RouteType:
    is_any_cell = cell in ("", ANY)
    if domain in ("", ANY):
        return RouteType.DEFAULT if is_any_cell else RouteType.QUEUE
    return RouteType.DOMAIN if is_any_cell else RouteType.EXACT
