"""What is answered: results and problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from postroad.admin.problems import CONTENT_TYPE, Problem, make_problem, problem_of

from .errors import Unauthorized

_NO_STORE = {"cache-control": "no-store"}


def answer(result: Any) -> Response:
    """The result of an operation."""
    return Response(encode(result), media_type="application/json", headers=_NO_STORE)


def refusal(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """A problem."""
    said = {**_NO_STORE, **(headers or {})}
    if problem.status == 503:
        said["retry-after"] = "1"
    return Response(encode(problem), problem.status, said, CONTENT_TYPE)


def failure(error: Exception) -> Response:
    """What is answered when something was raised; the log keeps what nobody expected."""
    if isinstance(error, ClientDisconnect):
        # Nobody reads this.
        return refusal(make_problem(400, "the client went away"))
    if isinstance(error, Unauthorized):
        return refusal(error.problem, {"www-authenticate": 'Bearer realm="postroad"'})
    return refusal(problem_of(error))


def encode(result: Any) -> bytes:
    """As JSON; what JSON does not know is told as text."""
    return msgspec.json.encode(result, enc_hook=repr)
