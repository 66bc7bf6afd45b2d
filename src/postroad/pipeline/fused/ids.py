"""Ids and bits of `acks`, for many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

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
        return np.array([bits.root(task, source, it) for it in positions], dtype=np.uint64)
    places = np.asarray(positions, dtype=np.int64).astype(np.uint64)
    places *= _GOLDEN
    places += np.uint64(bits.source_key(task, source))
    return mix64_all(places)


def edge_ids(parents: Ids, key: int, ordinals: Ids | None) -> Ids:
    """The ids of edges from those their segments were made of came along.

    Args:
        parents: ids of these; for each edge.
        key: what all edges between the two tasks have in common.
        ordinals: the place of each among those made together; None if each is the only one.
    """
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
