"""What goes into the machine of a flow, and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from postroad.flows.machine.commands import FlowCommand
from postroad.flows.machine.history import HistoryEntry, Position
from postroad.flows.sessions.messages import SessionMessage
from postroad.flows.sessions.session import BufferedMessage

AckToken: TypeAlias = object
"""Stands for an inbox row that is done with when what follows from it is committed."""


class FlowAdmitted(msgspec.Struct, frozen=True):
    """It is new. A responder comes with what was said to it."""

    messages: list[SessionMessage] = []
    ack_token: AckToken | None = None


class FlowReleased(msgspec.Struct, frozen=True):
    """There is room for it now, or code that knows it."""


class FlowLoaded(msgspec.Struct, frozen=True):
    """It was read from the store, to go on from there."""


class SessionMessagesReceived(msgspec.Struct, frozen=True):
    """The other end of a session said something."""

    number: int
    messages: list[SessionMessage]
    ack_token: AckToken | None = None
    peer: str = ""
    """Who said it; nobody else may."""


class SignalReceived(msgspec.Struct, frozen=True):
    """Somebody sent a signal."""

    name: str
    payload: bytes


class StepCompleted(msgspec.Struct, frozen=True):
    """A function has returned."""

    position: Position
    value: Any


class StepFailed(msgspec.Struct, frozen=True):
    """A function has raised, and is not tried again."""

    position: Position
    error: BaseException


class TimerFired(msgspec.Struct, frozen=True):
    """The time it waited for may have come."""


class FlowTrialPassed(msgspec.Struct, frozen=True):
    """The process goes on, although this flow was taken for what had ended it before."""


class FlowRetryRequested(msgspec.Struct, frozen=True):
    """The pause after an error is over, or an operator wants it tried again."""


class FlowPauseRequested(msgspec.Struct, frozen=True):
    """An operator wants it to rest."""


class FlowResumeRequested(msgspec.Struct, frozen=True):
    """An operator wants it to go on."""


class FlowKillRequested(msgspec.Struct, frozen=True):
    """An operator wants it to end."""

    reason: str


FlowEvent: TypeAlias = (
    FlowAdmitted
    | FlowReleased
    | FlowLoaded
    | SessionMessagesReceived
    | SignalReceived
    | StepCompleted
    | StepFailed
    | TimerFired
    | FlowTrialPassed
    | FlowRetryRequested
    | FlowPauseRequested
    | FlowResumeRequested
    | FlowKillRequested
)


class BufferedSignal(msgspec.Struct, gc=False):
    """A signal that the code has not asked for."""

    name: str
    payload: bytes
    id: int = 0
    """Its number in the store; 0 if it is not there."""


class CommitRejection(NamedTuple):
    """Why the store rejected the commit of a step, and how often."""

    error: Exception
    failures: int


class FlowTransition:
    """What an event changes. All of it is one commit; then the rest is done.

    Attributes:
        is_new: whether the flow is not in the store yet.
        first: number of the first entry.
        entries: steps that were done.
        clears_history: whether all earlier steps go, with what was said in sessions.
        clears_buffer: whether everything goes that was said to the flow and not read.
        buffered: what came and was not read, by session; those that were read since have no id.
        signals: signals that came and were not read.
        consumed_ids: ids of what was kept and has been read now.
        outgoing: messages by session.
        ack_tokens: inbox rows that are done with.
        is_state_changed: whether the state must be written.
        steps_to_run: steps to run, once the commit is durable.
        is_step_recorded: whether the step that is done was waited for, so that what it did counts.
        steps_to_cancel: positions of functions that nobody waits for any more.
        is_ended: whether the flow has ended.
        is_cut: whether the flow could do more, and goes on when this is durable.
        is_parked: whether the flow waits for an operator from now on.
        rejected_signals: why signals were dropped that the code had wanted.
        failed_step: the step that failed and is not recorded, as people see it.
    """

    __slots__ = (
        "ack_tokens",
        "buffered",
        "clears_buffer",
        "clears_history",
        "consumed_ids",
        "entries",
        "failed_step",
        "first",
        "is_cut",
        "is_ended",
        "is_new",
        "is_parked",
        "is_state_changed",
        "is_step_recorded",
        "outgoing",
        "rejected_signals",
        "signals",
        "steps_to_cancel",
        "steps_to_run",
    )

    def __init__(self, first: int) -> None:
        self.is_new = False
        self.first = first
        self.entries: list[HistoryEntry] = []
        self.clears_history = False
        self.clears_buffer = False
        self.buffered: list[tuple[int, BufferedMessage]] = []
        self.signals: list[BufferedSignal] = []
        self.consumed_ids: list[int] = []
        self.outgoing: dict[int, list[SessionMessage]] = {}
        self.ack_tokens: list[AckToken] = []
        self.is_state_changed = False
        self.steps_to_run: list[FlowCommand] = []
        self.is_step_recorded = False
        self.steps_to_cancel: list[Position] = []
        self.is_ended = False
        self.is_cut = False
        self.is_parked = False
        self.failed_step = ""
        self.rejected_signals: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.entries and self.has_only_entries

    @property
    def has_only_entries(self) -> bool:
        """Whether there is nothing to commit besides steps."""
        return not (
            self.buffered
            or self.signals
            or self.consumed_ids
            or self.outgoing
            or self.ack_tokens
            or self.is_state_changed
            or self.is_new
            or self.clears_history
        )
