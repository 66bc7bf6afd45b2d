"""The bridge protocol between two stores, and deduplication of received windows.

A sender numbers its messages. The receiver stores the last number it has stored, the watermark:
messages up to it are duplicates. The hash chain over all batches that a store ever sent to a peer
distinguishes a duplicate from another message with its number: two stores that agree on a number
and on the chain there agree on all messages before it. A store that was restored from a backup
does not: it lacks messages, or has others with their numbers.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from hashlib import blake2b
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from postroad.core.errors import MalformedPayloadError, StreamDivergedError, UsageError

VERSION = 1
OLDEST = max(1, VERSION - 1)
"""The oldest supported version: that of the previous minor version of Postroad."""

CHAIN_BYTES = 16
REASON_CHARS_MAX = 64
DETAIL_CHARS_MAX = 500

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]
"""A number that every database can store."""
PageCount: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)]
Digest: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=CHAIN_BYTES, max_length=CHAIN_BYTES)]


class WindowStatus(enum.IntEnum):
    """The result of receiving a window."""

    ACCEPTED = 0
    """Stored durably up to the watermark."""
    GAP = 1
    """It starts beyond the expected number: send again from the watermark."""
    FULL = 2
    """There is not enough credit for all of it; messages up to the watermark were stored."""
    DIVERGED = 3
    """It does not continue the stream that was accepted before."""
    FENCED = 4
    """A later bridge of the same store has connected."""


class DeadLetterReason(enum.StrEnum):
    """Why a message became a dead letter.

    Decided by `QueueDispatcher` for messages in queues (expired, failed, rejected), by the
    receiver's `StreamTable` for those that arrive, by `Bridge` for those that cannot be sent, and
    by `arrivals` for those of other programs.
    """

    EXPIRED = "expired"
    FAILED = "failed"
    """Its handler failed as often as its retry policy allows."""
    REJECTED = "rejected"
    """Its handler or the retry policy of its consumer said that trying again cannot help, or its
    idempotency key was used for another message."""
    TOO_LARGE = "too large"
    UNKNOWN_QUEUE = "unknown queue"
    UNREADABLE = "unreadable"


class MessageRejection(msgspec.Struct, array_like=True, frozen=True):
    """A message that the receiver counted and did not store: its sender dead-letters it."""

    number: Count
    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARS_MAX)]
    detail: Annotated[str, msgspec.Meta(max_length=DETAIL_CHARS_MAX)]


class WireBatch(msgspec.Struct, array_like=True, frozen=True):
    """A batch as it is sent; the numbers of its messages follow from the window."""

    count: PageCount
    chain: Digest
    """The chain after this batch."""
    data: bytes | None
    """None if the sender removed the messages and only their numbers remain."""


class StreamOpen(msgspec.Struct, array_like=True, frozen=True):
    """Introduces a sender's store before its first window."""

    store: Digest
    epoch: Count
    token: Count
    """Of two bridges of one store the one with the higher token is valid."""
    acked: Count
    """The receiver has acknowledged messages up to this number, as the sender knows."""
    version: int = VERSION
    """The newest version that the sender supports."""
    oldest: int | None = OLDEST
    """The oldest version; None if the sender supports only one."""


class StreamAck(msgspec.Struct, array_like=True, frozen=True):
    """The receiver's watermark, chain and credit for a stream."""

    status: WindowStatus
    watermark: Count
    """Number of the last accepted message; 0: none."""
    chain: Digest
    credit: Count
    """Bytes of messages that it accepts now."""
    rejections: list[MessageRejection]
    """Rejections that the sender may not know yet."""
    version: int = 1
    """The version of the windows to be sent."""


class StreamWindow(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive batches in one frame."""

    store: Digest
    epoch: Count
    token: Count
    acked: Count
    now_ms: Count
    """The sender's clock, to interpret the times of messages."""
    first: Count
    """Number of the first message."""
    previous: Digest
    """The chain before the first message."""
    batches: list[WireBatch]
    version: int = VERSION


def agree(offer: StreamOpen) -> int:
    """Return the newest version that both sides support; raises UsageError if there is none."""
    version = min(offer.version, VERSION)
    if version < OLDEST or version < (offer.version if offer.oldest is None else offer.oldest):
        raise UsageError(
            f"the sender's newest version of the exchange is {offer.version}, and this node speaks "
            f"{OLDEST} to {VERSION}: update the older of the two; the messages wait meanwhile"
        )
    return version


def check_version(version: int) -> None:
    """Raise UsageError unless this node supports the version."""
    if not OLDEST <= version <= VERSION:
        raise UsageError(
            f"version {version} of the exchange, and this node speaks {OLDEST} to {VERSION}"
        )


T = TypeVar("T", StreamOpen, StreamAck, StreamWindow)

encode = msgspec.msgpack.Encoder().encode
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in (StreamOpen, StreamAck, StreamWindow)}


def decode_stream_message(kind: type[T], payload: bytes) -> T:
    """Decode a message of a type; raises MalformedPayloadError."""
    try:
        return _decoders[kind].decode(payload)  # type: ignore[return-value]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayloadError(f"malformed {kind.__name__}: {error}") from error


def initial_chain(store: bytes, epoch: int, peer: str) -> bytes:
    """Return the chain before the first message of a store to a peer."""
    start = b"%s/%d/%s" % (store, epoch, peer.encode())
    return blake2b(start, digest_size=CHAIN_BYTES, person=b"postroad.chain").digest()


def extend_chain(chain: bytes, batch: bytes) -> bytes:
    """Return the chain after one more batch."""
    digest = blake2b(chain, digest_size=CHAIN_BYTES, person=b"postroad.chain")
    digest.update(batch)
    return digest.digest()


class SequenceGap(Exception):
    """The window starts beyond the expected number."""


class NewBatch(msgspec.Struct, frozen=True):
    """A batch that was not accepted before."""

    first: int
    batch: WireBatch
    is_intact: bool
    """Whether its messages are those that the chain of the sender covers."""

    @property
    def last(self) -> int:
        return self.first + self.batch.count - 1


def new_batches(watermark: int, chain: bytes, window: StreamWindow) -> Iterator[NewBatch]:
    """Return the batches of a window after the watermark, in order.

    Raises:
        SequenceGap: something is missing between the watermark and the window.
        StreamDivergedError: the window does not continue what the watermark stands for.
    """
    first, previous = window.first, window.previous
    for batch in window.batches:
        last = first + batch.count - 1
        if last == watermark and batch.chain != chain:
            raise StreamDivergedError(f"message {last} was another one when it was accepted")
        if last > watermark:
            if first > watermark + 1:
                raise SequenceGap
            if first != watermark + 1 or previous != chain:
                raise StreamDivergedError(
                    f"message {first} does not follow what was accepted before"
                )
            is_intact = batch.data is None or extend_chain(previous, batch.data) == batch.chain
            yield NewBatch(first, batch, is_intact)
            watermark, chain = last, batch.chain
        # Otherwise it is a duplicate, stored before: skipped.
        first, previous = last + 1, batch.chain
