"""What client and server say to each other, so that every answer can be checked."""

from __future__ import annotations

import enum
from collections import deque
from hashlib import blake2b

from postroad.core.errors import RemoteHandlerError
from postroad.testing import SafetyFailure, require
from postroad.wire import (
    ConnectionEvent,
    ConnectionRole,
    Frame,
    ReplyFrame,
    ReplyStatus,
    RequestFrame,
)
from tests.simulation.wire.endpoint import Endpoint
from tests.simulation.wire.plan import Job, Kind

_TEXT_MAX = 200


def shorten(frame: object) -> str:
    """A frame for a person to read, without all of a large payload."""
    text = repr(frame)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}... ({len(text)} characters)"


class Ledger:
    """The frames of applications on their way, both directions of one connection."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._in_flight: dict[ConnectionRole, deque[Frame]] = {
            role: deque() for role in ConnectionRole
        }
        # Set once a byte was changed on its way: then everything may be delivered.
        self.is_tainted = False
        # Who was sent more than it accepts, which it must refuse.
        self.oversized: set[ConnectionRole] = set()

    def record(self, receiver: ConnectionRole, frame: Frame) -> None:
        self._in_flight[receiver].append(self._as_told(frame))

    def check(self, receiver: ConnectionRole, event: ConnectionEvent) -> None:
        if self.is_tainted:
            return
        waiting = self._in_flight[receiver]
        sent = waiting.popleft() if waiting else None
        if sent != event:
            told = f"sent to the {receiver.value}: {shorten(sent)}, delivered: {shorten(event)}"
            raise SafetyFailure(told)

    def _as_told(self, frame: Frame) -> Frame:
        """Versions 1 and 2 leave some fields out, and do not know that a server stops."""
        if self._version >= 3:
            return frame
        if isinstance(frame, RequestFrame):
            return RequestFrame(frame.id, frame.subject, frame.payload)
        if isinstance(frame, ReplyFrame):
            is_known = frame.status <= ReplyStatus.PROTOCOL_FAILED
            return ReplyFrame(
                frame.id, frame.status if is_known else ReplyStatus.NO_HANDLER, frame.payload
            )
        return frame


DIGEST_BYTES = 16
FAILURE_TEXT = b"the handler failed"


class End(enum.Enum):
    ANSWERED = "answered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    CLOSED = "closed"
    TOO_LARGE = "too large"
    SENT = "sent"


class Call:
    __slots__ = ("deadline", "end", "endpoint", "id", "is_probe", "job", "submitted_at")

    def __init__(self, id: int, job: Job, now: float, *, is_probe: bool) -> None:
        self.id = id
        self.job = job
        self.is_probe = is_probe
        self.submitted_at = now
        self.deadline = now + job.timeout_s
        # The connection it was written to.
        self.endpoint: Endpoint | None = None
        self.end: End | None = None

    @property
    def is_one_way(self) -> bool:
        return self.job.kind is Kind.LOG

    def to_request(self, now: float) -> RequestFrame:
        remaining_ms = max(1, round((self.deadline - now) * 1_000))
        subject, payload = self.job.kind.value, self.job.payload
        if self.is_one_way:
            return RequestFrame(self.id, subject, payload, 0, one_way=True)
        return RequestFrame(self.id, subject, payload, remaining_ms)


def answer(request: RequestFrame, kind: Kind, reply_bytes: int) -> ReplyFrame:
    if kind is Kind.FAIL:
        code, retryable = RemoteHandlerError.code, request.id % 2 == 0
        return ReplyFrame(request.id, ReplyStatus.HANDLER_FAILED, FAILURE_TEXT, code, retryable)
    if kind is Kind.NONE:
        return ReplyFrame(request.id, ReplyStatus.NO_HANDLER, request.subject.encode())
    return ReplyFrame(request.id, ReplyStatus.OK, _stretch(_digest(request), reply_bytes))


def refusal(request: RequestFrame) -> ReplyFrame:
    return ReplyFrame(request.id, ReplyStatus.STOPPING, request.subject.encode())


def check_reply(call: Call, reply: ReplyFrame, version: int) -> None:
    request = call.to_request(call.submitted_at)
    stopping = refusal(request).status if version >= 3 else ReplyStatus.NO_HANDLER
    if reply.status == stopping and reply.payload == request.subject.encode():
        return
    require(call.job.kind is not Kind.NEVER, f"call {call.id}: an answer that nobody gave")
    expected = answer(request, call.job.kind, len(reply.payload))
    if version < 3:
        expected = ReplyFrame(expected.id, expected.status, expected.payload)
    if reply != expected:
        told = f"{shorten(reply)}, not {shorten(expected)}"
        raise SafetyFailure(f"call {call.id} was answered {told}")


def _digest(request: RequestFrame) -> bytes:
    content = request.subject.encode() + b"\0" + request.payload
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


def _stretch(pattern: bytes, size: int) -> bytes:
    size = max(size, len(pattern))
    return (pattern * (size // len(pattern) + 1))[:size]
