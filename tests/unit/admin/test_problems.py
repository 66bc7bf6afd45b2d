"""Errors as problems, and back."""

import logging

import msgspec
import pytest

from postroad.admin.errors import Forbidden, InvalidRequest, NotFound, ProgramFailed
from postroad.admin.problems import Problem, Refused, make_problem, problem_of, to_error, to_problem
from postroad.cells.errors import NoRouteError
from postroad.core.errors import (
    ConfigError,
    ConnectError,
    DeadLetterNotFoundError,
    IdempotencyConflictError,
    MemberNotFoundError,
    MessageTooLargeError,
    MissingExtraError,
    NameConflictError,
    PostroadError,
    RemoteHandlerError,
    ReplyTimeoutError,
    StoreUnavailableError,
    UsageError,
)
from postroad.services.errors import ServiceNotFoundError, ValidationError
from tests.support.cases import each


@each(
    (ConfigError("limit=0"), 400),
    (InvalidRequest("limit=0"), 400),
    (Forbidden("no"), 403),
    (NotFound("nothing"), 404),
    (DeadLetterNotFoundError("7"), 404),
    (MemberNotFoundError("omega"), 404),
    (NoRouteError("cell@beta"), 404),
    (ServiceNotFoundError(data={"action": "a.b"}), 404),
    (UsageError("not now"), 409),
    (IdempotencyConflictError("same key"), 409),
    (MissingExtraError("certs", "this"), 409),
    (MessageTooLargeError("1 GB"), 413),
    (ValidationError("wrong"), 422),
    (RemoteHandlerError("it raised"), 502),
    (ProgramFailed("it raised"), 502),
    (ReplyTimeoutError("2 s"), 503),
    (ConnectError("nobody"), 503),
    (StoreUnavailableError("disk full"), 503),
    (TimeoutError(), 503),
)
def test_statuses(error: PostroadError | TimeoutError, status: int) -> None:
    problem = to_problem(error)
    assert problem.status == status
    assert problem.detail
    assert problem.next
    if isinstance(error, PostroadError):
        assert problem.code == error.code
        assert problem.retryable == error.retryable


@each(
    ConfigError("limit=0 must be above 0"),
    InvalidRequest("limit=0 must be above 0"),
    NotFound("no queue 'x'"),
    Forbidden("only look"),
    DeadLetterNotFoundError("7"),
    UsageError("not now"),
    StoreUnavailableError("disk full"),
    ReplyTimeoutError("no reply", peer="beta", subject="a", elapsed_s=1.0),
)
def test_errors_come_back_as_they_were(error: PostroadError) -> None:
    encoded = msgspec.msgpack.encode(to_problem(error))
    again = to_error(msgspec.msgpack.decode(encoded, type=Problem))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.retryable == error.retryable
    assert again.__notes__ == [f"postroad errors {error.code}"]


def test_problem_without_a_class_is_told_by_status() -> None:
    problem = to_problem(NameConflictError("alpha", "127.0.0.1:1"))
    again = to_error(problem)
    assert isinstance(again, Refused)
    assert again.problem == problem
    assert to_problem(again) == problem
    assert type(to_error(make_problem(404, "gone", code=99_999))) is NotFound
    for status, kind in ((401, Forbidden), (403, Forbidden), (404, NotFound), (418, Refused)):
        error = to_error(make_problem(status, "so it is"))
        assert type(error) is kind, (status, kind)
        assert str(error) == "so it is", (status, kind)


def test_what_nobody_expected(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        problem = problem_of(ZeroDivisionError("secret"))
    assert problem.status == 500
    assert "secret" not in msgspec.json.encode(problem).decode()
    assert problem.id is not None
    assert problem.id in caplog.text
    assert "ZeroDivisionError" in caplog.text
