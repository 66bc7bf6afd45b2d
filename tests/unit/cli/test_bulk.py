"""One operation on many things: failures, Ctrl-C, and what is told."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Callable

import pytest

from postroad.cli.bulk import do_each, tell_first
from postroad.cli.main import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_OK
from postroad.core.errors import ConnectError, PostroadError, StoreUnavailableError, UsageError
from postroad.flows import FlowNotFoundError


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


IDS = [f"f{number}" for number in range(15)]


def kill_each(kill: Callable[[str], object], ids: list[str] | None = None) -> tuple[int, list[str]]:
    """Kill flows; returns the exit code, and which were killed."""
    killed: list[str] = []

    def do(id: str) -> str:
        kill(id)
        return id

    return do_each(ids or IDS, do, killed.append, verb="kill", noun="flow"), killed


def test_all_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert kill_each(lambda id: None) == (EXIT_OK, IDS)
    assert capsys.readouterr().err == ""


def test_somebody_at_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = FakeTerminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert kill_each(lambda id: None) == (EXIT_OK, IDS)
    assert f"kill [{'#' * 30}] 15/15 " in terminal.getvalue()


def test_failures_are_counted_and_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    def kill(id: str) -> None:
        if id == "f0":
            raise FlowNotFoundError("this node has no flow f0")
        if id == "f3":
            raise UsageError("it has ended")

    code, killed = kill_each(kill)
    assert (code, len(killed)) == (EXIT_NOT_FOUND, 13)
    assert capsys.readouterr().err.splitlines() == [
        "postroad: this node has no flow f0",
        "postroad: flow f3: it has ended",
        "postroad: 13 of 15 flows done, 2 failed",
    ]


def test_many_failures_are_not_all_told(capsys: pytest.CaptureFixture[str]) -> None:
    def kill(id: str) -> None:
        raise PostroadError("no")

    assert kill_each(kill) == (EXIT_FAILED, [])
    *told, last = capsys.readouterr().err.splitlines()
    assert told == [f"postroad: flow f{number}: no" for number in range(10)]
    assert last == "postroad: 0 of 15 flows done, 15 failed"


@pytest.mark.parametrize("error", [ConnectError("nobody answers"), StoreUnavailableError("away")])
def test_what_concerns_all_ends_it(
    error: PostroadError, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill(id: str) -> None:
        if id == "f4":
            raise error

    with pytest.raises(type(error)):
        kill_each(kill)
    assert capsys.readouterr().err == "postroad: 4 of 15 flows done, 11 not tried\n"


def test_an_interrupt_ends_it_between_two(capsys: pytest.CaptureFixture[str]) -> None:
    def kill(id: str) -> None:
        if id == "f2":
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    assert kill_each(kill) == (EXIT_INTERRUPTED, ["f0", "f1", "f2"])
    assert capsys.readouterr().err == "postroad: 3 of 15 flows done, 12 not tried\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_ends_it_at_once() -> None:
    def kill(id: str) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        kill_each(kill)
    assert signal.getsignal(signal.SIGINT) is before


def test_threads_have_no_interrupts() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(kill_each(lambda id: None)[0]))
    thread.start()
    thread.join()
    assert codes == [EXIT_OK]


def test_only_the_first_ids_are_told() -> None:
    assert tell_first(IDS[:3]) == "f0, f1, f2"
    assert tell_first(IDS) == "f0, f1, f2, f3, f4, f5, f6, f7, f8, f9 and 5 more"
