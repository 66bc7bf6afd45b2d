"""What two flows tell each other, as it is in the mail.

A letter has everything one commit says in one session, in order.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from postroad.core.errors import Reject as DeadLetter

QUEUE = "flows.sessions"
"""The mail queue of every node that has flows."""

_NAME_CHARS_MAX = 200
_MESSAGES_MAX = 100_000


def is_name(text: str) -> bool:
    """Whether a flow or a signal can be called that, at every node and in every store."""
    return 0 < len(text) <= _NAME_CHARS_MAX and text.isprintable()


class SessionKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A session, as both ends call it: the flow that opened it, and its number there."""

    flow: int
    number: int


class Initial(msgspec.Struct, frozen=True, array_like=True, tag="i", gc=False):
    """Opens a session; may have the first data with it."""

    flow: str
    version: int
    app: str
    payload: bytes | None = None


class Confirm(msgspec.Struct, frozen=True, array_like=True, tag="c", gc=False):
    """The responder has begun."""

    flow: str
    version: int
    app: str


class Rejection(msgspec.Struct, frozen=True, array_like=True, tag="r", gc=False):
    """The responder cannot begin."""

    text: str
    error_id: str


class Data(msgspec.Struct, frozen=True, array_like=True, tag="d", gc=False):
    """Something that was sent."""

    payload: bytes


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="e", gc=False):
    """The flow at that end has failed; kind and text only if it raised a FlowError itself."""

    error_id: str
    kind: str | None = None
    text: str | None = None


class End(msgspec.Struct, frozen=True, array_like=True, tag="x", gc=False):
    """The flow at that end has finished, or closed the session."""


Message: TypeAlias = Initial | Confirm | Rejection | Data | Failed | End


class Letter(msgspec.Struct, frozen=True, array_like=True):
    """What one commit says in one session."""

    key: SessionKey
    is_for_initiator: bool
    """Whether it is for the end that opened the session."""
    messages: list[Message]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Letter)
_message_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_letter(letter: Letter) -> bytes:
    """A letter as it is posted."""
    return _encoder.encode(letter)


def decode_letter(body: bytes) -> Letter:
    """A letter as it was posted; raises Reject if it is none."""
    try:
        letter = _decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DeadLetter(f"no letter of a flow: {error}") from None
    if not letter.messages or len(letter.messages) > _MESSAGES_MAX:
        raise DeadLetter(f"a letter with {len(letter.messages)} messages")
    if not 0 < letter.key.flow < 1 << 63 or not 0 <= letter.key.number < 1 << 31:
        raise DeadLetter(f"no session of a flow: {letter.key}")
    for index, message in enumerate(letter.messages):
        is_first = isinstance(message, Initial)
        if is_first and (index or letter.is_for_initiator):
            raise DeadLetter("a session is opened in the midst of it")
        if isinstance(message, Initial | Confirm) and not is_name(message.flow):
            raise DeadLetter(f"no name of a flow: {message.flow[:_NAME_CHARS_MAX]!r}")
    return letter


def encode_message(message: Message) -> bytes:
    """A message as it is kept until a flow wants it."""
    return _encoder.encode(message)


def decode_message(encoded: bytes) -> Message:
    """A message that was kept; raises msgspec.DecodeError if it is of another making."""
    try:
        return _message_decoder.decode(encoded)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
