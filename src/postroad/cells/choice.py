"""Choosing among equals, the same way every time (rendezvous hashing).

Each candidate gets a score from a hash keyed by what is to be decided; the highest wins. A
candidate that goes moves only what it had, one that comes takes its share from all the others,
and the full ranking says whom to turn to when the first does not answer.

The system this follows takes the first core of its zone for everything, else counts modulo the
number of cores, which moves two thirds of all names when a third core comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")

_KEY_BYTES = 32
_SCORE_BYTES = 8


def rank(key: bytes, names: Iterable[str]) -> list[str]:
    """The names, best first, for one key."""
    return rank_by(key, names, name=str)


def rank_by(
    key: bytes,
    candidates: Iterable[T],
    *,
    name: Callable[[T], str],
    is_preferred: Callable[[T], bool] | None = None,
) -> list[T]:
    """The candidates, best first, for one key; those that are preferred before all others.

    The order does not depend on the one they are given in, if their names differ.
    """
    chosen = list(candidates)
    if len(chosen) < 2:
        return chosen
    digest = blake2b(key, digest_size=_KEY_BYTES).digest()

    def place(candidate: T) -> tuple[bool, bytes, str]:
        called = name(candidate)
        comes_first = is_preferred is not None and is_preferred(candidate)
        return comes_first, _score(digest, called), called

    return sorted(chosen, key=place, reverse=True)


def _score(digest: bytes, name: str) -> bytes:
    return blake2b(name.encode(), digest_size=_SCORE_BYTES, key=digest).digest()
