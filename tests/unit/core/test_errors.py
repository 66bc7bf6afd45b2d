"""The error tree: codes, what a caller may do, and texts that say what happened."""

import pickle
import re
from collections.abc import Iterator

import pytest

from postroad.core import errors
from postroad.core.durations import format_seconds
from postroad.core.errors import (
    ClusterError,
    ConfigError,
    ConnectFailed,
    ConnectionClosed,
    DurableError,
    Fenced,
    FrameTooLarge,
    HandshakeRefused,
    HistoryDiverged,
    IdempotencyConflict,
    IllegalFrame,
    JobInvalid,
    LocalProtocolError,
    MailboxFull,
    MalformedFrame,
    MalformedPayload,
    MessageTooLarge,
    MessagingError,
    MissingExtra,
    NoRemoteHandler,
    NoSuchDeadLetter,
    NoSuchMember,
    NotRunning,
    Outcome,
    PeerSilent,
    PostRefused,
    PostroadError,
    ProtocolError,
    ReceiverRestored,
    Reject,
    RemoteHandlerFailure,
    RemoteProtocolError,
    RemoteProtocolFailure,
    RequestTimeout,
    SameNamePeer,
    SenderRestored,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreMismatch,
    StoreUnavailable,
    StreamRefused,
    TlsFailed,
    TransactionLost,
    UsageError,
    WrongPeer,
)


def descendants(root: type[PostroadError]) -> Iterator[type[PostroadError]]:
    for child in root.__subclasses__():
        yield child
        yield from descendants(child)


def tree() -> list[type[PostroadError]]:
    """All classes of the module, the root first."""
    ours = [error for error in descendants(PostroadError) if error.__module__ == errors.__name__]
    return [PostroadError, *dict.fromkeys(ours)]


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


MESSAGING = [error for error in tree() if issubclass(error, MessagingError)]


def test_the_drawing_shows_the_tree() -> None:
    actual: dict[str, str | None] = {"PostroadError": None}
    for error in tree()[1:]:
        (parent,) = (base for base in error.__bases__ if issubclass(base, PostroadError))
        actual[error.__name__] = parent.__name__
    assert drawn_tree() == actual


def test_the_drawing_names_the_builtin_bases() -> None:
    drawn = dict(re.findall(r"([A-Z]\w+) \((\w+)\)", errors.__doc__ or ""))
    builtin = {
        error.__name__: base.__name__
        for error in tree()
        for base in error.__bases__
        if base.__module__ == "builtins" and base is not Exception
    }
    assert drawn == builtin


def test_every_class_has_a_code_of_its_own() -> None:
    codes = [vars(error).get("code") for error in tree()]
    assert None not in codes
    assert len(set(codes)) == len(codes)


def test_codes_follow_the_tree() -> None:
    for error in tree():
        if issubclass(error, ProtocolError):
            assert 2000 <= error.code < 3000
        elif issubclass(error, MessagingError):
            assert 3000 <= error.code < 4000
        elif issubclass(error, ClusterError):
            assert 4000 <= error.code < 5000
        elif issubclass(error, DurableError):
            assert 5000 <= error.code < 6000
        elif issubclass(error, JobInvalid):
            assert 6000 <= error.code < 7000
        else:
            assert 1000 <= error.code < 2000


@pytest.mark.parametrize("error", tree(), ids=lambda error: error.__name__)
def test_every_class_says_what_it_is(error: type[PostroadError]) -> None:
    assert error.__doc__


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ConfigError, ValueError),
        (JobInvalid, ValueError),
        (UsageError, RuntimeError),
        (MissingExtra, ImportError),
        (NotRunning, RuntimeError),
        (MessageTooLarge, ValueError),
        (ConnectFailed, ConnectionError),
        (ConnectionClosed, ConnectionError),
        (TlsFailed, ConnectionError),
        (WrongPeer, ConnectionError),
        (RequestTimeout, TimeoutError),
        (NoSuchMember, LookupError),
        (NoSuchDeadLetter, LookupError),
    ],
)
def test_builtin_handlers_catch_it(error: type[PostroadError], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)


