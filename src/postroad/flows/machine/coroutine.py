"""Flow code as a coroutine: run one branch at a time, until every branch waits.

There is no event loop: given the same results in the same order, the code does the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from typing import Any

import msgspec

from postroad.core.errors import UsageError
from postroad.flows.errors import UnrecordedAwaitError, WrongSignalError
from postroad.flows.machine import commands
from postroad.flows.machine.commands import (
    CommandHandler,
    CommandResult,
    FlowCommand,
    ParallelBranches,
)
from postroad.flows.machine.history import Position
from postroad.flows.machine.values import type_mismatch

RUNNING: ContextVar[object | None] = ContextVar("postroad_flow_code", default=None)
"""The identity of the flow code that runs; None in its steps and query handlers."""

# A coroutine that awaits something while it is closed is closed again, this often at most.
_CLOSE_ATTEMPTS = 16


class Branch(msgspec.Struct, eq=False):
    """One of the coroutines of a flow that run at the same time."""

    coroutine: Coroutine[Any, Any, Any]
    position: Position
    scope: object | None
    """The definition of the flow or subflow that it belongs to."""
    context: Context
    """Its own, so that variables it sets are visible to it alone."""
    join: Join | None = None
    index: int = 0
    """Its number among the branches of the join."""
    steps: int = 0
    """Number of commands it has requested; -1 once it has ended."""
    command: FlowCommand | Join | None = None
    """What it waits for."""

    def next_position(self) -> Position:
        """Return the position of its next command."""
        position = (*self.position, self.steps)
        self.steps += 1
        return position


class Join:
    """Waits for branches that were started together."""

    __slots__ = ("branches", "fork", "parent", "results", "unfinished")

    def __init__(self, parent: Branch, fork: ParallelBranches) -> None:
        self.parent = parent
        self.fork = fork
        self.branches: list[Branch] = []
        self.results: list[Any] = [None] * len(fork.coroutines)
        self.unfinished = len(fork.coroutines)

    def on_end(self, index: int, outcome: CommandResult) -> CommandResult | None:
        """Take the result of one branch; return that of the parent, or None if it still waits."""
        fork = self.fork
        self.unfinished -= 1
        if outcome.error is not None and not fork.returns_errors:
            return CommandResult(error=outcome.error)
        self.results[index] = outcome.value if outcome.error is None else outcome.error
        if fork.names is not None:
            return CommandResult((fork.names[index], self.results[index]))
        if self.unfinished:
            return None
        return CommandResult(self.results[0] if fork.scope is not None else self.results)


class FlowCoroutine:
    """The running code of one flow, and what each of its branches waits for.

    Args:
        coroutine: the code.
        scope: the definition of the flow.
        execute: called with each command.
        cancel_command: called for a command whose result nothing waits for any more.
    """

    __slots__ = (
        "_cancel_command",
        "_execute",
        "_ready",
        "current",
        "identity",
        "result",
        "root",
        "waiting",
    )

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        scope: object | None,
        execute: CommandHandler,
        cancel_command: Callable[[FlowCommand], None],
    ) -> None:
        self.root = Branch(coroutine, (), scope, copy_context())
        # Not the coroutine itself, which would be referenced by its own context.
        self.identity = object()
        self.root.context.run(RUNNING.set, self.identity)
        self.current = self.root
        self.waiting: dict[Position, Branch] = {}
        self.result: CommandResult | None = None
        self._execute = execute
        self._cancel_command = cancel_command
        self._ready: deque[tuple[Branch, CommandResult]] = deque()

    def start(self) -> None:
        """Run until every branch waits, or the code has ended."""
        self._ready.append((self.root, CommandResult()))
        self._run()

    def resume(self, position: Position, outcome: CommandResult) -> None:
        """Give a branch its result, and run until every branch waits again."""
        branch = self.waiting.pop(position)
        self._ready.append((branch, outcome))
        self._run()

    def _run(self) -> None:
        ready = self._ready
        while ready:
            branch, outcome = ready.popleft()
            # Another branch may have cancelled it meanwhile.
            if branch.steps >= 0:
                self._advance(branch, outcome)

    def _advance(self, branch: Branch, outcome: CommandResult | None) -> None:
        """Run one branch until it waits."""
        coroutine, run = branch.coroutine, branch.context.run
        self.current = branch
        branch.command = None
        while outcome is not None:
            try:
                if outcome.error is None:
                    command = run(coroutine.send, outcome.value)
                else:
                    command = run(coroutine.throw, outcome.error)
            except StopIteration as stop:
                self._on_end(branch, CommandResult(stop.value))
                return
            except BaseException as error:
                self._on_end(branch, CommandResult(error=error))
                return
            outcome = self._on_command(branch, command)

    def _on_command(self, branch: Branch, command: object) -> CommandResult | None:
        if isinstance(command, FlowCommand):
            if not command.position:
                command.position = branch.next_position()
            try:
                outcome = self._execute(command)
            except Exception as error:
                return CommandResult(error=error)
            if outcome is None:
                branch.command = command
                self.waiting[command.position] = branch
            return outcome
        if isinstance(command, ParallelBranches):
            return self._fork(branch, command)
        return CommandResult(error=UnrecordedAwaitError(_describe_awaited(command)))

    def _fork(self, branch: Branch, fork: ParallelBranches) -> CommandResult | None:
        position = branch.next_position()
        if not fork.coroutines:
            if fork.names is not None:
                return CommandResult(error=UsageError("select() needs something to wait for"))
            return CommandResult([])
        join = Join(branch, fork)
        branch.command = join
        scope = branch.scope if fork.scope is None else fork.scope
        for index, coroutine in enumerate(fork.coroutines):
            # A subflow is the only branch, so its position needs no number.
            place = position if fork.scope is not None else (*position, index)
            child = Branch(coroutine, place, scope, branch.context.copy(), join, index)
            join.branches.append(child)
            self._ready.append((child, CommandResult()))
        return None

    def _on_end(self, branch: Branch, outcome: CommandResult) -> None:
        branch.steps = -1
        join = branch.join
        if join is None:
            self.result = outcome
            return
        control = outcome.error is not None and not isinstance(outcome.error, Exception)
        result = outcome if control else join.on_end(branch.index, outcome)
        if result is not None:
            for other in join.branches:
                self._cancel_branch(other)
            self._ready.append((join.parent, result))

    def _cancel_branch(self, branch: Branch) -> None:
        """Close a branch whose result nothing waits for."""
        for each in _innermost_first(branch):
            each.steps = -1
            if isinstance(each.command, FlowCommand):
                del self.waiting[each.command.position]
                self._cancel_command(each.command)
            each.context.run(close_quietly, each.coroutine)

    def close(self) -> None:
        """Close all branches; the code may be run again later, from its start."""
        self._ready.clear()
        self.waiting.clear()
        for branch in _innermost_first(self.root):
            branch.steps = -1
            branch.context.run(close_quietly, branch.coroutine)


def _innermost_first(branch: Branch) -> list[Branch]:
    """Return a branch and all branches that it waits for, as far as they have not ended."""
    unfinished: list[Branch] = []
    waiting = [branch]
    while waiting:
        each = waiting.pop()
        if each.steps >= 0:
            unfinished.append(each)
            if isinstance(each.command, Join):
                waiting += each.command.branches
    return unfinished[::-1]


def close_quietly(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine, and ignore what it raises or awaits meanwhile."""
    for _ in range(_CLOSE_ATTEMPTS):
        try:
            coroutine.close()
        except BaseException as error:
            del error
        else:
            return


