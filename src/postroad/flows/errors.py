"""Errors of flows, below the tree of `postroad.core.errors`.

PostroadError
├── FlowError                             raised by the code of a flow to fail it
│   ├── PeerFlowFailedError               the flow at the other end of a session failed
│   ├── SessionEndedError                 the other end ended or closed the session
│   ├── SessionRejectedError              the peer has no responder for the session
│   ├── FlowTimeoutError (TimeoutError)   a wait or the flow exceeded its timeout
│   ├── FlowCancelledError                raised in the code of a flow that is to end
│   └── FlowKilledError                   an operator killed the flow
├── NondeterminismError                   replayed code does not match the history of its flow
├── UnrecordedAwaitError                  a flow awaited something that cannot be recorded
├── SerializationError (TypeError)        a value cannot be serialized
├── StepFailedError                       stands for an error that cannot be restored
├── FlowParkedError                       the flow is parked and waits for an operator
├── HistoryFullError                      the history of the flow has reached its limit
├── FlowNotFoundError (LookupError)
├── ScheduleNotFoundError (LookupError)
├── SignalBufferFullError (UsageError)    too many unread signals of the flow
├── WrongSignalError (UsageError)         the code waits for no such signal, or for another type
└── DrainingError                         the node starts no new flows now
"""

from __future__ import annotations

from postroad.core.errors import PostroadError, UsageError


class FlowError(PostroadError):
    """Raised by the code of a flow to fail it and to notify the peers of its sessions.

    Derive application errors from it. Any other error counts as a fault, which parks the flow
    until an operator retries it.
    """

    code = 9000


class PeerFlowFailedError(FlowError):
    """The flow at the other end of a session failed.

    Attributes:
        peer: the node of the other flow.
        error_id: identifies the error in the logs of both nodes.
        kind: the class of the error, if the other flow raised a FlowError.
    """

    code = 9010

    def __init__(
        self, detail: str, peer: str = "", error_id: str = "", kind: str | None = None
    ) -> None:
        super().__init__(detail, peer, error_id, kind)
        self.detail = detail
        self.peer = peer
        self.error_id = error_id
        self.kind = kind

    def __str__(self) -> str:
        return self.detail


class SessionEndedError(FlowError):
    """The other end ended or closed the session before everything was received."""

    code = 9020


class SessionRejectedError(FlowError):
    """The peer rejected the session: it has no responder, or one of another version."""

    code = 9030


class FlowTimeoutError(FlowError, TimeoutError):
    """A wait of a flow, or the flow, exceeded its timeout."""

    code = 9040


class FlowKilledError(FlowError):
    """An operator killed the flow."""

    code = 9050


class FlowCancelledError(FlowError):
    """Somebody cancelled the flow: raised in its code, which may still run steps before it ends."""

    code = 9060


class NondeterminismError(PostroadError):
    """The replayed code of a flow does not match its history."""

    code = 9100


class UnrecordedAwaitError(PostroadError):
    """A flow awaited something that cannot be recorded, so that it could not be replayed."""

    code = 9200


class SerializationError(PostroadError, TypeError):
    """A value cannot be serialized into the history of a flow."""

    code = 9300


class StepFailedError(PostroadError):
    """Stands for an error of a step that cannot be restored from the history.

    Attributes:
        kind: the class of the error.
    """

    code = 9400

    def __init__(self, detail: str, kind: str = "") -> None:
        super().__init__(detail, kind)
        self.detail = detail
        self.kind = kind

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.kind else self.detail


class FlowParkedError(PostroadError):
    """The flow is parked: it waits for an operator because of an error outside of its code."""

    code = 9500


class HistoryFullError(PostroadError):
    """The history of the flow has reached its limit; long flows must continue as new in time."""

    code = 9510


class FlowNotFoundError(PostroadError, LookupError):
    """No flow has this id; it may have been purged after its end."""

    code = 9600


class ScheduleNotFoundError(PostroadError, LookupError):
    """No schedule has this name."""

    code = 9610


class SignalBufferFullError(UsageError):
    """The flow has too many unread signals; retry after its code has waited for some."""

    code = 9620
    retryable = True


class WrongSignalError(UsageError):
    """The code of the flow waits for no signal of this name, or for one of another type."""

    code = 9630


class DrainingError(PostroadError):
    """The node is draining and starts no new flows."""

    code = 9700
    retryable = True
