"""What can go wrong with flows, below the tree of `postroad.core.errors`.

PostroadError
├── FlowError                             raised by flows: this conversation has failed
│   ├── PeerFlowFailedError               the flow at the other end has failed
│   ├── SessionEndedError                 the other end has finished, or closed the session
│   ├── SessionRejectedError              the other end cannot hold this conversation
│   ├── FlowTimeoutError (TimeoutError)   something a flow waited for did not come in time
│   └── FlowKilledError                   an operator ended the flow
├── NondeterminismError                   the code of a flow does not fit what was recorded
├── UnrecordedAwaitError                  a flow waited for something that is not recorded
├── SerializationError (TypeError)        a value cannot be written down
├── StepFailedError                       stands for an error that cannot be made again
├── FlowParkedError                       the process died too often while the flow ran
├── HistoryFullError                      the flow has done more steps than it may
├── FlowNotFoundError (LookupError)
├── ScheduleNotFoundError (LookupError)
├── SignalBufferFullError (UsageError)    too many signals wait for the flow
├── WrongSignalError (UsageError)         the code asks for no such signal, or for another type
└── DrainingError                         no new flows are begun now
"""

from __future__ import annotations

from postroad.core.errors import PostroadError, UsageError


class FlowError(PostroadError):
    """Raised by the code of a flow: the conversation has failed, and everybody in it is told.

    Make your own kinds of it. Other errors than this one are taken for faults: the flow waits
    for an operator instead of failing.
    """

    code = 9000


class PeerFlowFailedError(FlowError):
    """The flow at the other end has failed; `kind` names its error if it wants that known.

    Attributes:
        peer: the node.
        error_id: what the error is called in the records of both nodes.
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
    """The other end has finished or closed the session, and more was expected of it."""

    code = 9020


class SessionRejectedError(FlowError):
    """The other end cannot hold this conversation."""

    code = 9030


class FlowTimeoutError(FlowError, TimeoutError):
    """What a flow waited for did not come in time."""

    code = 9040


class FlowKilledError(FlowError):
    """An operator ended the flow."""

    code = 9050


class NondeterminismError(PostroadError):
    """The code of a flow asks for something else than it did when its steps were recorded."""

    code = 9100


class UnrecordedAwaitError(PostroadError):
    """A flow waited for something that is not recorded, so it could not be resumed after it."""

    code = 9200


class SerializationError(PostroadError, TypeError):
    """A value cannot be written down, so it could not be given back when a flow is resumed."""

    code = 9300


class StepFailedError(PostroadError):
    """Stands for an error of a step that cannot be made again from what was recorded.

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
    """The flow has met an error that is not for it to handle, and waits for an operator."""

    code = 9500


class HistoryFullError(PostroadError):
    """The flow has done more steps than may be written down of one: it must begin anew in time."""

    code = 9510


class FlowNotFoundError(PostroadError, LookupError):
    """No flow has that id; it may have ended long ago."""

    code = 9600


class ScheduleNotFoundError(PostroadError, LookupError):
    """No schedule has that name."""

    code = 9610


class SignalBufferFullError(UsageError):
    """As many signals wait for the flow as may; try again when its code has asked for some."""

    code = 9620
    retryable = True


class WrongSignalError(UsageError):
    """The code of the flow asks for no signal of that name, or for one of another type."""

    code = 9630


class DrainingError(PostroadError):
    """This node begins no new flows now, so that it can be stopped or changed."""

    code = 9700
    retryable = True
