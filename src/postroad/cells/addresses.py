"""Paths: the hops a message shall take, or has taken.

Hops are never removed, only the position moves: a path can always tell where the message has
been. A destination path is consumed hop by hop; a source path only grows, and its reverse is the
way back.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, TypeVar

import msgspec

from postroad.core import validate_node_name
from postroad.core.errors import ConfigError, LocalProtocolError

S = TypeVar("S", bound=msgspec.Struct)

# It sets a field of a frozen struct. Here nobody else has seen that struct yet.
_set = msgspec.structs.force_setattr


def copy_with(struct: S, field: str, value: object) -> S:
    """A copy with another value, which the caller knows to be valid, in one field."""
    copy: S = struct.__copy__()  # type: ignore[attr-defined]  # Left out of the stubs.
    _set(copy, field, value)
    return copy


def copy_with_two(struct: S, field: str, value: object, other: str, other_value: object) -> S:
    """A copy with other values in two fields."""
    copy = copy_with(struct, field, value)
    _set(copy, other, other_value)
    return copy


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


LOCAL = "local"
"""The domain part of a logical name."""
ANY = "*"
"""The cell part of a domain address; shown where a route has nothing to say."""

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
        """Read `cell`, `cell@domain` or `*@domain`; raises ConfigError for anything else."""
        if len(text) > ADDRESS_CHARACTERS_MAX:
            raise ConfigError(f"an address of {len(text)} characters is too long")
        cell, _, domain = text.partition("@")
        return cls(cell, domain or LOCAL)

    @classmethod
    def of_domain(cls, domain: str) -> CellAddress:
        """The address of a domain's router."""
        return cls(ANY, domain)

    @property
    def is_local(self) -> bool:
        """Whether it is a logical name, which any domain may resolve."""
        return self.domain == LOCAL

    @property
    def is_domain(self) -> bool:
        """Whether it means a domain and none of its cells."""
        return self.cell == ANY

    def __str__(self) -> str:
        return f"{self.cell}@{self.domain}"


def validate_cell_name(name: str) -> str:
    """Return the name if a cell, queue or topic may have it, else raise ConfigError."""
    return _validate_cell_name(name)


def validate_domain_name(name: str) -> str:
    """Return the name if a domain may have it, else raise ConfigError: it is a node's name."""
    return _validate_domain_name(name)


def validate_cell_names(names: Sequence[str]) -> None:
    """Raise ConfigError for the first of many names that no cell, queue or topic may have."""
    if not _are_good(names, _FORBIDDEN):
        for name in names:
            _validate_cell_name(name)


def validate_domain_names(names: Sequence[str]) -> None:
    """Raise ConfigError for the first of many names that no domain may have."""
    if LOCAL in names or not _are_good(names, _FORBIDDEN_IN_DOMAINS):
        for name in names:
            _validate_domain_name(name)


def _are_good(names: Sequence[str], forbidden: Iterable[str]) -> bool:
    """Whether a look at all of them together finds nothing wrong, which is much quicker."""
    text = "".join(names)
    if not text.isprintable() or any(character in text for character in forbidden):
        return False
    sizes = [len(name) if name.isascii() else len(name.encode()) for name in names]
    return not sizes or (min(sizes) > 0 and max(sizes) <= CELL_NAME_BYTES_MAX)


def validate_zone(name: str) -> str:
    """Return the name if a zone may have it, else raise ConfigError."""
    try:
        return _validate_cell_name(name)
    except ConfigError as error:
        raise ConfigError(f"zone: {error}") from None


# The same few names and addresses come with every message. What is refused is not remembered.
@lru_cache(maxsize=4096)
def _validate_address(cell: str, domain: str) -> None:
    if domain != LOCAL:
        _validate_domain_name(domain)
    elif cell == ANY:
        raise ConfigError("'*@local' is no address: '*' needs the name of a domain")
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
"""Hops of one path. The routing limit is lower; this one bounds what a peer may send."""


