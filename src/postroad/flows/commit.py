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
from postroad.durable.handling import Handling
from postroad.durable.posting import Post, append_posts, check_posts
from postroad.durable.store.database import Row
from postroad.durable.store.ledger import Ledger
from postroad.durable.store.units import Unit

from . import tables
from .asks import Ask
from .events import Refusal, Transition
from .head import Head
from .records import Position
from .traces import record_commit

# What the same statements and posts meet again, however often they are tried.
_FINAL = (UsageError, IdempotencyConflictError)


class Lane:
    """The order in which the units of one flow are committed: after one that failed, none is."""

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False


class FlowCommit(Unit):
    """Steps, what was consumed for them, and what is sent because of them: all of it or nothing.

    Attributes:
        earlier: those that come before it, where it is committed by a transaction.
        runs: functions to run when it is durable.
        is_duplicate: whether it was found to be the beginning of a flow that exists.
        is_counted: whether the flow is one of those that run, once it is durable.
        is_settled: whether it is durable, or will never be.
    """

    __slots__ = (
        "_handlings",
        "_head",
        "_lane",
        "_mail",
        "_node",
        "_on_settled",
        "_posts",
        "_spans",
        "earlier",
        "flow",
        "head",
        "is_counted",
        "is_duplicate",
        "is_settled",
        "runs",
        "transition",
    )

    def __init__(
        self,
        head: Head,
        transition: Transition,
        lane: Lane,
        *,
        has_kept: bool,
        posts: Sequence[Post],
        handlings: Sequence[Handling],
        on_settled: Callable[[FlowCommit, Exception | None], None],
        node: str = "",
        spans: Sequence[SpanLike] = (),
    ) -> None:
        super().__init__()
        self.earlier: list[FlowCommit] = []
        self.flow = head.id
        # As it is after this transition; by the time of the commit it may have changed again.
        self.head = head
        self._head: Row | None = tables.head_row(head) if transition.is_head_changed else None
        self._mail: list[Row] = []
        if transition.keeps or transition.signals:
            self._mail = [
                *(tables.message_row(head.id, number, it) for number, it in transition.keeps),
                *(tables.signal_row(head.id, it) for it in transition.signals),
            ]
        self.transition = transition
        self._lane = lane
        self._posts = posts
        self._handlings = handlings
        self._on_settled = on_settled
        # Whose spans it records, once it is durable, and those of what is sent.
        self._node = node
        self._spans = spans
        self.runs: list[Ask] = transition.runs
        self.is_duplicate = False
        self.is_counted = False
        self.is_settled = False
        if transition.is_over:
            transition.forgets_mail = has_kept

    def apply(self, ledger: Ledger) -> None:
        units: Sequence[FlowCommit] = (self,)
        handlings, posts = self._handlings, self._posts
        if self.earlier:
            units = (*self.earlier, self)
            handlings = self._all_handlings()
            posts = [post for unit in units for post in unit._posts]
        if self._lane.is_broken or (handlings and any(it.is_lost for it in handlings)):
            self._fence(handlings)
            raise TransactionAbortedError("what comes before this step could not be committed")
        try:
            if self._mail and self._head is None:
                tables.check_known(ledger.database, self.flow)
            known = check_posts(ledger, posts) if posts else ()
        except PostroadError:
            self._fence(handlings)
            raise
        for handling in handlings:
            handling.write(ledger)
        for unit in units:
            unit._write(ledger)
        if posts and not self.is_duplicate:
            append_posts(ledger, posts, known)

    def refuse(self, error: Exception) -> None:
        self._fence(self._all_handlings())
        super().refuse(error)

    def _all_handlings(self) -> list[Handling]:
        return [handling for unit in (*self.earlier, self) for handling in unit._handlings]

    def _fence(self, handlings: Sequence[Handling]) -> None:
        """Have nothing committed that comes after this, from now on."""
        self._lane.is_broken = True
        for handling in handlings:
            handling.fence()

    def _write(self, ledger: Ledger) -> None:
        database, transition, flow = ledger.database, self.transition, self.flow
        if transition.is_new:
            origin = self.head.origin
            if origin is not None and tables.find_responder(database, origin) is not None:
                self.is_duplicate = True
                return
            assert self._head is not None
            tables.insert_head(database, self._head)
        elif self._head is not None:
            tables.update_head(database, self._head, with_arguments=transition.forgets_steps)
        if transition.forgets_steps:
            tables.delete_steps(database, flow)
            tables.delete_mail_of(database, flow, with_signals=False)
        if transition.records:
            tables.insert_steps(database, flow, transition.first, transition.records)
        if self._mail:
            tables.insert_mail(database, self._mail)
        if transition.forgets_mail:
            tables.delete_mail_of(database, flow, with_signals=True)
        elif transition.takes:
            tables.delete_mail(database, transition.takes)

    def settle(self, error: Exception | None) -> None:
        self.is_settled = True
        for unit in self.earlier:
            unit.settle(error)
        for handling in self._handlings:
            handling.settle(error)
        if error is None and tracing.tracer is not None and not self.is_duplicate:
            self._record_spans()
        self._on_settled(self, error)

    def _record_spans(self) -> None:
        for span in self._spans:
            span.end()
        heard = [entry for handling in self._handlings for entry in handling.finished]
        record_commit(self._node, self.head, self.transition, heard)


class Refusals:
    """What the store refused of steps and blocks: those fail when their flow comes to them again.

    Without that they would be run again and again: what they did is undone, and so is what the
    flow knows of them.
    """

    def __init__(self) -> None:
        self._refusals: dict[int, dict[Position, Refusal]] = {}

    def of(self, flow: int) -> dict[Position, Refusal]:
        """Those of a flow, by the position of the step or block, which takes its own away."""
        return self._refusals.get(flow, {})

    def note(self, unit: FlowCommit, position: Position) -> None:
        """Hear what came of a step or block that has statements or posts."""
        error, refusals = unit.error, self._refusals.pop(unit.flow, {})
        before = refusals.pop(position, None)
        is_final = not isinstance(error, PostroadError) or isinstance(error, _FINAL)
        if error is not None and is_final:
            refusals[position] = Refusal(error, 1 if before is None else before.failures + 1)
        if refusals:
            self._refusals[unit.flow] = refusals

    def forget(self, flow: int) -> None:
        """A flow has ended."""
        self._refusals.pop(flow, None)
