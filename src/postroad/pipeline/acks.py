"""Which segments are done with, root and branch: the arithmetic of acknowledgement.

Every edge of a root's tree has 64 bits. A task that takes a segment along an edge and makes others
reports the XOR of the bits it took and the bits it gave. When everything is reported, each edge has
been given once and taken once, and the sum is zero.

XOR forgets whatever is reported twice, so reports have a key, and each is counted once. The bits
follow from where an edge is in the tree and never from chance, so that doing a thing again gives
the same report; they differ from one delivery of a root to the next, so that halves of two
deliveries never make a whole.
"""

from __future__ import annotations

import hashlib

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """Spread 64 bits so that each decides about all (the finaliser of splitmix64)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def hash_text(key: bytes, *texts: str) -> int:
    """64 bits of some texts; the texts cannot run into each other."""
    digest = hashlib.blake2b(digest_size=8, key=key)
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return int.from_bytes(digest.digest(), "little")


class AckIds:
    """Makes the ids and bits of one job's roots and edges."""

    def __init__(self, job: str) -> None:
        # Not a secret: two jobs on one input only must not have the same ids.
        self._key = hashlib.blake2b(job.encode(), digest_size=32).digest()
        self._edges: dict[tuple[str, str], int] = {}

    def source_key(self, task: str, source: str) -> int:
        """What all roots from one source of an input have in common."""
        return hash_text(self._key, task, source)

    def root(self, task: str, source: str, position: int | str) -> int:
        """The id of what an input gives from one of its positions, at every time."""
        if isinstance(position, str):
            return hash_text(self._key, task, source, position)
        return mix64((self.source_key(task, source) + position * _GOLDEN) & _MASK)

    def edge_key(self, source: str, target: str) -> int:
        """What all edges between two tasks have in common."""
        key = self._edges.get((source, target))
        if key is None:
            key = self._edges[source, target] = hash_text(self._key, source, target)
        return key

    def edge(self, parent: int, source: str, target: str, ordinal: int) -> int:
        """The id of an edge, the same in every delivery of its root.

        `parent` is the id of the edge that its segment's origin came along, or of the root;
        `ordinal` its place among those that were made together.
        """
        return mix64((mix64(parent ^ self.edge_key(source, target)) + ordinal * _GOLDEN) & _MASK)


def ack_value(edge: int, generation: int) -> int:
    """The bits of an edge in one delivery of its root."""
    if generation == 0:
        return edge
    # Mixed, because what is only added to all would cancel out between any two.
    return mix64(edge ^ mix64(generation * _GOLDEN & _MASK))
