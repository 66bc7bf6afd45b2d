"""Messages of sessions between two flows, and the envelopes that carry them.

An envelope has all messages that one commit sends in one session, in order.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from postroad.core.errors import Reject

QUEUE = "flows.sessions"
"""The queue of session messages, at every node that has flows."""

_NAME_CHARS_MAX = 200
_MESSAGES_MAX = 100_000


def is_valid_name(text: str) -> bool:
    """Whether a flow or a signal can have that name, at every node and in every store."""
    return 0 < len(text) <= _NAME_CHARS_MAX and text.isprintable()


class SessionKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Identifies a session at both ends: the flow that opened it, and its number there."""

    flow: int
    number: int


class SessionInit(msgspec.Struct, frozen=True, array_like=True, tag="i", gc=False):
    """Opens a session; may contain the first data."""

    flow: str
    version: int
    app: str
    payload: bytes | None = None


class SessionConfirm(msgspec.Struct, frozen=True, array_like=True, tag="c", gc=False):
    """The responder has started."""

    flow: str
    version: int
    app: str


class SessionReject(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """The responder cannot start."""

    text: str
    error_id: str


class SessionData(msgspec.Struct, frozen=True, array_like=True, tag="d", gc=False):
    """A value."""

    payload: bytes


class SessionError(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    """The flow at that end has failed; kind and text only if it raised a FlowError itself."""

    error_id: str
    kind: str | None = None
    text: str | None = None


class SessionClose(msgspec.Struct, frozen=True, array_like=True, tag="x", gc=False):
    """The flow at that end has finished, or closed the session."""


SessionMessage: TypeAlias = (
    SessionInit | SessionConfirm | SessionReject | SessionData | SessionError | SessionClose
)


class SessionEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """The messages that one commit sends in one session."""

    key: SessionKey
    is_for_initiator: bool
    """Whether it is for the end that opened the session."""
    messages: list[SessionMessage]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SessionEnvelope)
_message_decoder: msgspec.msgpack.Decoder[SessionMessage] = msgspec.msgpack.Decoder(SessionMessage)


def encode_session_envelope(envelope: SessionEnvelope) -> bytes:
    """Encode an envelope as the body of a message."""
    return _encoder.encode(envelope)


def decode_session_envelope(body: bytes) -> SessionEnvelope:
    """Decode the body of a message; raises Reject if it is no envelope."""
    try:
        envelope = _decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Reject(f"invalid session envelope: {error}") from None
    if not envelope.messages or len(envelope.messages) > _MESSAGES_MAX:
        raise Reject(f"an envelope with {len(envelope.messages)} messages")
    if not 0 < envelope.key.flow < 1 << 63 or not 0 <= envelope.key.number < 1 << 31:
        raise Reject(f"invalid session key: {envelope.key}")
    for index, message in enumerate(envelope.messages):
        is_first = isinstance(message, SessionInit)
        if is_first and (index or envelope.is_for_initiator):
            raise Reject("a session is opened in the middle of an envelope")
        if isinstance(message, SessionInit | SessionConfirm) and not is_valid_name(message.flow):
            raise Reject(f"invalid flow name: {message.flow[:_NAME_CHARS_MAX]!r}")
    return envelope


def encode_session_message(message: SessionMessage) -> bytes:
    """Encode a message for the buffer in the store."""
    return _encoder.encode(message)


def decode_session_message(encoded: bytes) -> SessionMessage:
    """Decode a buffered message; raises msgspec.DecodeError if another version wrote it."""
    try:
        return _message_decoder.decode(encoded)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
