"""A domain: one node, as the cells and the other domains see it."""

from __future__ import annotations

import enum

import msgspec

from .address import CellAddress, validate_domain_name, validate_zone

SYSTEM = "System"
"""The cell that stands for a domain itself, in every domain."""


class Role(enum.Enum):
    """The place of a domain among the others."""

    CORE = "core"
    """Connected to every other core, and knows what each domain offers."""
    SATELLITE = "satellite"
    """Connected to the cores, and leaves to them what it cannot resolve."""


class DomainInfo(msgspec.Struct, frozen=True):
    """Name, role and zone of a domain. Zones are a preference, never a border."""

    name: str
    role: Role = Role.SATELLITE
    zone: str | None = None

    def __post_init__(self) -> None:
        validate_domain_name(self.name)
        if self.zone is not None:
            validate_zone(self.zone)

    @property
    def address(self) -> CellAddress:
        """The address of this domain's router."""
        return CellAddress.of_domain(self.name)

    def cell(self, name: str) -> CellAddress:
        """The full address of a cell of this domain."""
        return CellAddress(name, self.name)
