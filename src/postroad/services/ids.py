"""Ids of calls and events: nobody can guess the next one, and answer somebody else's call."""

from __future__ import annotations

import os
from collections.abc import Callable

_ID_BYTES = 16
_IDS_AT_ONCE = 256


class Ids:
    """Gives ids. Chance is drawn for many at once, because that is what takes time."""

    __slots__ = ("_chance", "_ids")

    def __init__(self, chance: Callable[[int], bytes] | None = None) -> None:
        """`chance` gives so many random bytes; by default the operating system does."""
        self._chance = chance or os.urandom
        self._ids: list[str] = []

    def next(self) -> str:
        """An id that was never given."""
        if not self._ids:
            drawn, length = self._chance(_ID_BYTES * _IDS_AT_ONCE).hex(), 2 * _ID_BYTES
            self._ids = [drawn[at : at + length] for at in range(0, len(drawn), length)]
        return self._ids.pop()
