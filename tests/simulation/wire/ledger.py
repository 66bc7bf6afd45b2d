"""What was sent over a connection, in order: nothing else may be delivered, and nothing twice."""

from __future__ import annotations

from collections import deque

from postroad.testing import CorrectnessFailure
from postroad.wire import Event, Frame, Reply, Request, Role, Status

_TEXT_MAX = 200


def shorten(frame: object) -> str:
    """A frame for a person to read, without all of a large payload."""
    text = repr(frame)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}... ({len(text)} characters)"


class Ledger:
    """The frames of applications on their way, both directions of one connection."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._in_flight: dict[Role, deque[Frame]] = {role: deque() for role in Role}
        # Set once a byte was changed on its way: then everything may be delivered.
        self.is_tainted = False
        # Who was sent more than it accepts, which it must refuse.
        self.oversized: set[Role] = set()

    def record(self, receiver: Role, frame: Frame) -> None:
        self._in_flight[receiver].append(self._as_told(frame))

    def check(self, receiver: Role, event: Event) -> None:
        if self.is_tainted:
            return
        waiting = self._in_flight[receiver]
        sent = waiting.popleft() if waiting else None
        if sent != event:
            told = f"sent to the {receiver.value}: {shorten(sent)}, delivered: {shorten(event)}"
            raise CorrectnessFailure(told)

    def _as_told(self, frame: Frame) -> Frame:
        """Versions 1 and 2 leave some fields out, and do not know that a server stops."""
        if self._version >= 3:
            return frame
        if isinstance(frame, Request):
            return Request(frame.id, frame.subject, frame.payload)
        if isinstance(frame, Reply):
            is_known = frame.status <= Status.PROTOCOL_FAILED
            return Reply(frame.id, frame.status if is_known else Status.NO_HANDLER, frame.payload)
        return frame
