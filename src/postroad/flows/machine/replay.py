"""Replay: flow code runs again from its start, and recorded steps return recorded results.

`replay` starts the code and answers its commands from history, in the order of their completion.
The function of a step with an entry is not called again: `recorded_result` decodes what it
returned. Commands that start after the last entry are new, and are executed.

A command that differs from the entry at its position raises ReplayMismatch, and the flow is parked:
its code was changed in a way that running flows cannot follow. Commands that need no waiting are
compared in `FlowStateMachine.execute`, all others in `replay`. `ReplayCursor.consume` decides, and
`mismatch` describes the difference; docs/flow-changes.md says how to change the code of running
flows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from postroad.flows.errors import NondeterminismError
from postroad.flows.machine.commands import CommandResult, FlowCommand
from postroad.flows.machine.coroutine import FlowCoroutine, describe_pending, pending_command_at
from postroad.flows.machine.history import CommandKind, HistoryEntry
from postroad.flows.machine.values import restore_error

# Number of matching steps shown before the one that differs.
_SHOWN_BEFORE = 3


class ReplayMismatch(BaseException):
    """The code does not match its history. A BaseException, so that no flow code handles it."""

    def __init__(self, mismatch: NondeterminismError) -> None:
        super().__init__(str(mismatch))
        self.error = mismatch


class ReplayCursor:
    """The entries of a flow's history that its code has not consumed yet."""

    __slots__ = ("_entries", "_next")

    def __init__(self, entries: Sequence[HistoryEntry]) -> None:
        self._entries = entries
        self._next = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the code has consumed all entries, so that it is not replayed any more."""
        return self._next == len(self._entries)

    @property
    def consumed(self) -> int:
        """The number of consumed entries."""
        return self._next

    @property
    def next_entry(self) -> HistoryEntry:
        return self._entries[self._next]

    def is_next(self, command: FlowCommand) -> bool:
        """Return whether a command matches the next entry."""
        if self.is_exhausted:
            return False
        entry = self.next_entry
        return (entry.position, entry.kind, entry.name) == (
            command.position,
            command.kind,
            command.name,
        )

    def is_deferred(self, command: FlowCommand) -> bool:
        """Return whether other commands were recorded first, because the transition was cut."""
        if self.is_next(command):
            return False
        rest = itertools.islice(self._entries, self._next, None)
        recorded = next((entry for entry in rest if entry.position == command.position), None)
        # An entry at its own position must be of the same command.
        return recorded is None or (recorded.kind, recorded.name) == (command.kind, command.name)

    def consume(self, command: FlowCommand) -> HistoryEntry:
        """Return the next entry, or raise ReplayMismatch if a command differs from it."""
        entry = self.next_entry
        differences = list(_compare(command, entry))
        if differences:
            raise self.mismatch(f"the code requests {command.label}", differences)
        self._next += 1
        return entry

    def mismatch(self, what: str, differences: Iterable[str] = ()) -> ReplayMismatch:
        """Return the error that shows where the code differs from the history, and how."""
        lines = [f"the code of this flow does not match its history at step {self._next}:"]
        first = max(self._next - _SHOWN_BEFORE, 0)
        before = enumerate(self._entries[first : self._next], first)
        lines += [f"    step {number}: {entry.label}" for number, entry in before]
        lines.append(f"  - step {self._next}: {self.next_entry.label}   (recorded)")
        lines.append(f"  + step {self._next}: {what}")
        lines += [f"    {difference}" for difference in differences]
        remaining = len(self._entries) - self._next - 1
        if remaining:
            lines.append(f"    and {remaining} more recorded after it")
        lines.append("  run the old code again, or keep the old path with ctx.patched(id)")
        return ReplayMismatch(NondeterminismError("\n".join(lines)))


def _compare(command: FlowCommand, entry: HistoryEntry) -> Iterable[str]:
    if command.position != entry.position:
        yield "another step comes first"
    if command.kind != entry.kind:
        yield f"the kind was {entry.kind}, and is {command.kind}"
    elif command.name != entry.name:
        yield f"the name was {entry.name!r}, and is {command.name!r}"
    elif command.sessions != entry.sessions:
        yield f"the sessions were {entry.sessions}, and are {command.sessions}"
    elif command.digest and entry.digest and command.digest != entry.digest:
        yield "the arguments differ"


def recorded_result(command: FlowCommand, entry: HistoryEntry) -> CommandResult:
    """Return what the code gets for a recorded command, in place of executing it again."""
    if entry.error is not None:
        return CommandResult(error=restore_error(entry.error))
    if entry.value is None or entry.kind in (
        CommandKind.SEND,
        CommandKind.OPEN,
        CommandKind.CLOSE,
        CommandKind.SLEEP,
    ):
        return CommandResult(entry.kind is CommandKind.PATCH or None)
    try:
        return CommandResult(command.decode_result(entry.value))
    except Exception as error:
        raise ReplayMismatch(
            NondeterminismError(f"cannot read the recorded result of step {entry.label}: {error}")
        ) from None


def replay(code: FlowCoroutine, cursor: ReplayCursor, move_time: Callable[[int], None]) -> None:
    """Start the code, and resume it with each recorded result.

    Raises:
        ReplayMismatch: the code requests something else, or the history cannot be replayed.
    """
    code.start()
    while not cursor.is_exhausted:
        entry = cursor.next_entry
        if entry.kind is CommandKind.TRANSACTION:
            raise ReplayMismatch(_block_error(entry))
        move_time(entry.at_ms)
        command = pending_command_at(code, entry.position)
        if command is None:
            if code.result is not None and isinstance(code.result.error, ReplayMismatch):
                raise code.result.error
            raise cursor.mismatch(describe_pending(code))
        cursor.consume(command)
        code.resume(entry.position, recorded_result(command, entry))


def _block_error(entry: HistoryEntry) -> NondeterminismError:
    return NondeterminismError(
        f"cannot replay step {entry.label}: blocks `flow.transaction()` were replaced by steps "
        "that take a Transaction; let the version of Postroad that wrote it finish this flow, fork "
        "the flow from an earlier step, or kill it"
    )
