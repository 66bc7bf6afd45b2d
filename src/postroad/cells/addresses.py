"""Addresses of cells and domains, and paths made of them.

A path is a list of hops with a position. Hops are never removed, only the position moves, so a path
shows where the message has been. A destination path is consumed hop by hop; a source path only
grows, and its reverse is the path of the reply.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, TypeVar

import msgspec

from postroad.core import validate_node_name
from postroad.core.errors import ConfigError, LocalProtocolError

S = TypeVar("S", bound=msgspec.Struct)

# Sets a field of a frozen struct; safe here, because the copy is not shared yet.
_set = msgspec.structs.force_setattr


def copy_with(struct: S, field: str, value: object) -> S:
    """Return a copy with another value in one field, without validation."""
    copy: S = struct.__copy__()  # type: ignore[attr-defined]  # Left out of the stubs.
    _set(copy, field, value)
    return copy


def copy_with_two(struct: S, field: str, value: object, other: str, other_value: object) -> S:
    """Return a copy with other values in two fields, without validation."""
    copy = copy_with(struct, field, value)
    _set(copy, other, other_value)
    return copy


SYSTEM = "System"
"""Name of the cell that represents the domain itself; every domain has it."""


class Role(enum.Enum):
    """Role of a domain in the network."""

    CORE = "core"
    """Has a tunnel to every other core, and routes to the queues and topics of all domains."""
    SATELLITE = "satellite"
    """Has tunnels to cores only, and default routes to them."""


class DomainInfo(msgspec.Struct, frozen=True):
    """Name, role and zone of a domain. A zone is preferred, never required."""

    name: str
    role: Role = Role.SATELLITE
    zone: str | None = None

    def __post_init__(self) -> None:
        validate_domain_name(self.name)
        if self.zone is not None:
            validate_zone(self.zone)

    @property
    def address(self) -> CellAddress:
        """Address of the domain, `*@domain`."""
        return CellAddress.of_domain(self.name)

    def cell(self, name: str) -> CellAddress:
        """Return the full address of a cell of this domain."""
        return CellAddress(name, self.name)


LOCAL = "local"
"""The domain part of a logical name."""
ANY = "*"
"""The cell part of a domain address, and the wildcard of routes."""

CELL_NAME_BYTES_MAX = 255
ADDRESS_CHARACTERS_MAX = 512

_FORBIDDEN = frozenset("@:* ")
_FORBIDDEN_IN_DOMAINS = frozenset("@:*/\\ ")


class CellAddress(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """A cell of a domain, a logical name (`name@local`), or a domain (`*@domain`)."""

    cell: str
    domain: str = LOCAL

    def __post_init__(self) -> None:
        _validate_address(self.cell, self.domain)

    @classmethod
    def parse(cls, text: str) -> CellAddress:
        """Parse `cell`, `cell@domain` or `*@domain`; raises ConfigError if it is invalid."""
        if len(text) > ADDRESS_CHARACTERS_MAX:
            raise ConfigError(
                f"address of {len(text)} characters is longer than {ADDRESS_CHARACTERS_MAX}"
            )
        cell, _, domain = text.partition("@")
        return cls(cell, domain or LOCAL)

    @classmethod
    def of_domain(cls, domain: str) -> CellAddress:
        """Return the address of a domain, `*@domain`."""
        return cls(ANY, domain)

    @property
    def is_local(self) -> bool:
        """Whether it is a logical name, resolved by each domain on the path."""
        return self.domain == LOCAL

    @property
    def is_domain(self) -> bool:
        """Whether it is the address of a domain, not of a cell."""
        return self.cell == ANY

    def __str__(self) -> str:
        return f"{self.cell}@{self.domain}"


def validate_cell_name(name: str) -> str:
    """Return the name; raises ConfigError if it is invalid for a cell, queue or topic."""
    return _validate_cell_name(name)


def validate_domain_name(name: str) -> str:
    """Return the name; raises ConfigError if it is invalid for a node and so for a domain."""
    return _validate_domain_name(name)


def validate_cell_names(names: Sequence[str]) -> None:
    """Check names of cells, queues or topics; raises ConfigError for the first invalid one."""
    if not _are_valid(names, _FORBIDDEN):
        for name in names:
            _validate_cell_name(name)


def validate_domain_names(names: Sequence[str]) -> None:
    """Check names of domains; raises ConfigError for the first invalid one."""
    if LOCAL in names or not _are_valid(names, _FORBIDDEN_IN_DOMAINS):
        for name in names:
            _validate_domain_name(name)


def _are_valid(names: Sequence[str], forbidden: Iterable[str]) -> bool:
    """Return whether all names are valid; one scan of all together is much faster."""
    text = "".join(names)
    if not text.isprintable() or any(character in text for character in forbidden):
        return False
    sizes = [len(name) if name.isascii() else len(name.encode()) for name in names]
    return not sizes or (min(sizes) > 0 and max(sizes) <= CELL_NAME_BYTES_MAX)


def validate_zone(name: str) -> str:
    """Return the name; raises ConfigError if it is invalid for a zone."""
    try:
        return _validate_cell_name(name)
    except ConfigError as error:
        raise ConfigError(f"zone: {error}") from None


# Cached, because most messages use the same few addresses; exceptions are not cached.
@lru_cache(maxsize=4096)
def _validate_address(cell: str, domain: str) -> None:
    if domain != LOCAL:
        _validate_domain_name(domain)
    elif cell == ANY:
        raise ConfigError("invalid address '*@local': '*' needs the name of a domain")
    if cell != ANY:
        _validate_cell_name(cell)


@lru_cache(maxsize=4096)
def _validate_cell_name(name: str) -> str:
    if not name:
        raise ConfigError("a cell name must not be empty")
    for character in name:
        if character in _FORBIDDEN or not character.isprintable():
            raise ConfigError(
                f"cell name {name!r} contains {character!r}; "
                "it must have no '@', ':', '*', spaces or control characters"
            )
    size = len(name.encode())
    if size > CELL_NAME_BYTES_MAX:
        raise ConfigError(f"cell name of {size} bytes is longer than {CELL_NAME_BYTES_MAX}")
    return name


_validate_domain_name = lru_cache(maxsize=4096)(validate_node_name)


HOPS_MAX = 64
"""Hops of one path. The routing limit is lower; this one bounds paths that a peer sends."""


class CellPath(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Hops of a message and the position of the current one."""

    hops: Annotated[tuple[CellAddress, ...], msgspec.Meta(max_length=HOPS_MAX)] = ()
    position: Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)] = 0

    def __post_init__(self) -> None:
        if not 0 <= self.position <= len(self.hops) <= HOPS_MAX:
            raise ConfigError(_describe_path_fault(len(self.hops), self.position))

    @classmethod
    def of(cls, *hops: CellAddress | str) -> CellPath:
        """Return a path of these hops, positioned at the first."""
        return cls(tuple(CellAddress.parse(hop) if isinstance(hop, str) else hop for hop in hops))

    @classmethod
    def parse(cls, text: str) -> CellPath:
        """Parse `cell@domain:cell2@domain2`; raises ConfigError if it is invalid."""
        if len(text) > HOPS_MAX * (ADDRESS_CHARACTERS_MAX + 1):
            raise ConfigError(f"path of {len(text)} characters is longer than {HOPS_MAX} addresses")
        return cls(tuple(map(CellAddress.parse, text.split(":")))) if text else cls()

    # Positions.

    @property
    def current(self) -> CellAddress:
        """The current hop; raises LocalProtocolError if the path is complete."""
        self._require_hop()
        return self.hops[self.position]

    @property
    def last(self) -> CellAddress | None:
        """The last hop, or None."""
        return self.hops[-1] if self.hops else None

    @property
    def first(self) -> CellAddress | None:
        """The first hop, or None; of a source path, the original sender."""
        return self.hops[0] if self.hops else None

    @property
    def sender(self) -> CellAddress | None:
        """Of a source path: the last cell that sent the message, or a domain if no cell did.

        The hops before that cell are its own claims and cannot be verified.
        """
        after = None
        for hop in reversed(self.hops):
            if hop.cell != ANY:
                return CellAddress(hop.cell, after.domain) if hop.is_local and after else hop
            after = hop
        return self.first

    @property
    def is_complete(self) -> bool:
        """Whether all hops are consumed: the message is at its final destination."""
        return self.position == len(self.hops)

    # Derived paths.

    def advanced(self) -> CellPath:
        """Return the path at its next hop; raises LocalProtocolError if it is complete."""
        self._require_hop()
        return copy_with(self, "position", self.position + 1)

    def with_current(self, hop: CellAddress) -> CellPath:
        """Return the path with another current hop, as an alias or a queue route rewrites it."""
        self._require_hop()
        index = self.position
        return copy_with(self, "hops", (*self.hops[:index], hop, *self.hops[index + 1 :]))

    def delivered_to(self, cell: CellAddress) -> CellPath:
        """Return the path as delivered to a cell, whose address replaces the consumed hop."""
        self._require_hop()
        index = self.position
        if self.hops[index] == cell:
            return copy_with(self, "position", index + 1)
        hops = (*self.hops[:index], cell, *self.hops[index + 1 :])
        return copy_with_two(self, "hops", hops, "position", index + 1)

    def appended(self, *hops: CellAddress) -> CellPath:
        """Return the path with further hops appended; raises ConfigError if it gets too long."""
        grown = self.hops + hops
        if len(grown) > HOPS_MAX:
            raise ConfigError(_describe_path_fault(len(grown), self.position))
        return copy_with(self, "hops", grown)

    def reversed(self) -> CellPath:
        """Return the path of a reply, positioned at the first hop.

        It contains the cells only, because a reply may pass other domains. A domain stays in the
        path only where it is needed to resolve the logical name after it.
        """
        return _reverse(self.hops)

    def trailing_domains(self) -> frozenset[str]:
        """Return the domains that forwarded the message since the last cell of this source path."""
        domains = []
        for hop in reversed(self.hops):
            if hop.cell != ANY:
                break
            domains.append(hop.domain)
        return frozenset(domains)

    # As text.

    def describe(self) -> str:
        """Return the path as text with a mark at the current hop, `[b@S2:>a@S1]`."""
        marked = [f">{hop}" if i == self.position else str(hop) for i, hop in enumerate(self.hops)]
        return f"[{':'.join(marked)}]"

    def __str__(self) -> str:
        return ":".join(map(str, self.hops))

    def _require_hop(self) -> None:
        if self.position == len(self.hops):
            raise LocalProtocolError(f"path {self.describe()} has no hop left")

    def __len__(self) -> int:
        return len(self.hops)

    def __bool__(self) -> bool:
        return bool(self.hops)


# Cached, because most requests use the same few paths.
@lru_cache(maxsize=4096)
def _reverse(hops: tuple[CellAddress, ...]) -> CellPath:
    following: Iterable[CellAddress | None] = (*hops[-2::-1], None)
    pairs = zip(hops[::-1], following, strict=False)
    return CellPath(
        tuple(hop for hop, after in pairs if not hop.is_domain or (after and after.is_local))
    )


def _describe_path_fault(length: int, position: int) -> str:
    if length > HOPS_MAX:
        return f"path of {length} hops is longer than {HOPS_MAX}"
    return f"position {position} is outside of a path of {length} hops"
