"""What two stores say to each other, and how the receiver recognizes what it has already.

A sender numbers its messages. The receiver remembers the last number it has stored, the watermark:
whatever comes up to it again is a duplicate. The hash chain over all batches that one store ever
sent to one peer tells a duplicate from another message under the same number: two stores that agree
on a number and on the chain there agree on all messages before it. A store that was restored from a
backup cannot: it lacks messages, or has others under their numbers.
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
"""The oldest version that is still spoken: that of one minor version of Postroad before."""

CHAIN_BYTES = 16
REASON_CHARS_MAX = 64
DETAIL_CHARS_MAX = 500

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]
"""A number that every database has room for."""
PageCount: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)]
Digest: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=CHAIN_BYTES, max_length=CHAIN_BYTES)]


class WindowStatus(enum.IntEnum):
    """How a window was taken."""

    ACCEPTED = 0
    """Durably, up to the watermark told."""
    GAP = 1
    """It starts after what was expected: start again after the watermark."""
    FULL = 2
    """There is no room for all of it now; what is up to the watermark was taken."""
    DIVERGED = 3
    """It does not continue what was accepted before."""
    FENCED = 4
    """A later bridge of the same store has been here."""


class DeadLetterReason(enum.StrEnum):
    """Why a message became a dead letter.

    Decided by `QueueDispatcher` for messages in queues (expired, failed, rejected), by the
    receiver's `StreamTable` for those that arrive, by `Bridge` for those that cannot be sent, and
    by `arrivals` for those of other programs.
    """

    EXPIRED = "expired"
    FAILED = "failed"
    """Its handler failed as often as allowed."""
    REJECTED = "rejected"
    """Its handler or the retry policy of its consumer said that trying again cannot help, or its
    idempotency key was used for another message."""
    TOO_LARGE = "too large"
    UNKNOWN_QUEUE = "unknown queue"
    UNREADABLE = "unreadable"


class MessageRejection(msgspec.Struct, array_like=True, frozen=True):
    """A message that was counted but not kept: its sender keeps it as a dead letter."""

    number: Count
    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARS_MAX)]
    detail: Annotated[str, msgspec.Meta(max_length=DETAIL_CHARS_MAX)]


class WireBatch(msgspec.Struct, array_like=True, frozen=True):
    """Messages as they are sent; their numbers follow from the window."""

    count: PageCount
    chain: Digest
    """After this batch."""
    data: bytes | None
    """None if the sender removed them and only their numbers are left."""


class StreamOpen(msgspec.Struct, array_like=True, frozen=True):
    """A sender's store introduces itself before its first window."""

    store: Digest
    epoch: Count
    token: Count
    """Of two bridges of one store the one with the higher number is right."""
    acked: Count
    """The sender knows everything up to this number to be accepted."""
    version: int = VERSION
    """The newest that the sender speaks."""
    oldest: int | None = OLDEST
    """The oldest; None if it speaks one only."""


class StreamAck(msgspec.Struct, array_like=True, frozen=True):
    """What the receiver remembers of that store."""

    status: WindowStatus
    watermark: Count
    """Number of the last message accepted; 0 if there was none."""
    chain: Digest
    credit: Count
    """Bytes of messages it takes now."""
    rejections: list[MessageRejection]
    """Those the sender may not know yet."""
    version: int = 1
    """The one that windows shall have."""


class StreamWindow(msgspec.Struct, array_like=True, frozen=True):
    """Batches in a row."""

    store: Digest
    epoch: Count
    token: Count
    acked: Count
    now_ms: Count
    """The sender's clock, so that times in messages can be understood."""
    first: Count
    """Number of the first message."""
    previous: Digest
    """The chain before it."""
    batches: list[WireBatch]
    version: int = VERSION


def agree(offer: StreamOpen) -> int:
    """The newest version that both speak; raises UsageError if there is none."""
    version = min(offer.version, VERSION)
    if version < OLDEST or version < (offer.version if offer.oldest is None else offer.oldest):
        raise UsageError(
            f"the sender's newest version of the exchange is {offer.version}, and this node speaks "
            f"{OLDEST} to {VERSION}: update the older of the two; the messages wait meanwhile"
        )
    return version


def check_version(version: int) -> None:
    """Raise UsageError unless this node speaks that version."""
    if not OLDEST <= version <= VERSION:
        raise UsageError(
            f"version {version} of the exchange, and this node speaks {OLDEST} to {VERSION}"
        )


T = TypeVar("T", StreamOpen, StreamAck, StreamWindow)

encode = msgspec.msgpack.Encoder().encode
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in (StreamOpen, StreamAck, StreamWindow)}


def decode_stream_message(kind: type[T], payload: bytes) -> T:
    """Read a message of that kind; raises MalformedPayloadError if it is none."""
    try:
        return _decoders[kind].decode(payload)  # type: ignore[return-value]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayloadError(f"malformed {kind.__name__}: {error}") from error


def initial_chain(store: bytes, epoch: int, peer: str) -> bytes:
    """The chain before the first message of a store to a peer."""
    start = b"%s/%d/%s" % (store, epoch, peer.encode())
    return blake2b(start, digest_size=CHAIN_BYTES, person=b"postroad.chain").digest()


def extend_chain(chain: bytes, batch: bytes) -> bytes:
    """The chain after one more batch."""
    digest = blake2b(chain, digest_size=CHAIN_BYTES, person=b"postroad.chain")
    digest.update(batch)
    return digest.digest()


class SequenceGap(Exception):
    """The window starts after the number that is expected next."""


class NewBatch(msgspec.Struct, frozen=True):
    """A batch that was not accepted before."""

    first: int
    batch: WireBatch
    is_intact: bool
    """Whether its messages are those the sender meant."""

    @property
    def last(self) -> int:
        return self.first + self.batch.count - 1


def new_batches(watermark: int, chain: bytes, window: StreamWindow) -> Iterator[NewBatch]:
    """The batches of a window that come after the watermark, in order.

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
        first, previous = last + 1, batch.chain
