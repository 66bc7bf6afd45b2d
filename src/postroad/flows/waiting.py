"""What the code of a flow waits for, all of it together. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from . import requests as ask_for
from .asks import FlowCommand
from .code import FlowCoroutine
from .errors import WrongSignalError
from .records import Position
from .values import type_mismatch

_LABELS_MAX = 5


def pending_commands(code: FlowCoroutine) -> Iterator[FlowCommand]:
    """Everything the code waits for, in the order it was asked for."""
    for branch in code.waiting.values():
        if isinstance(branch.command, FlowCommand):
            yield branch.command


def pending_command_at(code: FlowCoroutine | None, position: Position) -> FlowCommand | None:
    """What the code waits for at a place."""
    branch = None if code is None else code.waiting.get(position)
    return (
        branch.command if branch is not None and isinstance(branch.command, FlowCommand) else None
    )


def has_local_work(code: FlowCoroutine) -> bool:
    """Whether it waits for something that only this process does."""
    return any(command.is_local_work for command in pending_commands(code))


def awaits_signal(code: FlowCoroutine | None, name: str, payload: bytes) -> bool:
    """Whether it waits for a signal of that name; raises WrongSignalError if for another value."""
    commands = [] if code is None else pending_commands(code)
    wanted = [
        command
        for command in commands
        if isinstance(command, ask_for.WaitForSignal) and command.name == name
    ]
    problems = [type_mismatch(payload, command.type) for command in wanted]
    if wanted and None not in problems:
        raise WrongSignalError(f"signal {name!r} cannot have this value: {problems[0]}")
    return bool(wanted)


def next_deadline_ms(code: FlowCoroutine) -> int | None:
    """When it must be looked at, if nothing happens before."""
    earliest_ms: int | None = None
    for command in pending_commands(code):
        due_ms = (
            command.until_ms if isinstance(command, ask_for.SleepUntil) else command.deadline_ms
        )
        if due_ms is not None and (earliest_ms is None or due_ms < earliest_ms):
            earliest_ms = due_ms
    return earliest_ms


def describe_pending(code: FlowCoroutine) -> str:
    """Where the code is, for people."""
    if code.result is not None:
        error = code.result.error
        return "the code has ended" + (f": {error!r}" if error is not None else "")
    labels = [command.label for command in pending_commands(code)]
    return f"the code waits for {', '.join(labels[:_LABELS_MAX]) or 'nothing'}"
