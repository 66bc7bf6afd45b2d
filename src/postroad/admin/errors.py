"""What goes wrong when operators ask for something."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from postroad.core.errors import PostroadError


class AdminError(PostroadError):
    """An operator's wish cannot be fulfilled."""

    code = 10_000


class NotFound(AdminError, LookupError):
    """There is nothing of that name."""

    code = 10_100


class Forbidden(AdminError, PermissionError):
    """Whoever asks may not do this."""

    code = 10_200


class ProgramFailed(AdminError):
    """Code of the program that the node runs raised an error; the node's log tells where."""

    code = 10_300

    @classmethod
    def of(cls, what: str, error: Exception) -> ProgramFailed:
        """Say what was asked of it, and what it raised."""
        return cls(f"{what} raised {type(error).__name__}: {error}")


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'orders'?`, if anything is near."""
    near = get_close_matches(name, [*known], 1)
    return f"; did you mean {near[0]!r}?" if near else ""
