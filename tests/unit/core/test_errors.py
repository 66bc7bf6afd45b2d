"""The error tree: codes, what a caller may do, and texts that say what happened."""

import pickle
import re
from collections.abc import Iterator

import pytest

from postroad.core import errors
from postroad.core.timing import format_duration


def descendants(root: type[errors.PostroadError]) -> Iterator[type[errors.PostroadError]]:
    for child in root.__subclasses__():
        yield child
        yield from descendants(child)


def tree() -> list[type[errors.PostroadError]]:
    """All classes of the module, the root first."""
    ours = [
        error for error in descendants(errors.PostroadError) if error.__module__ == errors.__name__
    ]
    return [errors.PostroadError, *dict.fromkeys(ours)]


def drawn_tree() -> dict[str, str | None]:
    """Read the drawing in the module's docstring: class name -> name of its parent."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        drawn = re.match(r"    ([│├└─ ]*)([A-Z]\w+)", line)
        if drawn:
            depth = len(drawn[1]) // 4
            path = [*path[:depth], drawn[2]]
            parents[drawn[2]] = path[depth - 1] if depth else None
    return parents


MESSAGING = [error for error in tree() if issubclass(error, errors.MessagingError)]


def test_the_drawing_shows_the_tree_and_the_builtin_bases() -> None:
    actual: dict[str, str | None] = {"PostroadError": None}
    for error in tree()[1:]:
        (parent,) = (base for base in error.__bases__ if issubclass(base, errors.PostroadError))
        actual[error.__name__] = parent.__name__
    assert drawn_tree() == actual

    drawn = dict(re.findall(r"([A-Z]\w+) \((\w+)\)", errors.__doc__ or ""))
    builtin = {
        error.__name__: base.__name__
        for error in tree()
        for base in error.__bases__
        if base.__module__ == "builtins" and base is not Exception
    }
    assert drawn == builtin


def test_every_class_has_a_docstring_and_a_code_of_its_own_that_follows_the_tree() -> None:
    codes = [vars(error).get("code") for error in tree()]
    assert None not in codes
    assert len(set(codes)) == len(codes)

    for error in tree():
        if issubclass(error, errors.ProtocolError):
            assert 2000 <= error.code < 3000
        elif issubclass(error, errors.MessagingError):
            assert 3000 <= error.code < 4000
        elif issubclass(error, errors.ClusterError):
            assert 4000 <= error.code < 5000
        elif issubclass(error, errors.DurableError):
            assert 5000 <= error.code < 6000
        elif issubclass(error, errors.InvalidJobError):
            assert 6000 <= error.code < 7000
        else:
            assert 1000 <= error.code < 2000

    for error in tree():
        assert error.__doc__, error

    for error in DURABLE_ERRORS:
        for child in error.__subclasses__():
            if error is not errors.DurableError:
                assert error.code < child.code < error.code + 100


def test_builtin_handlers_catch_it() -> None:
    for error, builtin in [
        (errors.ConfigError, ValueError),
        (errors.InvalidJobError, ValueError),
        (errors.UsageError, RuntimeError),
        (errors.MissingExtraError, ImportError),
        (errors.NotRunningError, RuntimeError),
        (errors.MessageTooLargeError, ValueError),
        (errors.ConnectError, ConnectionError),
        (errors.ConnectionClosedError, ConnectionError),
        (errors.TlsError, ConnectionError),
        (errors.WrongPeerError, ConnectionError),
        (errors.ReplyTimeoutError, TimeoutError),
        (errors.MemberNotFoundError, LookupError),
        (errors.DeadLetterNotFoundError, LookupError),
    ]:
        assert issubclass(error, builtin), error


REQUEST_ERRORS = {
    errors.MessagingError: (errors.Outcome.UNKNOWN, False),
    errors.NotRunningError: (errors.Outcome.NOT_SENT, False),
    errors.MessageTooLargeError: (errors.Outcome.NOT_SENT, False),
    errors.ConnectError: (errors.Outcome.NOT_SENT, True),
    errors.ConnectionClosedError: (errors.Outcome.UNKNOWN, False),
    errors.TlsError: (errors.Outcome.NOT_SENT, False),
    errors.WrongPeerError: (errors.Outcome.NOT_SENT, True),
    errors.DuplicateNamePeerError: (errors.Outcome.NOT_SENT, False),
    errors.ReplyTimeoutError: (errors.Outcome.UNKNOWN, False),
    errors.RemoteDecodeError: (errors.Outcome.REPLIED, False),
    errors.NoHandlerError: (errors.Outcome.REPLIED, True),
    errors.RemoteHandlerError: (errors.Outcome.REPLIED, False),
    errors.MemberNotFoundError: (errors.Outcome.NOT_SENT, True),
}


def test_outcome_and_retry_of_request_errors(subtests: pytest.Subtests) -> None:
    assert set(REQUEST_ERRORS) == set(MESSAGING)

    for error, expected in REQUEST_ERRORS.items():
        with subtests.test(error=error):
            raised = error("it failed")
            assert (raised.outcome, raised.retryable) == expected


def test_errors_that_are_neither_about_requests_nor_stores_are_not_retryable() -> None:
    for error in tree():
        if not issubclass(error, errors.ClusterError | errors.DurableError | errors.MessagingError):
            assert error.retryable is False, error


DURABLE_ERRORS = {
    errors.DurableError: False,
    errors.StoreError: False,
    errors.StoreLockedError: True,
    errors.StoreCorruptedError: False,
    errors.StoreMismatchError: False,
    errors.StoreUnavailableError: True,
    errors.SendRejectedError: False,
    errors.OutboxFullError: True,
    errors.IdempotencyConflictError: False,
    errors.StreamMismatchError: False,
    errors.SenderStateLostError: False,
    errors.ReceiverStateLostError: False,
    errors.StreamDivergedError: False,
    errors.FencedError: False,
    errors.TransactionAbortedError: True,
    errors.DeadLetterNotFoundError: False,
    errors.Reject: False,
}


def test_retry_of_durable_errors(subtests: pytest.Subtests) -> None:
    assert set(DURABLE_ERRORS) == {kind for kind in tree() if issubclass(kind, errors.DurableError)}

    for error, retryable in DURABLE_ERRORS.items():
        with subtests.test(retryable=retryable):
            raised = error("it failed")
            assert raised.retryable is retryable
            assert str(raised) == "it failed"


def test_messaging_error_text_contains_the_request_context(subtests: pytest.Subtests) -> None:
    for error in MESSAGING:
        with subtests.test(error=error):
            raised = error("why", peer="beta:2", subject="echo", elapsed_s=0.25, timeout_s=5)
            for part in ("why", "beta:2", "'echo'", "250 ms", "5 s", raised.outcome.value):
                assert part in str(raised)
            assert raised.args == ("why",)

    raised = errors.ReplyTimeoutError(
        "no reply", peer="10.0.0.2:1", subject="a", elapsed_s=2, timeout_s=2
    )
    assert str(raised) == (
        "no reply [subject 'a' to 10.0.0.2:1 after 2 s of 2 s allowed; outcome unknown]"
    )

    for lost, text in [
        (errors.MessagingError("lost"), "lost"),
        (errors.MessagingError("lost", peer="b:1"), "lost [to b:1; outcome unknown]"),
        (errors.MessagingError("lost", subject="s"), "lost [subject 's'; outcome unknown]"),
        (
            errors.ConnectError("lost", subject="s", peer="b:1"),
            "lost [subject 's' to b:1; outcome not sent]",
        ),
    ]:
        assert str(lost) == text

    text = str(errors.ConnectError("refused", peer="b:1", elapsed_s=1.5, timeout_s=3))
    assert "b:1" in text
    assert "1.5 s" in text
    assert "3 s" in text


def test_messaging_error_with_context_copies_for_one_message(subtests: pytest.Subtests) -> None:
    for error in MESSAGING:
        with subtests.test(error=error):
            shared = error("lost", outcome=errors.Outcome.NOT_SENT, retryable=True)
            copy = shared.with_context(peer="b:1", subject="echo", elapsed_s=0.5, timeout_s=2)
            assert type(copy) is error
            assert copy is not shared
            assert (copy.detail, copy.outcome, copy.retryable) == (
                "lost",
                errors.Outcome.NOT_SENT,
                True,
            )
            assert (copy.peer, copy.subject, copy.elapsed_s, copy.timeout_s) == (
                "b:1",
                "echo",
                0.5,
                2,
            )
            assert shared.subject is None

    shared = errors.ConnectionClosedError("lost", peer="b:1 (beta)")
    assert shared.with_context(peer="b:1", subject="echo", elapsed_s=1).peer == "b:1 (beta)"

    failure = errors.RemoteHandlerError("boom")
    failure.remote_code = 3300
    copy = failure.with_context(peer="b:1", subject="echo", elapsed_s=1)
    assert copy.remote_code == 3300

    assert errors.RemoteHandlerError("boom").remote_code == 0


def test_outcome_and_retry_can_be_overridden() -> None:
    raised = errors.NotRunningError(
        "stopped in flight", outcome=errors.Outcome.UNKNOWN, retryable=True
    )
    assert raised.outcome is errors.Outcome.UNKNOWN
    assert raised.retryable
    assert errors.NotRunningError.outcome is errors.Outcome.NOT_SENT
    assert not errors.NotRunningError.retryable

    for outcome, retryable in [(errors.Outcome.NOT_SENT, True), (errors.Outcome.UNKNOWN, False)]:
        assert errors.ConnectionClosedError("closed", outcome=outcome).retryable is retryable, (
            retryable
        )


def test_errors_keep_their_details() -> None:
    assert errors.MalformedFrameError("bad").request_id is None
    assert errors.MalformedFrameError("bad", 7).request_id == 7
    assert str(errors.MalformedFrameError("bad", 7)) == "bad"

    raised = errors.MissingExtraError("zstd", "compression 'zstd'")
    assert raised.extra == "zstd"
    assert str(raised) == (
        "compression 'zstd' needs the extra 'zstd', which postroad was installed without: "
        "pip install '.[zstd]' in a clone of its repository, or 'FILE.whl[zstd]'"
    )

    invalid = errors.InvalidJobError("job 'a' has 2 problems", ["one", "two"])
    arrived = pickle.loads(pickle.dumps(invalid))
    assert str(arrived) == "job 'a' has 2 problems"
    assert arrived.problems == ["one", "two"]


def test_durations_are_formatted_for_people() -> None:
    for seconds, text in [
        (0, "0.00 ms"),
        (0.000_35, "0.35 ms"),
        (0.012, "12 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (1.5, "1.5 s"),
        (15.04, "15 s"),
        (300, "300 s"),
        (1500, "1500 s"),
    ]:
        assert format_duration(seconds) == text, seconds