REQUEST_ERRORS = {
    MessagingError: (Outcome.UNKNOWN, False),
    NotRunning: (Outcome.NOT_SENT, False),
    MessageTooLarge: (Outcome.NOT_SENT, False),
    ConnectFailed: (Outcome.NOT_SENT, True),
    ConnectionClosed: (Outcome.UNKNOWN, False),
    TlsFailed: (Outcome.NOT_SENT, False),
    WrongPeer: (Outcome.NOT_SENT, True),
    SameNamePeer: (Outcome.NOT_SENT, False),
    RequestTimeout: (Outcome.UNKNOWN, False),
    RemoteProtocolFailure: (Outcome.KNOWN, False),
    NoRemoteHandler: (Outcome.KNOWN, True),
    RemoteHandlerFailure: (Outcome.KNOWN, False),
    NoSuchMember: (Outcome.NOT_SENT, True),
}


def test_the_table_of_request_errors_is_complete() -> None:
    assert set(REQUEST_ERRORS) == set(MESSAGING)


@pytest.mark.parametrize(("error", "expected"), REQUEST_ERRORS.items())
def test_outcome_and_retry_of_request_errors(
    error: type[MessagingError], expected: tuple[Outcome, bool]
) -> None:
    raised = error("it failed")
    assert (raised.outcome, raised.retryable) == expected


