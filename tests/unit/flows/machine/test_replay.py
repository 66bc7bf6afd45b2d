"""Code brought to where its record ends: it is given what it was given, in that order."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from postroad.flows.machine.commands import (
    CommandResult,
    FlowCommand,
    ParallelBranches,
    WaitForSignal,
)
from postroad.flows.machine.coroutine import FlowCoroutine
from postroad.flows.machine.history import CommandKind, HistoryEntry, Position
from postroad.flows.machine.replay import ReplayCursor, ReplayMismatch, replay
from postroad.flows.machine.values import encode_value
from tests.support.cases import each

Script = Callable[[list[Any]], Coroutine[Any, Any, Any]]


async def wait(name: str) -> Any:
    return await WaitForSignal(name, int)


async def one_by_one(seen: list[Any]) -> None:
    seen.append(await wait("a"))
    seen.append(await wait("b"))


async def at_once(seen: list[Any]) -> None:
    async def note(name: str) -> None:
        seen.append(await wait(name))

    await ParallelBranches([note("a"), note("b")])


def record(position: Position, name: str, value: int, at_ms: int = 0) -> HistoryEntry:
    facts: dict[str, Any] = {"kind": CommandKind.SIGNAL, "digest": b"", "at_ms": at_ms}
    return HistoryEntry(position=position, name=name, value=encode_value(value, "it"), **facts)


def run(script: Script, *entries: HistoryEntry) -> tuple[list[Any], FlowCoroutine, list[int]]:
    """What code sees of a record, where it is then, and the times of that."""

    def answer(command: FlowCommand) -> CommandResult | None:
        return None

    seen: list[Any] = []
    times: list[int] = []
    code = FlowCoroutine(script(seen), None, answer, lambda command: None)
    replay(code, ReplayCursor(entries), times.append)
    return seen, code, times


def test_code_comes_as_far_as_it_was_in_the_order_of_the_record() -> None:
    for count in (0, 1, 2):
        entries = [record((0,), "a", 1, 5), record((1,), "b", 2, 9)][:count]
        seen, code, times = run(one_by_one, *entries)
        assert seen == [1, 2][:count], count
        assert (code.result is not None) == (count == 2), count
        assert times == [5, 9][:count], count
        code.close()
    first, second = record((0, 0, 0), "a", 1), record((0, 1, 0), "b", 2)
    assert run(at_once, first, second)[0] == [1, 2]
    assert run(at_once, second, first)[0] == [2, 1]


@each(
    (one_by_one, [((1,), "b")], r"the code waits for 0 signal\(a\)"),
    (one_by_one, [((0,), "b")], "the name was 'b', and is 'a'"),
    (one_by_one, [((0,), "a"), ((1,), "b"), ((2,), "c")], "the code has ended"),
    (at_once, [((0,), "a")], r"the code waits for 0\.0\.0 signal\(a\), 0\.1\.0 signal\(b\)"),
    (at_once, [((0, 2, 0), "a")], "the code waits for"),
)
def test_replay_mismatch_names_position(
    script: Script, records: list[tuple[Position, str]], message: str
) -> None:
    with pytest.raises(ReplayMismatch, match=message):
        run(script, *[record(position, name, 1) for position, name in records])
