"""What code waits for: awaiting it hands it over."""

import pytest

from postroad.flows.machine.commands import (
    EMPTY_RESULT,
    CommandResult,
    FlowCommand,
    ParallelBranches,
)
from postroad.flows.machine.history import CommandKind
from tests.support.cases import naming


class Wonder(FlowCommand):
    __slots__ = ()
    kind = CommandKind.SIGNAL


async def await_it(command: FlowCommand | ParallelBranches) -> object:
    return await command


def test_awaited_command_returns_result_or_raises() -> None:
    for command in (Wonder("why"), ParallelBranches([])):
        coroutine = await_it(command)
        assert coroutine.send(None) is command, command
        with naming(command), pytest.raises(StopIteration) as stop:
            coroutine.send("because")
        assert stop.value.value == "because", command
    coroutine = await_it(Wonder("why"))
    coroutine.send(None)
    with pytest.raises(KeyError, match="no answer"):
        coroutine.throw(KeyError("no answer"))


def test_command_repr_and_defaults() -> None:
    ask = Wonder("why", b"digest", 5)
    ask.position = (1, 2)
    assert ask.label == "1.2 signal(why)"
    assert repr(ask) == "<Wonder 1.2 signal(why)>"
    assert (ask.digest, ask.deadline_ms) == (b"digest", 5)
    ask = Wonder("why")
    assert ask.sessions == ()
    assert ask.decode_result(b"anything") is None
    assert not ask.is_immediate
    error = ValueError()
    assert (CommandResult(1).value, CommandResult(1).error) == (1, None)
    assert CommandResult(error=error).error is error
    assert (EMPTY_RESULT.value, EMPTY_RESULT.error) == (None, None)
