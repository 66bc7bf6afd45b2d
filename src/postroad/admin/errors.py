"""What goes wrong when operators ask for something."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from postroad.core.errors import PostroadError

_TOLD_MAX = 8


class AdminError(PostroadError):
    """An operator's wish cannot be fulfilled."""

    code = 10_000


class NotFound(AdminError, LookupError):
    """There is nothing of that name."""

    code = 10_100


class Forbidden(AdminError, PermissionError):
    """Whoever asks may not do this."""

    code = 10_200


class WrongToken(Forbidden):
    """Nobody knows who asks: the token is missing, or not that of the node.

    On the command line it is read from the data directory of a node that runs here; of others it is
    given by --token-file, POSTROAD_TOKEN or a saved context.
    """

    code = 10_210


class ProgramFailed(AdminError):
    """Code of the program that the node runs raised an error; the node's log tells where."""

    code = 10_300

    @classmethod
    def of(cls, what: str, error: Exception) -> ProgramFailed:
        """Say what was asked of it, and what it raised."""
        return cls(f"{what} raised {type(error).__name__}: {error}")


class InvalidRequest(AdminError, ValueError):
    """What was asked for cannot be read, or does not fit; the text names it and what is valid."""

    code = 10_400


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'orders'?`, if anything is near."""
    near = get_close_matches(name, [*known], 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """Likewise; if nothing is near, the first of what there is: `; there are 'a' and 'b'`."""
    names = sorted(known)
    if near := nearest(name, names):
        return near
    if not names:
        return "; there is none"
    told = ", ".join(map(repr, names[:_TOLD_MAX]))
    more = len(names) - _TOLD_MAX
    return f"; there {'is' if len(names) == 1 else 'are'} {told}{f' and {more} more' * (more > 0)}"
