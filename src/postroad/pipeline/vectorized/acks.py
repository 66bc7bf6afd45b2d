"""XOR acknowledgement on NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from postroad.pipeline.acks import AckIds

Ids: TypeAlias = NDArray[np.uint64]
Indexes: TypeAlias = NDArray[np.intp]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mix64_all(values: Ids) -> Ids:
    """What `acks.mix` makes of each; in place."""
    shifted = values >> _30
    np.bitwise_xor(values, shifted, out=values)
    np.multiply(values, _FIRST, out=values)
    np.right_shift(values, _27, out=shifted)
    np.bitwise_xor(values, shifted, out=values)
    np.multiply(values, _SECOND, out=values)
    np.right_shift(values, _31, out=shifted)
    np.bitwise_xor(values, shifted, out=values)
    return values


def root_ids(bits: AckIds, task: str, source: str, positions: Sequence[int | str]) -> Ids:
    """The ids of roots from some positions of a source."""
    if positions and isinstance(positions[0], str):
        return np.array(
            [bits.root(task, source, position) for position in positions], dtype=np.uint64
        )
    places = np.asarray(positions, dtype=np.int64).astype(np.uint64)
    places *= _GOLDEN
    places += np.uint64(bits.source_key(task, source))
    return mix64_all(places)


def edge_ids(parents: Ids, key: int, ordinals: Ids | None) -> Ids:
    """The ids of edges, by those of their parents, the key of the two tasks, and their ordinals."""
    values = mix64_all(parents ^ np.uint64(key))
    if ordinals is not None:
        values += ordinals * _GOLDEN
    return mix64_all(values)


def ack_values(ids: Ids, generation: int) -> Ids:
    """The bits of edges in one delivery of their roots; may be the ids themselves."""
    if generation == 0:
        return ids
    mixed = mix64_all(np.array([generation], dtype=np.uint64) * _GOLDEN)
    return mix64_all(ids ^ mixed)


class LazyIds(Sequence[int]):
    """Ids as numbers of Python, which are made when somebody looks at them."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids

    @cached_property
    def _list(self) -> list[int]:
        numbers: list[int] = self._ids.tolist()
        return numbers

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._list[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._list)


class EdgeBatch:
    """The edges along which some segments came to a task.

    Attributes:
        ids: theirs.
        origins: for each, which root of the piece it belongs to.
        open: for each, the bits that were given and not taken, or taken and given elsewhere.
        sign: 1 if they were given here, -1 if elsewhere, 0 if they are the roots themselves.
    """

    __slots__ = ("ids", "open", "origins", "sign")

    def __init__(self, ids: Ids, origins: Indexes, open: Ids, sign: int) -> None:
        self.ids = ids
        self.origins = origins
        self.open = open
        self.sign = sign


class UnackedRemainder(NamedTuple):
    """What is left over of a root."""

    bits: int
    missing: int
    """Edges given and not taken; less than none if they were taken and given elsewhere."""


class AckAccumulator:
    """The acknowledgements of some roots, and of what is made of them in one pass."""

    def __init__(self, bits: AckIds, roots: Ids, generation: int) -> None:
        self._bits = bits
        self._roots = roots
        self._generation = generation
        self._all: list[EdgeBatch] = []

    def add_roots(self) -> EdgeBatch:
        """The roots come in: nobody gave these."""
        return EdgeBatch(self._roots, np.arange(len(self._roots)), self._roots, 0)

    def add_received(self, ids: Ids, origins: Indexes) -> EdgeBatch:
        """Segments come that another pass gave."""
        return self._keep(EdgeBatch(ids, origins, np.zeros_like(ids), -1))

    def add_sent(
        self,
        taken: EdgeBatch,
        source: str,
        target: str,
        parents: Indexes | None = None,
        ordinals: Ids | None = None,
    ) -> EdgeBatch:
        """Segments go on from one task to another.

        `parents` are their positions in `taken`, None if there is one for each; `ordinals` their
        places among those that were made together, None if each is the only one.
        """
        ids = self.make_ids(taken, source, target, parents, ordinals)
        origins = taken.origins if parents is None else taken.origins[parents]
        return self._keep(EdgeBatch(ids, origins, ack_values(ids, self._generation).copy(), 1))

    def make_ids(
        self,
        taken: EdgeBatch,
        source: str,
        target: str,
        parents: Indexes | None = None,
        ordinals: Ids | None = None,
    ) -> Ids:
        """The ids that edges between two tasks have."""
        above = taken.ids if parents is None else taken.ids[parents]
        return edge_ids(above, self._bits.edge_key(source, target), ordinals)

    def mark_processed(self, edges: EdgeBatch, failed: Sequence[int] = ()) -> None:
        """A task is done with what came along some edges, but for some positions."""
        if edges.sign == 0:
            return
        taken = ack_values(edges.ids, self._generation)
        if failed:
            taken = taken.copy()
            taken[failed] = 0
        np.bitwise_xor(edges.open, taken, out=edges.open)

    def concat(self, parts: Sequence[EdgeBatch]) -> EdgeBatch:
        """Several as one."""
        self._all = [edges for edges in self._all if edges not in parts]
        return self._keep(
            EdgeBatch(
                np.concatenate([part.ids for part in parts]),
                np.concatenate([part.origins for part in parts]),
                np.concatenate([part.open for part in parts]),
                parts[0].sign,
            )
        )

    def unacked(self) -> dict[int, UnackedRemainder]:
        """What is left over, by the root's place in the piece; of most, nothing."""
        places, bits, missing = (column.tolist() for column in self.unacked_columns())
        return {
            place: UnackedRemainder(sum, count)
            for place, sum, count in zip(places, bits, missing, strict=True)
        }

    def unacked_columns(self) -> tuple[Indexes, Ids, Indexes]:
        """The same as columns: places, bits, and how many are missing."""
        parts = [edges for edges in self._all if edges.open.any()]
        if not parts:
            return np.zeros(0, np.intp), np.zeros(0, np.uint64), np.zeros(0, np.intp)
        positions = [np.flatnonzero(part.open) for part in parts]
        origins = np.concatenate(
            [part.origins[at] for part, at in zip(parts, positions, strict=True)]
        )
        bits = np.concatenate([part.open[at] for part, at in zip(parts, positions, strict=True)])
        signs = np.concatenate(
            [np.full(len(at), part.sign) for part, at in zip(parts, positions, strict=True)]
        )
        order = np.argsort(origins, kind="stable")
        origins = origins[order]
        starts = np.flatnonzero(np.concatenate(([True], origins[1:] != origins[:-1])))
        sums = np.bitwise_xor.reduceat(bits[order], starts)
        return origins[starts], sums, np.add.reduceat(signs[order], starts)

    def _keep(self, edges: EdgeBatch) -> EdgeBatch:
        self._all.append(edges)
        return edges
