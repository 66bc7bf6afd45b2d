"""Paths: the hops a message shall take, or has taken.

Hops are never removed, only the position moves: a path can always tell where the message has
been. A destination path is consumed hop by hop; a source path only grows, and its reverse is the
way back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Annotated

import msgspec

from postroad.core.errors import ConfigError, LocalProtocolError

from .address import ADDRESS_CHARACTERS_MAX, ANY, CellAddress
from .altering import copy_with, copy_with_two

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
        return cls(tuple(CellAddress.parse(it) if isinstance(it, str) else it for it in hops))

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
        place = self.position + 1
        return self.hops[place] if place < len(self.hops) else None

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
        place = self.position
        return copy_with(self, "hops", (*self.hops[:place], hop, *self.hops[place + 1 :]))

    def delivered_to(self, cell: CellAddress) -> CellPath:
        """The path as a cell gets it: the hop is the cell's own address, and is taken."""
        self._require_hop()
        place = self.position
        if self.hops[place] == cell:
            return copy_with(self, "position", place + 1)
        hops = (*self.hops[:place], cell, *self.hops[place + 1 :])
        return copy_with_two(self, "hops", hops, "position", place + 1)

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
        found = []
        for hop in reversed(self.hops):
            if hop.cell != ANY:
                break
            found.append(hop.domain)
        return frozenset(found)

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
