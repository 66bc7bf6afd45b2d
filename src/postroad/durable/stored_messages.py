"""Messages as they are stored and sent, and their batches."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Annotated, TypeAlias

import msgspec

from postroad.core.errors import MalformedPayloadError

NEVER_MS = (1 << 62) - 1
"""A time that never comes."""


# The most that databases can store; larger values are invalid.
Id: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Moment: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
PRIORITY_MAX = 1_000
Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]


class StoredMessage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message as it is stored and sent; its position in a batch gives its number."""

    id: Id
    """Chosen by the sender; with the sender's name it identifies the message."""
    queue: str
    body: bytes
    sent_ms: Moment
    """By the clock of the sender, like all times here; milliseconds since 1970."""
    key: str | None = None
    """Messages of equal keys are handled one after the other, in the order they were sent."""
    headers: dict[str, str] | None = None
    priority: Priority = 0
    deliver_at_ms: Moment = 0
    """It is not handled before this time."""
    expires_ms: Moment = 0
    """It is not handled after this time; 0: no limit."""
    reply_to: str | None = None
    """Queue of the sender that accepts the reply."""
    in_reply_to: Id | None = None
    """The id of the message that it replies to."""

    @property
    def is_fifo(self) -> bool:
        """Whether it is delivered in the order of arrival."""
        return self.priority == 0 and self.deliver_at_ms == 0


_encoder = msgspec.msgpack.Encoder()
_batch_decoder = msgspec.msgpack.Decoder(list[StoredMessage])
_message_decoder = msgspec.msgpack.Decoder(StoredMessage)

encode_stored_message = _encoder.encode


def decode_stored_message(data: bytes) -> StoredMessage:
    """Decode a message of `encode_stored_message`."""
    return _message_decoder.decode(data)


def split_into_batches(
    encoded: Sequence[bytes], messages_max: int, bytes_max: int
) -> Iterator[Sequence[bytes]]:
    """Split encoded messages into batches."""
    ends = list(accumulate(map(len, encoded)))
    start = size = 0
    while start < len(encoded):
        fitting = bisect_right(ends, size + bytes_max, start)
        stop = min(max(fitting, start + 1), start + messages_max)
        yield encoded[start:stop]
        start, size = stop, ends[stop - 1]


def join_batch(encoded: Sequence[bytes]) -> bytes:
    """Join encoded messages into one batch."""
    count = len(encoded)
    head = bytes((0x90 | count,)) if count < 16 else struct.pack(">BH", 0xDC, count)
    return b"".join((head, *encoded))


def encode_batch(messages: Iterable[StoredMessage]) -> bytes:
    """Encode messages as one batch."""
    return join_batch([_encoder.encode(message) for message in messages])


def decode_batch(batch: bytes) -> list[StoredMessage]:
    """Decode the messages of a batch; raises MalformedPayloadError."""
    try:
        return _batch_decoder.decode(batch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayloadError(f"invalid batch of messages: {error}") from error
