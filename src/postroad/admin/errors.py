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


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'orders'?`, if anything is near."""
    near = get_close_matches(name, [*known], 1)
    return f"; did you mean {near[0]!r}?" if near else ""
