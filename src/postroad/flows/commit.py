"""One transition of a flow as one change of the store, with all that belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from postroad.core import tracing
from postroad.core.errors import (
    IdempotencyConflictError,
    PostroadError,
    TransactionAbortedError,
    UsageError,
)
from postroad.core.tracing import SpanLike
from postroad.durable.consumers.disposition import DispositionMutation
from postroad.durable.producer import EncodedMessage, append_sends, check_sends
from postroad.durable.store.database import Row
from postroad.durable.store.ledger import Ledger
from postroad.durable.store.units import Unit

from . import tables
from .asks import FlowCommand
from .events import CommitRejection, FlowTransition
from .head import FlowState
from .records import Position
from .traces import record_commit_spans

# What the same statements and posts meet again, however often they are tried.
_PERMANENT_ERRORS = (UsageError, IdempotencyConflictError)


class FlowCommitSequence:
    """The order in which the units of one flow are committed: after one that failed, none is."""

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False


class FlowMutation(Unit):
    """Steps, what was consumed for them, and what is sent because of them: all of it or nothing.

    Attributes:
        earlier: those that come before it, where it is committed by a transaction.
        runs: functions to run when it is durable.
        is_duplicate: whether it was found to be the beginning of a flow that exists.
        is_counted: whether the flow is one of those that run, once it is durable.
        is_settled: whether it is durable, or will never be.
    """

    __slots__ = (
        "_buffered",
        "_handlings",
        "_node",
        "_on_committed",
        "_posts",
        "_row",
        "_sequence",
        "_spans",
        "flow",
        "is_counted",
        "is_duplicate",
        "is_finished",
        "preceding",
        "state",
        "steps_to_run",
        "transition",
    )

    def __init__(
        self,
        state: FlowState,
        transition: FlowTransition,
        sequence: FlowCommitSequence,
        *,
        has_stored_buffer: bool,
        posts: Sequence[EncodedMessage],
        handlings: Sequence[DispositionMutation],
        on_committed: Callable[[FlowMutation, Exception | None], None],
        node: str = "",
        spans: Sequence[SpanLike] = (),
    ) -> None:
        super().__init__()
        self.preceding: list[FlowMutation] = []
        self.flow = state.id
        # As it is after this transition; by the time of the commit it may have changed again.
        self.state = state
        self._row: Row | None = tables.state_row(state) if transition.is_state_changed else None
        self._buffered: list[Row] = []
        if transition.buffered or transition.signals:
            self._buffered = [
                *(
                    tables.buffered_message_row(state.id, number, message)
                    for number, message in transition.buffered
                ),
                *(tables.buffered_signal_row(state.id, signal) for signal in transition.signals),
            ]
        self.transition = transition
        self._sequence = sequence
        self._posts = posts
        self._handlings = handlings
        self._on_committed = on_committed
        # Whose spans it records, once it is durable, and those of what is sent.
        self._node = node
        self._spans = spans
        self.steps_to_run: list[FlowCommand] = transition.steps_to_run
        self.is_duplicate = False
        self.is_counted = False
        self.is_finished = False
        if transition.is_ended:
            transition.clears_buffer = has_stored_buffer

    def apply(self, ledger: Ledger) -> None:
        mutations: Sequence[FlowMutation] = (self,)
        handlings, posts = self._handlings, self._posts
        if self.preceding:
            mutations = (*self.preceding, self)
            handlings = self._all_handlings()
            posts = [post for mutation in mutations for post in mutation._posts]
        if self._sequence.is_broken or (handlings and any(it.is_lost for it in handlings)):
            self._fence(handlings)
            raise TransactionAbortedError("what comes before this step could not be committed")
        try:
            if self._buffered and self._row is None:
                tables.check_known(ledger.database, self.flow)
            known = check_sends(ledger, posts) if posts else ()
        except PostroadError:
            self._fence(handlings)
            raise
        for handling in handlings:
            handling.write(ledger)
        for mutation in mutations:
            mutation._write(ledger)
        if posts and not self.is_duplicate:
            append_sends(ledger, posts, known)

    def refuse(self, error: Exception) -> None:
        self._fence(self._all_handlings())
        super().refuse(error)

    def _all_handlings(self) -> list[DispositionMutation]:
        return [
            handling for mutation in (*self.preceding, self) for handling in mutation._handlings
        ]

    def _fence(self, handlings: Sequence[DispositionMutation]) -> None:
        """Have nothing committed that comes after this, from now on."""
        self._sequence.is_broken = True
        for handling in handlings:
            handling.abort_successors()

    def _write(self, ledger: Ledger) -> None:
        database, transition, flow = ledger.database, self.transition, self.flow
        if transition.is_new:
            origin = self.state.initiated_by
            if origin is not None and tables.find_responder(database, origin) is not None:
                self.is_duplicate = True
                return
            assert self._row is not None
            tables.insert_state(database, self._row)
        elif self._row is not None:
            tables.update_state(database, self._row, with_arguments=transition.clears_history)
        if transition.clears_history:
            tables.delete_steps(database, flow)
            tables.delete_buffered_of(database, flow, with_signals=False)
        if transition.entries:
            tables.insert_steps(database, flow, transition.first, transition.entries)
        if self._buffered:
            tables.insert_buffered(database, self._buffered)
        if transition.clears_buffer:
            tables.delete_buffered_of(database, flow, with_signals=True)
        elif transition.consumed_ids:
            tables.delete_buffered(database, transition.consumed_ids)

    def settle(self, error: Exception | None) -> None:
        self.is_finished = True
        for mutation in self.preceding:
            mutation.settle(error)
        for handling in self._handlings:
            handling.settle(error)
        if error is None and tracing.tracer is not None and not self.is_duplicate:
            self._record_spans()
        self._on_committed(self, error)

    def _record_spans(self) -> None:
        for span in self._spans:
            span.end()
        heard = [entry for handling in self._handlings for entry in handling.finished]
        record_commit_spans(self._node, self.state, self.transition, heard)


class CommitRejections:
    """What the store refused of steps and blocks: those fail when their flow comes to them again.

    Without that they would be run again and again: what they did is undone, and so is what the
    flow knows of them.
    """

    def __init__(self) -> None:
        self._rejections: dict[int, dict[Position, CommitRejection]] = {}

    def of(self, flow: int) -> dict[Position, CommitRejection]:
        """Those of a flow, by the position of the step or block, which takes its own away."""
        return self._rejections.get(flow, {})

    def record(self, mutation: FlowMutation, position: Position) -> None:
        """Hear what came of a step or block that has statements or posts."""
        error, refusals = mutation.error, self._rejections.pop(mutation.flow, {})
        before = refusals.pop(position, None)
        is_final = not isinstance(error, PostroadError) or isinstance(error, _PERMANENT_ERRORS)
        if error is not None and is_final:
            refusals[position] = CommitRejection(
                error, 1 if before is None else before.failures + 1
            )
        if refusals:
            self._rejections[mutation.flow] = refusals

    def discard(self, flow: int) -> None:
        """A flow has ended."""
        self._rejections.pop(flow, None)
