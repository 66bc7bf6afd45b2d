"""Events that a flow's state machine handles, and the transition that each one returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from postroad.flows.machine.commands import FlowCommand
from postroad.flows.machine.history import HistoryEntry, Position
from postroad.flows.machine.requests import FlowRequest
from postroad.flows.sessions.messages import SessionMessage
from postroad.flows.sessions.session import BufferedMessage

AckToken: TypeAlias = object
"""Stands for an inbox message, acknowledged in the commit of what follows from it."""


class FlowAdmitted(msgspec.Struct, frozen=True):
    """A new flow starts: a responder with the first messages of its session, or by a request."""

    messages: list[SessionMessage] = []
    ack_token: AckToken | None = None


class FlowReleased(msgspec.Struct, frozen=True):
    """A queued or held flow may start: there is a concurrency slot, or code, for it now."""


class FlowLoaded(msgspec.Struct, frozen=True):
    """The flow was loaded from the store, to resume where its history ends."""


class SessionMessagesReceived(msgspec.Struct, frozen=True):
    """The other end of a session sent messages."""

    number: int
    messages: list[SessionMessage]
    ack_token: AckToken | None = None
    peer: str = ""
    """The node that sent them; messages of any other node than the session's are ignored."""


class SignalReceived(msgspec.Struct, frozen=True):
    """A signal arrived."""

    name: str
    payload: bytes
    ack_token: AckToken | None = None
    is_child_end: bool = False
    """Whether it tells of the end of a child; ignored if the code cannot wait for that."""


class StepCompleted(msgspec.Struct, frozen=True):
    """The function of a step returned."""

    position: Position
    value: Any


class StepFailed(msgspec.Struct, frozen=True):
    """The function of a step raised, and its retry policy allows no further attempt."""

    position: Position
    error: BaseException


class TimerFired(msgspec.Struct, frozen=True):
    """A deadline may have passed."""


class FlowTrialPassed(msgspec.Struct, frozen=True):
    """The process survived the trial of this flow: it did not cause the crashes."""


class FlowRetryRequested(msgspec.Struct, frozen=True):
    """The delay after an error is over, or an operator retries the flow."""


class FlowPauseRequested(msgspec.Struct, frozen=True):
    """An operator pauses the flow."""


class FlowResumeRequested(msgspec.Struct, frozen=True):
    """An operator resumes the flow."""


class FlowCancelRequested(msgspec.Struct, frozen=True):
    """The flow is to end, after its code has undone what must not stay."""

    reason: str
    ack_token: AckToken | None = None


class FlowKillRequested(msgspec.Struct, frozen=True):
    """An operator kills the flow."""

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
    | FlowCancelRequested
    | FlowKillRequested
)


class BufferedSignal(msgspec.Struct, gc=False):
    """A signal that the code has not consumed yet."""

    name: str
    payload: bytes
    id: int = 0
    """Its number in the store; 0 if it is not stored."""


class CommitRejection(NamedTuple):
    """Why the store rejected the commit of a step, and how often."""

    error: Exception
    failures: int


class FlowTransition(msgspec.Struct, eq=False):
    """What an event changes: one commit, and what is done once that is durable."""

    first: int
    """Number of the first entry."""
    entries: list[HistoryEntry] = []
    """Commands that were completed."""
    is_new: bool = False
    """Whether the flow is not in the store yet."""
    is_state_changed: bool = False
    clears_history: bool = False
    """Whether all earlier entries are deleted, with the buffered messages of sessions."""
    clears_buffer: bool = False
    """Whether all buffered messages and signals are deleted."""
    buffered: list[tuple[int, BufferedMessage]] = []
    """Messages that arrived and were not consumed, with the number of their session."""
    signals: list[BufferedSignal] = []
    """Signals that arrived and were not consumed."""
    consumed_ids: list[int] = []
    """Ids of stored messages and signals that were consumed."""
    outgoing: dict[int, list[SessionMessage]] = {}
    """Messages to send, by session."""
    requests: list[FlowRequest] = []
    """Requests to other flows of this node."""
    ack_tokens: list[AckToken] = []
    """Inbox messages to acknowledge."""
    steps_to_run: list[FlowCommand] = []
    """Steps whose functions are called once the commit is durable."""
    steps_to_cancel: list[Position] = []
    """Positions of steps whose results nothing waits for any more."""
    is_step_recorded: bool = False
    """Whether the completed step was awaited, so that its transaction is committed."""
    is_ended: bool = False
    is_cut: bool = False
    """Whether the flow could do more, and continues when this is durable."""
    is_parked: bool = False
    failed_step: str = ""
    """The label of a step that failed and is not recorded, as it will be run again."""
    rejected_signals: Sequence[str] = ()
    """Why signals were dropped that the code waited for."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.entries and self.has_only_entries

    @property
    def has_only_entries(self) -> bool:
        """Whether there is nothing to commit besides entries."""
        return not (
            self.buffered
            or self.signals
            or self.consumed_ids
            or self.outgoing
            or self.requests
            or self.ack_tokens
            or self.is_state_changed
            or self.is_new
            or self.clears_history
        )