@pytest.mark.parametrize(
    "error",
    [
        PostroadError("x"),
        ConfigError("x"),
        JobInvalid("x"),
        UsageError("x"),
        MissingExtra("zstd", "x"),
        ProtocolError("x"),
        LocalProtocolError("x"),
        MalformedPayload("x"),
        RemoteProtocolError("x"),
        MalformedFrame("x"),
        FrameTooLarge("x"),
        IllegalFrame("x"),
        HandshakeRefused("x"),
        PeerSilent("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_not_retryable(error: PostroadError) -> None:
    assert not error.retryable


DURABLE_ERRORS = {
    DurableError: False,
    StoreError: False,
    StoreLocked: True,
    StoreCorrupt: False,
    StoreMismatch: False,
    StoreUnavailable: True,
    PostRefused: False,
    MailboxFull: True,
    IdempotencyConflict: False,
    StreamRefused: False,
    SenderRestored: False,
    ReceiverRestored: False,
    HistoryDiverged: False,
    Fenced: False,
    TransactionLost: True,
    NoSuchDeadLetter: False,
    Reject: False,
}


def test_the_table_of_durable_errors_is_complete() -> None:
    assert set(DURABLE_ERRORS) == {it for it in tree() if issubclass(it, DurableError)}


@pytest.mark.parametrize(("error", "retryable"), DURABLE_ERRORS.items())
def test_retry_of_durable_errors(error: type[DurableError], retryable: bool) -> None:
    raised = error("it failed")
    assert raised.retryable is retryable
    assert str(raised) == "it failed"


def test_codes_within_the_durable_errors_follow_the_tree() -> None:
    for error in DURABLE_ERRORS:
        for child in error.__subclasses__():
            if error is not DurableError:
                assert error.code < child.code < error.code + 100


@pytest.mark.parametrize("error", MESSAGING, ids=lambda error: error.__name__)
def test_text_names_peer_subject_elapsed_and_allowed_time(error: type[MessagingError]) -> None:
    raised = error(
        "the detail", peer="beta at 10.0.0.2:26502", subject="echo", elapsed_s=0.25, timeout_s=5
    )
    text = str(raised)
    for part in ("the detail", "beta at 10.0.0.2:26502", "'echo'", "250 ms", "5 s"):
        assert part in text
    assert raised.outcome.value in text
    assert raised.args == ("the detail",)


def test_text_of_a_whole_request_error() -> None:
    raised = RequestTimeout("no reply", peer="10.0.0.2:1", subject="a", elapsed_s=2, timeout_s=2)
    assert str(raised) == (
        "no reply [subject 'a' to 10.0.0.2:1 after 2 s of 2 s allowed; outcome unknown]"
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MessagingError("lost"), "lost"),
        (MessagingError("lost", peer="b:1"), "lost [to b:1; outcome unknown]"),
        (MessagingError("lost", subject="s"), "lost [subject 's'; outcome unknown]"),
        (ConnectFailed("lost", subject="s", peer="b:1"), None),
    ],
)
def test_text_leaves_out_what_is_not_known(error: MessagingError, text: str | None) -> None:
    assert str(error) == (text or "lost [subject 's' to b:1; outcome not sent]")


def test_text_without_a_subject_still_tells_the_times() -> None:
    text = str(ConnectFailed("refused", peer="b:1", elapsed_s=1.5, timeout_s=3))
    assert "b:1" in text
    assert "1.5 s" in text
    assert "3 s" in text


@pytest.mark.parametrize("error", MESSAGING, ids=lambda error: error.__name__)
def test_a_shared_failure_is_told_of_one_message(error: type[MessagingError]) -> None:
    shared = error("lost", outcome=Outcome.NOT_SENT, retryable=True)
    told = shared.about(peer="b:1", subject="echo", elapsed_s=0.5, timeout_s=2)
    assert type(told) is error
    assert told is not shared
    assert (told.detail, told.outcome, told.retryable) == ("lost", Outcome.NOT_SENT, True)
    assert (told.peer, told.subject, told.elapsed_s, told.timeout_s) == ("b:1", "echo", 0.5, 2)
    assert shared.subject is None


def test_a_failure_that_knows_its_peer_keeps_it() -> None:
    shared = ConnectionClosed("lost", peer="b:1 (beta)")
    assert shared.about(peer="b:1", subject="echo", elapsed_s=1).peer == "b:1 (beta)"


def test_a_remote_failure_keeps_its_code_when_told_of_one_message() -> None:
    failure = RemoteHandlerFailure("boom")
    failure.remote_code = 3300
    told = failure.about(peer="b:1", subject="echo", elapsed_s=1)
    assert told.remote_code == 3300


def test_a_raiser_may_know_better() -> None:
    raised = NotRunning("stopped in flight", outcome=Outcome.UNKNOWN, retryable=True)
    assert raised.outcome is Outcome.UNKNOWN
    assert raised.retryable
    assert NotRunning.outcome is Outcome.NOT_SENT
    assert not NotRunning.retryable


@pytest.mark.parametrize(
    ("outcome", "retryable"), [(Outcome.NOT_SENT, True), (Outcome.UNKNOWN, False)]
)
def test_a_closed_connection_is_retryable_while_nothing_was_sent(
    outcome: Outcome, retryable: bool
) -> None:
    assert ConnectionClosed("closed", outcome=outcome).retryable is retryable


def test_a_malformed_frame_may_know_its_request() -> None:
    assert MalformedFrame("bad").request_id is None
    assert MalformedFrame("bad", 7).request_id == 7
    assert str(MalformedFrame("bad", 7)) == "bad"


def test_a_missing_extra_says_how_to_get_it() -> None:
    raised = MissingExtra("zstd", "compression 'zstd'")
    assert raised.extra == "zstd"
    assert str(raised) == "compression 'zstd' needs an extra: pip install \"postroad[zstd]\""


def test_an_invalid_job_keeps_its_problems_on_the_way_to_another_process() -> None:
    raised = JobInvalid("job 'a' has 2 problems", ["one", "two"])
    arrived = pickle.loads(pickle.dumps(raised))
    assert str(arrived) == "job 'a' has 2 problems"
    assert arrived.problems == ["one", "two"]


def test_a_remote_failure_has_no_code_unless_told() -> None:
    assert RemoteHandlerFailure("boom").remote_code == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 ms"),
        (0.000_35, "0.35 ms"),
        (0.012, "12 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (1.5, "1.5 s"),
        (15.04, "15 s"),
        (300, "300 s"),
        (1500, "1500 s"),
    ],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
