"""Replay: flow code is given its recorded results, and its commands are compared with history."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from postroad.flows.errors import NondeterminismError
from postroad.flows.machine.commands import CommandResult, FlowCommand
from postroad.flows.machine.coroutine import FlowCoroutine, describe_pending, pending_command_at
from postroad.flows.machine.history import CommandKind, HistoryEntry
from postroad.flows.machine.values import restore_error

# So many steps are shown before the one that differs.
_SHOWN_BEFORE = 3


class ReplayMismatch(BaseException):
    """The code does not fit its record. Not an Exception, so that no flow can swallow it."""

    def __init__(self, mismatch: NondeterminismError) -> None:
        super().__init__(str(mismatch))
        self.error = mismatch


class ReplayCursor:
    """The recorded steps of a flow that its code has not come to yet."""

    __slots__ = ("_entries", "_next")

    def __init__(self, entries: Sequence[HistoryEntry]) -> None:
        self._entries = entries
        self._next = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the code is where it was."""
        return self._next == len(self._entries)

    @property
    def consumed(self) -> int:
        """How many of them the code has come to."""
        return self._next

    @property
    def next_entry(self) -> HistoryEntry:
        """The next step that was recorded."""
        return self._entries[self._next]

    def is_next(self, command: FlowCommand) -> bool:
        """Whether an ask is the next step that was recorded."""
        if self.is_exhausted:
            return False
        entry = self.next_entry
        return (entry.position, entry.kind, entry.name) == (
            command.position,
            command.kind,
            command.name,
        )

    def is_deferred(self, command: FlowCommand) -> bool:
        """Whether something else was recorded before it, because the code was cut short there."""
        if self.is_next(command):
            return False
        rest = itertools.islice(self._entries, self._next, None)
        recorded = next((entry for entry in rest if entry.position == command.position), None)
        # At its own place there must be nothing else.
        return recorded is None or (recorded.kind, recorded.name) == (command.kind, command.name)

    def consume(self, command: FlowCommand) -> HistoryEntry:
        """The next step, which must be this one."""
        entry = self.next_entry
        differences = list(_compare(command, entry))
        if differences:
            raise self.mismatch(f"the code asks for {command.label}", differences)
        self._next += 1
        return entry

    def mismatch(self, what: str, differences: Iterable[str] = ()) -> ReplayMismatch:
        """The error that says where code and record part, and how."""
        lines = [f"the code of this flow does not fit its record at step {self._next}:"]
        first = max(self._next - _SHOWN_BEFORE, 0)
        before = enumerate(self._entries[first : self._next], first)
        lines += [f"    step {number}: {entry.label}" for number, entry in before]
        lines.append(f"  - step {self._next}: {self.next_entry.label}   (recorded)")
        lines.append(f"  + step {self._next}: {what}")
        lines += [f"    {difference}" for difference in differences]
        remaining = len(self._entries) - self._next - 1
        if remaining:
            lines.append(f"    and {remaining} more recorded after it")
        lines.append("  run the old code again, or keep both ways apart with ctx.patched(id)")
        return ReplayMismatch(NondeterminismError("\n".join(lines)))


def _compare(command: FlowCommand, entry: HistoryEntry) -> Iterable[str]:
    if command.position != entry.position:
        yield "another step comes first"
    if command.kind != entry.kind:
        yield f"it was {entry.kind}, and is {command.kind}"
    elif command.name != entry.name:
        yield f"it was about {entry.name!r}, and is about {command.name!r}"
    elif command.sessions != entry.sessions:
        yield f"it was about sessions {entry.sessions}, and is about {command.sessions}"
    elif command.digest and entry.digest and command.digest != entry.digest:
        yield "its arguments are others"


def recorded_result(command: FlowCommand, entry: HistoryEntry) -> CommandResult:
    """What the code gets for an ask that was recorded."""
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
            NondeterminismError(
                f"what step {entry.label} was given cannot be read any more: {error}"
            )
        ) from None


def replay(code: FlowCoroutine, cursor: ReplayCursor, move_time: Callable[[int], None]) -> None:
    """Start the code, and feed it its record in the order in which that was written.

    Raises:
        ReplayMismatch: the code asks for something else, or the record cannot be replayed.
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
