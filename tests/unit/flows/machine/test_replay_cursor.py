"""Code against its record: what fits, and how the difference is told."""

from typing import Any

import pytest

from postroad.flows.errors import NondeterminismError, StepFailedError
from postroad.flows.machine.commands import (
    CloseSession,
    FlowCommand,
    OpenSession,
    ReceiveData,
    RecordPatch,
    RunStep,
    SendData,
    SleepUntil,
    WaitForSignal,
)
from postroad.flows.machine.history import CommandKind, HistoryEntry, Position
from postroad.flows.machine.replay import ReplayCursor, ReplayMismatch, recorded_result
from postroad.flows.machine.values import encode_value, record_error
from postroad.flows.sessions.messages import SessionKey
from postroad.flows.sessions.session import SessionEndpoint
from tests.support.cases import each


def charge(amount: int) -> int:
    return amount


def step(*args: Any, name: str = "charge", position: Position = (0,)) -> RunStep:
    command = RunStep(charge, args, {}, name=name, retry=None, timeout_s=None)
    command.position = position
    return command


def placed(ask: Any, position: Position = (0,)) -> Any:
    ask.position = position
    return ask


def record_of(command: FlowCommand, **facts: Any) -> HistoryEntry:
    fields: dict[str, Any] = {
        "position": command.position,
        "kind": command.kind,
        "name": command.name,
        "digest": command.digest,
        "sessions": command.sessions,
        "at_ms": 5,
    }
    return HistoryEntry(**fields | facts)


def end(number: int = 1) -> SessionEndpoint:
    return SessionEndpoint(SessionKey(1, number), "beta", number, is_initiator=True)


def test_log_is_taken_step_by_step() -> None:
    commands = [step(1, position=(0,)), step(2, position=(1,))]
    entries = [record_of(command) for command in commands]
    cursor = ReplayCursor(entries)
    assert not cursor.is_exhausted
    assert cursor.next_entry is entries[0]
    assert cursor.is_next(commands[0])
    assert not cursor.is_next(commands[1])
    assert [cursor.consume(command) for command in commands] == entries
    assert cursor.is_exhausted
    assert not cursor.is_next(commands[1])
    for digest in (b"", b"of before"):
        ask = step(object())
        assert ask.digest == b"", digest
        record = record_of(ask, digest=digest)
        assert ReplayCursor([record]).consume(ask) is record, digest


@each(
    (step(1), {"position": (3,)}, "another step comes first"),
    (step(1), {"kind": CommandKind.SLEEP}, "the kind was sleep, and is step"),
    (step(1), {"name": "refund"}, "the name was 'refund', and is 'charge'"),
    (step(1), {"digest": b"other"}, "the arguments differ"),
    (
        placed(SendData([end()], ("x",), [b"x"])),
        {"sessions": (2,)},
        r"the sessions were \(2,\), and are \(1,\)",
    ),
)
def test_differences(command: FlowCommand, facts: dict[str, Any], difference: str) -> None:
    cursor = ReplayCursor([record_of(command, **facts)])
    with pytest.raises(ReplayMismatch, match=difference) as diverged:
        cursor.consume(command)
    assert isinstance(diverged.value.error, NondeterminismError)
    assert not cursor.is_exhausted


def test_replay_mismatch_shows_surrounding_steps() -> None:
    assert not issubclass(ReplayMismatch, Exception)
    commands = [step(number, name=f"s{number}", position=(number,)) for number in range(7)]
    cursor = ReplayCursor([record_of(command) for command in commands])
    for command in commands[:4]:
        cursor.consume(command)
    with pytest.raises(ReplayMismatch) as diverged:
        cursor.consume(step(4, name="new", position=(4,)))
    assert str(diverged.value.error).splitlines() == [
        "the code of this flow does not match its history at step 4:",
        "    step 1: 1 step(s1)",
        "    step 2: 2 step(s2)",
        "    step 3: 3 step(s3)",
        "  - step 4: 4 step(s4)   (recorded)",
        "  + step 4: the code requests 4 step(new)",
        "    the name was 's4', and is 'new'",
        "    and 2 more recorded after it",
        "  run the old code again, or keep the old path with ctx.patched(id)",
    ]
    cursor = ReplayCursor([record_of(step(1))])
    message = str(cursor.mismatch("the code has ended").error)
    assert "  + step 0: the code has ended" in message
    assert "more recorded" not in message


@each(
    (step(1), encode_value(5, "it"), 5),
    (placed(SleepUntil(1.0, 5)), None, None),
    (placed(SendData([end()], ("x",), [b"x"])), None, None),
    (placed(OpenSession([end()])), None, None),
    (placed(CloseSession([end()])), None, None),
    (placed(RecordPatch("p")), None, True),
    (placed(WaitForSignal("go", str)), encode_value("now", "it"), "now"),
    (placed(ReceiveData([end()], int)), encode_value(3, "it"), 3),
)
def test_replay_returns_recorded_results(
    command: FlowCommand, value: bytes | None, expected: Any
) -> None:
    outcome = recorded_result(command, record_of(command, value=value))
    assert (outcome.value, outcome.error) == (expected, None)


def test_errors_are_given_again_and_unreadable_values_do_not_fit() -> None:
    outcome = recorded_result(step(1), record_of(step(1), error=record_error(KeyError("x"))))
    assert type(outcome.error) is KeyError
    failure = record_error(type("Gone", (Exception,), {})("x"))
    outcome = recorded_result(step(1), record_of(step(1), error=failure))
    assert isinstance(outcome.error, StepFailedError)
    command = step(1)
    problem = r"cannot read the recorded result of step 0 step\(charge\)"
    with pytest.raises(ReplayMismatch, match=problem):
        recorded_result(command, record_of(command, value=encode_value("text", "it")))
