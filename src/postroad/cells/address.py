"""Addresses of cells, `cell@domain`, and the names in them.

`a`, `a@` and `a@local` are the same: a logical name, which any domain may resolve. `*@d` is the
domain address of `d`: its router, not one of its cells.

The rules for names are all here, but for the rule of the domain's: that is a node's name, and
never `local`. The system this follows lets `a@b@c`, `@b` and a domain called `local` pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from postroad.core import validate_node_name
from postroad.core.errors import ConfigError

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
    if not text.isprintable() or any(it in text for it in forbidden):
        return False
    sizes = [len(it) if it.isascii() else len(it.encode()) for it in names]
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
