"""Choosing among equals, the same way every time (rendezvous hashing).

Each candidate gets a score from what is to be decided and its own name; the highest wins. A
candidate that goes moves only what it had, one that comes takes its share from all the others,
and the full ranking says whom to turn to when the first does not answer.

There are two scores. That of names is a keyed hash: names look alike, and what was chosen for one
is remembered. That of message ids is a product, since it is made anew for every message and each
candidate: a number of the message times an odd number of the candidate, modulo a power of two.
For ids, random or counted, that is as even as the hash, at a tenth of the price.

The system this follows takes the first core of its zone for everything, else counts modulo the
number of cores, which moves two thirds of all names when a third core comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")

NUMBER_MASK = (1 << 30) - 1
"""Numbers of messages and of candidates are below: their products are cheapest in CPython."""

_KEY_BYTES = 32
_SCORE_BYTES = 8
_NUMBER_BYTES = 4


def rendezvous_rank(key: bytes, names: Iterable[str]) -> list[str]:
    """The names, best first, for one key."""
    return rendezvous_rank_by(key, names, name=str)


def rendezvous_rank_by(
    key: bytes,
    candidates: Iterable[T],
    *,
    name: Callable[[T], str],
    is_preferred: Callable[[T], bool] | None = None,
) -> list[T]:
    """The candidates, best first, for one key; those that are preferred before all others.

    The order does not depend on the one they are given in, if their names differ.
    """
    candidate_list = list(candidates)
    if len(candidate_list) < 2:
        return candidate_list
    digest = blake2b(key, digest_size=_KEY_BYTES).digest()
    return _sorted(
        candidate_list, lambda candidate_name: _score(digest, candidate_name), name, is_preferred
    )


def rank_for_message(
    id: bytes,
    candidates: Iterable[T],
    *,
    name: Callable[[T], str],
    is_preferred: Callable[[T], bool] | None = None,
) -> list[T]:
    """The same for the id of a message: `message_weight` times `candidate_weight`."""
    candidate_list = list(candidates)
    if len(candidate_list) < 2:
        return candidate_list
    number = message_weight(id)
    return _sorted(
        candidate_list,
        lambda candidate_name: number * candidate_weight(candidate_name) & NUMBER_MASK,
        name,
        is_preferred,
    )


def message_weight(id: bytes) -> int:
    """What the scores of a message are products of."""
    return crc32(id) & NUMBER_MASK


@lru_cache(maxsize=4096)
def candidate_weight(name: str) -> int:
    """What the scores of a candidate are products of; odd, so that no score comes up twice."""
    digest = blake2b(name.encode(), digest_size=_NUMBER_BYTES).digest()
    return int.from_bytes(digest) & NUMBER_MASK | 1


def _sorted(
    candidates: list[T],
    score: Callable[[str], int | bytes],
    name: Callable[[T], str],
    is_preferred: Callable[[T], bool] | None,
) -> list[T]:
    def sort_key(candidate: T) -> tuple[bool, int | bytes, str]:
        candidate_name = name(candidate)
        preferred = is_preferred is not None and is_preferred(candidate)
        return preferred, score(candidate_name), candidate_name

    return sorted(candidates, key=sort_key, reverse=True)


def _score(digest: bytes, name: str) -> bytes:
    return blake2b(name.encode(), digest_size=_SCORE_BYTES, key=digest).digest()
