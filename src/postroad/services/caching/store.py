"""What a cache needs of the place where it keeps results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from postroad.services.patterns import matches

MISSING: Final[Any] = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
"""What is found for a key that nothing is kept for."""


class CacheStore(ABC):
    """Keeps packed results by their keys. Everything but `pack` and `unpack` may fail at any time.

    Attributes:
        wait_s: the longest that a call waits for it; None if it always answers at once.
    """

    wait_s: float | None = None

    async def open(self, namespace: str) -> None:
        """The broker starts. Does not fail because a server is not there yet."""
        return

    async def close(self) -> None:
        """The broker has stopped."""
        return

    def pack(self, value: Any) -> Any:
        """A result in the form in which it is kept; raises anything if it cannot be."""
        return value

    def unpack(self, packed: Any) -> Any:
        """The result again; raises anything if there is none in it."""
        return packed

    @abstractmethod
    async def get(self, key: str) -> Any:
        """What is kept for a key, or MISSING."""

    @abstractmethod
    async def set(self, key: str, packed: Any, ttl_s: float | None) -> None:
        """Keep a packed result, for some time or until there is no room."""

    @abstractmethod
    async def clean(self, patterns: Sequence[str]) -> None:
        """Forget everything whose key fits one of the patterns, as `fits` tells."""


def fits(key: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern fits a key, or the name of the action that the key begins with.

    So `posts.*` is all of `posts.find`, whatever dots are in its params.
    """
    action = key.partition(":")[0]
    return any(matches(action, pattern) or matches(key, pattern) for pattern in patterns)
