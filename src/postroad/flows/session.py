"""One end of a session: what may be said in it, and what was heard. Pure, and a table."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import NamedTuple

import msgspec

from .messages import Confirm, Data, End, Failed, Initial, Message, Rejection, SessionKey


class State(StrEnum):
    """Where a session is, seen from one end."""

    FRESH = "fresh"
    """Nothing was said yet, and the other end does not know of it."""
    INITIATING = "initiating"
    """The other end was asked, and has not answered."""
    OPEN = "open"
    ENDED = "ended"
    """The other end says nothing more; what it said before may still be read."""
    CLOSED = "closed"
    """This end says nothing more, and hears nothing."""


class Cause(StrEnum):
    """What moves a session."""

    SEND = "send"
    CLOSE = "close"
    FAIL = "fail"
    CONFIRM = "confirm"
    REJECT = "reject"
    DATA = "data"
    ERROR = "error"
    END = "end"


class Reaction(StrEnum):
    """What is done about it."""

    SAY_INITIAL = "say initial"
    SAY_DATA = "say data"
    SAY_END = "say end"
    SAY_ERROR = "say error"
    REFUSE = "refuse"
    KEEP = "keep"
    IGNORE = "ignore"


class Move(NamedTuple):
    """A row of the table."""

    state: State
    reaction: Reaction


_S, _C, _R = State, Cause, Reaction

TABLE: dict[tuple[State, Cause], Move] = {
    # What this end does.
    (_S.FRESH, _C.SEND): Move(_S.INITIATING, _R.SAY_INITIAL),
    (_S.INITIATING, _C.SEND): Move(_S.INITIATING, _R.SAY_DATA),
    (_S.OPEN, _C.SEND): Move(_S.OPEN, _R.SAY_DATA),
    (_S.ENDED, _C.SEND): Move(_S.ENDED, _R.REFUSE),
    (_S.CLOSED, _C.SEND): Move(_S.CLOSED, _R.REFUSE),
    (_S.FRESH, _C.CLOSE): Move(_S.CLOSED, _R.IGNORE),
    (_S.INITIATING, _C.CLOSE): Move(_S.CLOSED, _R.SAY_END),
    (_S.OPEN, _C.CLOSE): Move(_S.CLOSED, _R.SAY_END),
    (_S.ENDED, _C.CLOSE): Move(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.CLOSE): Move(_S.CLOSED, _R.IGNORE),
    (_S.FRESH, _C.FAIL): Move(_S.CLOSED, _R.IGNORE),
    (_S.INITIATING, _C.FAIL): Move(_S.CLOSED, _R.SAY_ERROR),
    (_S.OPEN, _C.FAIL): Move(_S.CLOSED, _R.SAY_ERROR),
    # It has ended by itself, or has failed: an error is not sent back to where it came from.
    (_S.ENDED, _C.FAIL): Move(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.FAIL): Move(_S.CLOSED, _R.IGNORE),
    # What the other end does. It cannot do anything before it was asked.
    (_S.INITIATING, _C.CONFIRM): Move(_S.OPEN, _R.KEEP),
    (_S.INITIATING, _C.REJECT): Move(_S.ENDED, _R.KEEP),
    (_S.INITIATING, _C.ERROR): Move(_S.ENDED, _R.KEEP),
    (_S.OPEN, _C.DATA): Move(_S.OPEN, _R.KEEP),
    (_S.OPEN, _C.ERROR): Move(_S.ENDED, _R.KEEP),
    (_S.OPEN, _C.END): Move(_S.ENDED, _R.KEEP),
    # They crossed on the way.
    (_S.CLOSED, _C.CONFIRM): Move(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.REJECT): Move(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.DATA): Move(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.ERROR): Move(_S.CLOSED, _R.IGNORE),
    (_S.CLOSED, _C.END): Move(_S.CLOSED, _R.IGNORE),
}
"""Everything that can happen; what is not in it is a fault of the other end, and ignored."""

_CAUSES: dict[type, Cause] = {
    Confirm: Cause.CONFIRM,
    Rejection: Cause.REJECT,
    Data: Cause.DATA,
    Failed: Cause.ERROR,
    End: Cause.END,
}


class PeerInfo(msgspec.Struct, frozen=True):
    """The flow at the other end."""

    name: str
    version: int
    app: str


class Kept(msgspec.Struct, gc=False):
    """Something that waits for the code to ask for it."""

    message: Message
    id: int = 0
    """Its number in the store; 0 if it is not there."""


class SessionEnd:
    """One end of a session."""

    __slots__ = ("heard", "info", "is_initiator", "key", "number", "peer", "scope", "state")

    def __init__(self, key: SessionKey, peer: str, number: int, *, is_initiator: bool) -> None:
        self.key = key
        self.peer = peer
        # How this flow calls it.
        self.number = number
        self.is_initiator = is_initiator
        self.state = State.FRESH if is_initiator else State.OPEN
        self.info: PeerInfo | None = None
        self.heard: deque[Kept] = deque()
        # The part of the code that opened it.
        self.scope: object | None = None

    def do(self, cause: Cause) -> Reaction:
        """This end does something; what must be said, or REFUSE."""
        move = TABLE[self.state, cause]
        self.state = move.state
        return move.reaction

    def hear(self, message: Message) -> bool:
        """The other end said something; whether it is to be kept for the code."""
        if isinstance(message, Initial):
            self.info = PeerInfo(message.flow, message.version, message.app)
            return message.payload is not None and self.state is State.OPEN
        if isinstance(message, Confirm):
            # Whatever has happened since: it is still who is at the other end.
            self.info = PeerInfo(message.flow, message.version, message.app)
        move = TABLE.get((self.state, _CAUSES[type(message)]))
        if move is None or move.reaction is Reaction.IGNORE:
            return False
        self.state = move.state
        return True

    def __repr__(self) -> str:
        return f"<SessionEnd {self.number} with {self.peer} {self.state}>"
