"""What only a server of HTTP refuses."""

from __future__ import annotations

from postroad.admin.errors import NotFound, WrongToken
from postroad.admin.problems import Refused, make_problem


class NoSuchOperation(NotFound):
    """The table has no such operation."""


class Unauthorized(Refused):
    """Nobody knows who asks."""

    def __init__(self, detail: str, where: str) -> None:
        super().__init__(
            make_problem(
                401,
                f"{detail}; the right one is in {where}",
                code=WrongToken.code,
                next="send it as `Authorization: Bearer TOKEN`",
            )
        )


class TooLarge(Refused):
    """A body that is larger than allowed."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            make_problem(
                413,
                f"the body is larger than {bytes_max} bytes",
                next="send less, or raise admin.body_bytes_max",
            )
        )


class UnknownForm(Refused):
    """A body that is not JSON."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            make_problem(
                415,
                f"a body of type {kind[:100]!r} is not understood",
                next="send JSON, with `Content-Type: application/json`",
            )
        )


class TooManyWatchers(Refused):
    """So many watch that others could not ask."""

    def __init__(self, watchers_max: int) -> None:
        super().__init__(
            make_problem(
                503,
                f"{watchers_max} clients watch already",
                next="try again later, or raise admin.clients_max",
                retryable=True,
            )
        )
