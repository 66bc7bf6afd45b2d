"""One end of a session: a table of state transitions, and the buffer of received messages. Pure."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import NamedTuple

import msgspec

from postroad.flows.sessions.messages import (
    SessionClose,
    SessionConfirm,
    SessionData,
    SessionError,
    SessionInit,
    SessionKey,
    SessionMessage,
    SessionReject,
)


class SessionState(StrEnum):
    """The state of a session, seen from one end."""

    NEW = "fresh"
    """Nothing was sent yet, and the other end does not know of it."""
    INITIATING = "initiating"
    """The other end was asked to respond, and has not replied."""
    OPEN = "open"
    ENDED = "ended"
    """The other end sends nothing more; what it sent before can still be received."""
    CLOSED = "closed"
    """This end neither sends nor receives any more."""


class SessionTrigger(StrEnum):
    """What changes the state of a session: a command of this end, or a received message."""

    SEND = "send"
    CLOSE = "close"
    FAIL = "fail"
    CONFIRM = "confirm"
    REJECT = "reject"
    DATA = "data"
    ERROR = "error"
    END = "end"


class SessionAction(StrEnum):
    """What a trigger causes."""

    SEND_INIT = "send init"
    SEND_DATA = "send data"
    SEND_CLOSE = "send close"
    SEND_ERROR = "send error"
    REJECT = "reject"
    BUFFER = "buffer"
    IGNORE = "ignore"


class SessionTransition(NamedTuple):
    """A row of the table."""

    state: SessionState
    action: SessionAction


_S, _C, _R = SessionState, SessionTrigger, SessionAction

SESSION_TRANSITIONS: dict[tuple[SessionState, SessionTrigger], SessionTransition] = {
    # Commands of this end.
    (_S.NEW, _C.SEND): SessionTransition(_S.INITIATING, _R.SEND_INIT),
    (_S.INITIATING, _C.SEND): SessionTransition(_S.INITIATING, _R.SEND_DATA),
    (_S.OPEN, _C.SEND): SessionTransition(_S.OPEN, _R.SEND_DATA),
    (_S.ENDED, _C.SEND): SessionTransition(_S.ENDED, _R.REJECT),
    (_S.CLOSED, _C.SEND): SessionTransition(_S.CLOSED, _R.REJECT),
    (_S.NEW, _C.CLOSE): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.INITIATING, _C.CLOSE): SessionTransition(_S.CLOSED, _R.SEND_CLOSE),
    (_S.OPEN, _C.CLOSE): SessionTransition(_S.CLOSED, _R.SEND_CLOSE),
    (_S.ENDED, _C.CLOSE): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.CLOSE): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.NEW, _C.FAIL): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.INITIATING, _C.FAIL): SessionTransition(_S.CLOSED, _R.SEND_ERROR),
    (_S.OPEN, _C.FAIL): SessionTransition(_S.CLOSED, _R.SEND_ERROR),
    # The peer has closed it, or has failed: errors are not sent back.
    (_S.ENDED, _C.FAIL): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.FAIL): SessionTransition(_S.CLOSED, _R.IGNORE),
    # Messages of the other end, which can send none before it was asked.
    (_S.INITIATING, _C.CONFIRM): SessionTransition(_S.OPEN, _R.BUFFER),
    (_S.INITIATING, _C.REJECT): SessionTransition(_S.ENDED, _R.BUFFER),
    (_S.INITIATING, _C.ERROR): SessionTransition(_S.ENDED, _R.BUFFER),
    (_S.OPEN, _C.DATA): SessionTransition(_S.OPEN, _R.BUFFER),
    (_S.OPEN, _C.ERROR): SessionTransition(_S.ENDED, _R.BUFFER),
    (_S.OPEN, _C.END): SessionTransition(_S.ENDED, _R.BUFFER),
    # Sent before the other end knew that this one had closed.
    (_S.CLOSED, _C.CONFIRM): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.REJECT): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.DATA): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.ERROR): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.END): SessionTransition(_S.CLOSED, _R.IGNORE),
}
"""All valid transitions; any other message is a fault of the other end, and ignored."""

_TRIGGERS: dict[type, SessionTrigger] = {
    SessionConfirm: SessionTrigger.CONFIRM,
    SessionReject: SessionTrigger.REJECT,
    SessionData: SessionTrigger.DATA,
    SessionError: SessionTrigger.ERROR,
    SessionClose: SessionTrigger.END,
}


class PeerFlowInfo(msgspec.Struct, frozen=True):
    """The flow at the other end."""

    name: str
    version: int
    app: str


class BufferedMessage(msgspec.Struct, gc=False):
    """A received message that the code has not consumed."""

    message: SessionMessage
    id: int = 0
    """Its number in the store; 0 if it is not stored."""


class SessionEndpoint:
    """One end of a session."""

    __slots__ = ("buffer", "info", "is_initiator", "key", "number", "peer", "scope", "state")

    def __init__(self, key: SessionKey, peer: str, number: int, *, is_initiator: bool) -> None:
        self.key = key
        self.peer = peer
        # The number of the session in this flow.
        self.number = number
        self.is_initiator = is_initiator
        self.state = SessionState.NEW if is_initiator else SessionState.OPEN
        self.info: PeerFlowInfo | None = None
        self.buffer: deque[BufferedMessage] = deque()
        # The part of the code that opened it.
        self.scope: object | None = None

    def apply(self, trigger: SessionTrigger) -> SessionAction:
        """Apply what this end does; return what must be sent, or REJECT."""
        move = SESSION_TRANSITIONS[self.state, trigger]
        self.state = move.state
        return move.action

    def on_message(self, message: SessionMessage) -> bool:
        """Apply a received message; return whether it is buffered for the code."""
        if isinstance(message, SessionInit):
            self.info = PeerFlowInfo(message.flow, message.version, message.app)
            return message.payload is not None and self.state is SessionState.OPEN
        if isinstance(message, SessionConfirm):
            # In any state: it tells which flow is at the other end.
            self.info = PeerFlowInfo(message.flow, message.version, message.app)
        move = SESSION_TRANSITIONS.get((self.state, _TRIGGERS[type(message)]))
        if move is None or move.action is SessionAction.IGNORE:
            return False
        self.state = move.state
        return True

    def __repr__(self) -> str:
        return f"<SessionEndpoint {self.number} with {self.peer} {self.state}>"
