"""One end of a session: what may be said in it, and what was heard. Pure, and a table."""

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
    """Where a session is, seen from one end."""

    NEW = "fresh"
    """Nothing was said yet, and the other end does not know of it."""
    INITIATING = "initiating"
    """The other end was asked, and has not answered."""
    OPEN = "open"
    ENDED = "ended"
    """The other end says nothing more; what it said before may still be read."""
    CLOSED = "closed"
    """This end says nothing more, and hears nothing."""


class SessionTrigger(StrEnum):
    """What moves a session."""

    SEND = "send"
    CLOSE = "close"
    FAIL = "fail"
    CONFIRM = "confirm"
    REJECT = "reject"
    DATA = "data"
    ERROR = "error"
    END = "end"


class SessionAction(StrEnum):
    """What is done about it."""

    SEND_INIT = "say initial"
    SEND_DATA = "say data"
    SEND_CLOSE = "say end"
    SEND_ERROR = "say error"
    REJECT = "refuse"
    BUFFER = "keep"
    IGNORE = "ignore"


class SessionTransition(NamedTuple):
    """A row of the table."""

    state: SessionState
    action: SessionAction


_S, _C, _R = SessionState, SessionTrigger, SessionAction

SESSION_TRANSITIONS: dict[tuple[SessionState, SessionTrigger], SessionTransition] = {
    # What this end does.
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
    # It has ended by itself, or has failed: an error is not sent back to where it came from.
    (_S.ENDED, _C.FAIL): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.FAIL): SessionTransition(_S.CLOSED, _R.IGNORE),
    # What the other end does. It cannot do anything before it was asked.
    (_S.INITIATING, _C.CONFIRM): SessionTransition(_S.OPEN, _R.BUFFER),
    (_S.INITIATING, _C.REJECT): SessionTransition(_S.ENDED, _R.BUFFER),
    (_S.INITIATING, _C.ERROR): SessionTransition(_S.ENDED, _R.BUFFER),
    (_S.OPEN, _C.DATA): SessionTransition(_S.OPEN, _R.BUFFER),
    (_S.OPEN, _C.ERROR): SessionTransition(_S.ENDED, _R.BUFFER),
    (_S.OPEN, _C.END): SessionTransition(_S.ENDED, _R.BUFFER),
    # They crossed on the way.
    (_S.CLOSED, _C.CONFIRM): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.REJECT): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.DATA): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.ERROR): SessionTransition(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.END): SessionTransition(_S.CLOSED, _R.IGNORE),
}
"""Everything that can happen; what is not in it is a fault of the other end, and ignored."""

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
    """Something that waits for the code to ask for it."""

    message: SessionMessage
    id: int = 0
    """Its number in the store; 0 if it is not there."""


class SessionEndpoint:
    """One end of a session."""

    __slots__ = ("buffer", "info", "is_initiator", "key", "number", "peer", "scope", "state")

    def __init__(self, key: SessionKey, peer: str, number: int, *, is_initiator: bool) -> None:
        self.key = key
        self.peer = peer
        # How this flow calls it.
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
        """The other end said something; whether it is to be kept for the code."""
        if isinstance(message, SessionInit):
            self.info = PeerFlowInfo(message.flow, message.version, message.app)
            return message.payload is not None and self.state is SessionState.OPEN
        if isinstance(message, SessionConfirm):
            # Whatever has happened since: it is still who is at the other end.
            self.info = PeerFlowInfo(message.flow, message.version, message.app)
        move = SESSION_TRANSITIONS.get((self.state, _TRIGGERS[type(message)]))
        if move is None or move.action is SessionAction.IGNORE:
            return False
        self.state = move.state
        return True

    def __repr__(self) -> str:
        return f"<SessionEndpoint {self.number} with {self.peer} {self.state}>"