def _describe_awaited(awaited: object) -> str:
    waited = type(awaited).__name__ if awaited is not None else "the event loop"
    return (
        f"the flow awaited {waited}, which cannot be recorded: use ctx.sleep, ctx.gather and "
        "ctx.select in place of those of asyncio, and do everything else inside ctx.step"
    )


_LABELS_MAX = 5


def pending_commands(code: FlowCoroutine) -> Iterator[FlowCommand]:
    """Yield all commands that the code waits for, in the order of their requests."""
    for branch in code.waiting.values():
        if isinstance(branch.command, FlowCommand):
            yield branch.command


def pending_command_at(code: FlowCoroutine | None, position: Position) -> FlowCommand | None:
    """Return the command that the code waits for at a position, or None."""
    branch = None if code is None else code.waiting.get(position)
    return (
        branch.command if branch is not None and isinstance(branch.command, FlowCommand) else None
    )


def has_local_work(code: FlowCoroutine) -> bool:
    """Return whether the code waits for work of this process."""
    return any(command.is_local_work for command in pending_commands(code))


def awaits_signal(code: FlowCoroutine | None, name: str, payload: bytes) -> bool:
    """Return whether the code waits for a signal; raises WrongSignalError if for another type."""
    pending = [] if code is None else pending_commands(code)
    waiting = [
        command
        for command in pending
        if isinstance(command, commands.WaitForSignal) and command.name == name
    ]
    problems = [type_mismatch(payload, command.type) for command in waiting]
    if waiting and None not in problems:
        raise WrongSignalError(f"signal {name!r} cannot have this value: {problems[0]}")
    return bool(waiting)


def next_deadline_ms(code: FlowCoroutine) -> int | None:
    """Return the earliest timer or timeout of the code, or None."""
    earliest_ms: int | None = None
    for command in pending_commands(code):
        due_ms = (
            command.until_ms if isinstance(command, commands.SleepUntil) else command.deadline_ms
        )
        if due_ms is not None and (earliest_ms is None or due_ms < earliest_ms):
            earliest_ms = due_ms
    return earliest_ms


def describe_pending(code: FlowCoroutine) -> str:
    """Return what the code waits for, as text for operators."""
    if code.result is not None:
        error = code.result.error
        return "the code has ended" + (f": {error!r}" if error is not None else "")
    labels = [command.label for command in pending_commands(code)]
    return f"the code waits for {', '.join(labels[:_LABELS_MAX]) or 'nothing'}"