class CellPath(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some hops and the place of the current one."""

    hops: Annotated[tuple[CellAddress, ...], msgspec.Meta(max_length=HOPS_MAX)] = ()
    position: Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)] = 0

    def __post_init__(self) -> None:
        if not 0 <= self.position <= len(self.hops) <= HOPS_MAX:
            raise ConfigError(_fault_of(len(self.hops), self.position))

    @classmethod
    def of(cls, *hops: CellAddress | str) -> CellPath:
        """A path of the given hops, at its beginning."""
        return cls(tuple(CellAddress.parse(hop) if isinstance(hop, str) else hop for hop in hops))

    @classmethod
    def parse(cls, text: str) -> CellPath:
        """Read `cell@domain:cell2@domain2`; raises ConfigError for anything else."""
        if len(text) > HOPS_MAX * (ADDRESS_CHARACTERS_MAX + 1):
            raise ConfigError(f"a path of {len(text)} characters is too long")
        return cls(tuple(map(CellAddress.parse, text.split(":")))) if text else cls()

    # Where it stands.

    @property
    def current(self) -> CellAddress:
        """The hop to go to now; raises LocalProtocolError once all are taken."""
        self._require_hop()
        return self.hops[self.position]

    @property
    def next_hop(self) -> CellAddress | None:
        """The hop after the current one."""
        index = self.position + 1
        return self.hops[index] if index < len(self.hops) else None

    @property
    def last(self) -> CellAddress | None:
        """The end of the path."""
        return self.hops[-1] if self.hops else None

    @property
    def first(self) -> CellAddress | None:
        """The beginning of the path; of a source path, who sent the message first."""
        return self.hops[0] if self.hops else None

    @property
    def sender(self) -> CellAddress | None:
        """Of a source path: the last cell that sent the message; a domain if no cell did.

        What that cell wrote of those before it, nobody can know to be true.
        """
        after = None
        for hop in reversed(self.hops):
            if hop.cell != ANY:
                return CellAddress(hop.cell, after.domain) if hop.is_local and after else hop
            after = hop
        return self.first

    @property
    def is_complete(self) -> bool:
        """Whether all hops are taken: who has the message now is its final destination."""
        return self.position == len(self.hops)

    # Other paths made of it.

    def advanced(self) -> CellPath:
        """The path with its current hop taken; raises LocalProtocolError if there is none."""
        self._require_hop()
        return copy_with(self, "position", self.position + 1)

    def with_current(self, hop: CellAddress) -> CellPath:
        """The path with another current hop, as an alias or a queue makes it."""
        self._require_hop()
        index = self.position
        return copy_with(self, "hops", (*self.hops[:index], hop, *self.hops[index + 1 :]))

    def delivered_to(self, cell: CellAddress) -> CellPath:
        """The path as a cell gets it: the hop is the cell's own address, and is taken."""
        self._require_hop()
        index = self.position
        if self.hops[index] == cell:
            return copy_with(self, "position", index + 1)
        hops = (*self.hops[:index], cell, *self.hops[index + 1 :])
        return copy_with_two(self, "hops", hops, "position", index + 1)

    def appended(self, *hops: CellAddress) -> CellPath:
        """The path with further hops at its end."""
        grown = self.hops + hops
        if len(grown) > HOPS_MAX:
            raise ConfigError(_fault_of(len(grown), self.position))
        return copy_with(self, "hops", grown)

    def reversed(self) -> CellPath:
        """The way back, at its beginning.

        It goes by the cells alone: domains in between may be others on the way back. A domain is
        kept only where it is needed to resolve the logical name after it.
        """
        return _reverse(self.hops)

    def trailing_domains(self) -> frozenset[str]:
        """The domains that passed a message on since the last cell did, of its source path."""
        domains = []
        for hop in reversed(self.hops):
            if hop.cell != ANY:
                break
            domains.append(hop.domain)
        return frozenset(domains)

    # As text.

    def describe(self) -> str:
        """Text with a mark before the current hop, `[b@S2:>a@S1]`."""
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


# Requests come by the same ways again and again.
@lru_cache(maxsize=4096)
def _reverse(hops: tuple[CellAddress, ...]) -> CellPath:
    return CellPath(tuple(_without_idle_domains(hops[::-1])))


def _without_idle_domains(hops: tuple[CellAddress, ...]) -> Iterator[CellAddress]:
    following: Iterable[CellAddress | None] = (*hops[1:], None)
    for hop, after in zip(hops, following, strict=False):
        if not hop.is_domain or (after is not None and after.is_local):
            yield hop


def _fault_of(length: int, position: int) -> str:
    if length > HOPS_MAX:
        return f"a path of {length} hops is longer than {HOPS_MAX}"
    return f"position {position} is not in a path of {length} hops"
