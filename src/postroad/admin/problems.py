"""What went wrong, as operators are told over HTTP and between nodes: RFC 9457.

A problem keeps the code of the error it was made of, so that whoever receives it can raise the same
error again.
"""

from __future__ import annotations

import http
import logging
import uuid
from typing import Any

import msgspec

from postroad.core.errors import (
    ConfigError,
    MessageTooLargeError,
    MessagingError,
    PostroadError,
    RemoteHandlerError,
    UsageError,
)

from .errors import AdminError, Forbidden, InvalidRequest, NotFound, ProgramFailed

logger = logging.getLogger("postroad.admin")

CONTENT_TYPE = "application/problem+json"

_UNAUTHORIZED = 401
_FORBIDDEN = 403
_NOT_FOUND = 404
_TOO_LARGE = 413


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a wish was not fulfilled."""

    title: str
    """The sort of problem."""
    status: int
    """Of HTTP."""
    detail: str
    """What went wrong this time."""
    type: str = "about:blank"
    code: int = 0
    """Of the error of Postroad; 0 if it was none: `postroad errors CODE` tells of it."""
    next: str | None = None
    """What to try."""
    retryable: bool = False
    """Whether the same can help later."""
    id: str | None = None
    """Of the entry in the node's log that tells more."""
    data: Any = None
    """What else the error tells, such as the fields that are wrong."""


class Refused(AdminError):
    """A node refused a wish, for a reason that has no error of its own here.

    Attributes:
        problem: what the node said.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


# The first that fits: a kind of error, and what HTTP calls it.
_STATUSES: tuple[tuple[type[BaseException], http.HTTPStatus], ...] = (
    (PermissionError, http.HTTPStatus.FORBIDDEN),
    (MessageTooLargeError, http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (TimeoutError, http.HTTPStatus.SERVICE_UNAVAILABLE),
    (LookupError, http.HTTPStatus.NOT_FOUND),
    (ConfigError, http.HTTPStatus.BAD_REQUEST),
    (InvalidRequest, http.HTTPStatus.BAD_REQUEST),
    (ValueError, http.HTTPStatus.UNPROCESSABLE_ENTITY),
    (UsageError, http.HTTPStatus.CONFLICT),
    (ConnectionError, http.HTTPStatus.SERVICE_UNAVAILABLE),
    (RemoteHandlerError, http.HTTPStatus.BAD_GATEWAY),
    (ProgramFailed, http.HTTPStatus.BAD_GATEWAY),
)
# Those of layers that are not imported here, by code.
_STATUSES_BY_CODE = {
    7210: http.HTTPStatus.NOT_FOUND,  # NoRouteError: nobody has that cell.
    8214: http.HTTPStatus.NOT_FOUND,  # ServiceNotAvailableError.
}


def make_problem(
    status: int,
    detail: str,
    *,
    code: int = 0,
    next: str | None = None,
    retryable: bool = False,
    id: str | None = None,
    data: Any = None,
) -> Problem:
    """A problem that needs no error."""
    title = http.HTTPStatus(status).phrase
    return Problem(
        title=title,
        status=status,
        detail=detail,
        code=code,
        next=next,
        retryable=retryable,
        id=id,
        data=data,
    )


def to_problem(error: PostroadError | TimeoutError) -> Problem:
    """An error as others are told of it."""
    if isinstance(error, Refused):
        return error.problem
    if not isinstance(error, PostroadError):
        return make_problem(
            http.HTTPStatus.SERVICE_UNAVAILABLE,
            str(error) or "the time for this was over",
            next="try again, or raise admin.request_timeout_s",
            retryable=True,
        )
    data = getattr(error, "data", None)
    words = [_text_of(error), *_messages(data)]
    return make_problem(
        _status_of(error),
        " ".join(words),
        code=error.code,
        next=f"postroad errors {error.code}",
        retryable=error.retryable,
        data=data,
    )


def _text_of(error: PostroadError) -> str:
    """What went wrong; of messages to nobody not also how they were sent."""
    if isinstance(error, MessagingError) and isinstance(error, LookupError):
        return error.detail
    return str(error) or type(error).__doc__ or type(error).__name__


def _messages(data: Any) -> list[str]:
    """What is said of each field, by errors of services."""
    if not isinstance(data, list):
        return []
    return [str(it["message"]) for it in data if isinstance(it, dict) and "message" in it]


def problem_of(error: Exception) -> Problem:
    """Whatever was raised, as a problem; the log keeps what nobody expected."""
    if isinstance(error, PostroadError | TimeoutError):
        return to_problem(error)
    number = uuid.uuid4().hex[:12]
    logger.error("error %s: %r", number, error, exc_info=error)
    return make_problem(
        http.HTTPStatus.INTERNAL_SERVER_ERROR,
        "something went wrong that nobody expected",
        id=number,
        next=f"look for {number} in the log of the node",
    )


def _status_of(error: PostroadError) -> int:
    if error.code in _STATUSES_BY_CODE:
        return _STATUSES_BY_CODE[error.code]
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    if error.retryable or isinstance(error, MessagingError):
        return http.HTTPStatus.SERVICE_UNAVAILABLE
    return http.HTTPStatus.CONFLICT


def to_error(problem: Problem) -> PostroadError:
    """The error that a problem was made of, as far as it is known here.

    What to try next is one of its notes.
    """
    error = _known(problem) or _by_status(problem)
    if problem.next is not None:
        error.add_note(problem.next)
    return error


def _known(problem: Problem) -> PostroadError | None:
    kind = _kinds().get(problem.code)
    if kind is None:
        return None
    try:
        error = kind(problem.detail)
    except TypeError:
        # Its text is made of more than the text.
        return None
    error.retryable = problem.retryable
    if problem.data is not None:
        error.data = problem.data  # type: ignore[attr-defined]
    return error


def _by_status(problem: Problem) -> PostroadError:
    if problem.status == _NOT_FOUND:
        return NotFound(problem.detail)
    if problem.status in (_UNAUTHORIZED, _FORBIDDEN):
        return Forbidden(problem.detail)
    return Refused(problem)


def _kinds() -> dict[int, type[PostroadError]]:
    """All errors of the layers that are imported, by code."""
    found: dict[int, type[PostroadError]] = {}
    waiting: list[type[PostroadError]] = [PostroadError]
    while waiting:
        kind = waiting.pop()
        if kind not in (PostroadError, AdminError):
            found.setdefault(kind.code, kind)
        waiting += kind.__subclasses__()
    return found
