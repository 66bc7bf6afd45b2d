"""Brings the code of a flow to where its record ends, by giving it what it was given before."""

from __future__ import annotations

from collections.abc import Callable

from . import waiting
from .code import FlowCoroutine
from .errors import NondeterminismError
from .log import ReplayCursor, ReplayMismatch, recorded_result
from .records import CommandKind, HistoryEntry


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
        command = waiting.pending_command_at(code, entry.position)
        if command is None:
            if code.result is not None and isinstance(code.result.error, ReplayMismatch):
                raise code.result.error
            raise cursor.mismatch(waiting.describe_pending(code))
        cursor.consume(command)
        code.resume(entry.position, recorded_result(command, entry))


def _block_error(entry: HistoryEntry) -> NondeterminismError:
    return NondeterminismError(
        f"cannot replay step {entry.label}: blocks `flow.transaction()` were replaced by steps "
        "that take a Transaction; let the version of Postroad that wrote it finish this flow, fork "
        "the flow from an earlier step, or kill it"
    )
