"""The rows of a store's tables."""

from __future__ import annotations

import zlib

import msgspec

from postroad.core.errors import StoreCorruptedError
from postroad.durable.bridges.protocol import MessageRejection
from postroad.durable.stored_messages import StoredMessage

RETRIED_HEADER = "postroad-retried"
"""Header with the number of times that a message was retried as a dead letter."""

# Neither a batch nor a message starts with it; those of earlier versions have no checksum.
_CHECKSUM_MARK = b"\xc1"
_CRC_BYTES = 4
_DATA_START = len(_CHECKSUM_MARK) + _CRC_BYTES


class PeerState(msgspec.Struct):
    """Sequence numbers of the stream to a peer."""

    id: int
    name: str
    epoch: int
    last_seq: int
    """Number of the last message sent."""
    last_chain: bytes
    acked_seq: int
    """Number of the last message that the peer has acknowledged."""
    acked_chain: bytes
    is_paused: bool = False
    """Whether an operator has paused delivery."""


class OutboxBatch(msgspec.Struct, frozen=True):
    """A batch of the outbox."""

    first: int
    last: int
    chain: bytes
    data: bytes | None
    """None if the messages were removed and only their numbers remain."""

    @property
    def size(self) -> int:
        return 0 if self.data is None else len(self.data)


class SenderStream(msgspec.Struct):
    """How far the stream of a sender's store was accepted."""

    id: int
    watermark: int
    chain: bytes
    rejections: list[MessageRejection] = []
    """Rejections that the sender may not know, by number; filled while receiving."""


class InboxBatch(msgspec.Struct):
    """Messages of one queue that arrived together."""

    id: int
    queue: str
    sender: str
    messages: list[StoredMessage]
    size: int
    clock_skew_ms: int
    """By how much this node's clock was ahead of the sender's."""
    received_ms: int
    done_bits: int = 0
    """A bit for each message that is done."""

    @property
    def pending(self) -> int:
        """Return the messages that are not done."""
        return len(self.messages) - self.done_bits.bit_count()


class DeferredMessage(msgspec.Struct):
    """A message that is not delivered in the order of arrival."""

    id: int
    queue: str
    sender: str
    message: StoredMessage
    due_ms: int
    blocks_key: bool
    """Whether later messages of its key wait for it."""
    failures: int
    clock_skew_ms: int
    received_ms: int
    error: str | None = None


class PendingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a queue that is not done, with its failures."""

    message: StoredMessage
    failures: int = 0
    """How often its handler has failed."""
    error: str | None = None
    """The last error of its handler."""
    due_ms: int = 0
    """When it is retried, by the clock of this node; 0 if it waits in the order of arrival."""
    is_blocked: bool = False
    """Whether it waits for an earlier message of its key, which is retried."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that could not be delivered or handled."""

    id: int
    is_outbound: bool
    """Whether this node sent it; otherwise it was received."""
    peer: str
    """Its receiver, or its sender."""
    queue: str
    reason: str
    detail: str
    failures: int
    dead_at_ms: int
    message: StoredMessage

    @property
    def retried(self) -> int:
        """How often it was retried as a dead letter."""
        text = (self.message.headers or {}).get(RETRIED_HEADER, "0")
        return int(text) if text.isdecimal() else 0


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with the same queue, reason and detail."""

    queue: str
    reason: str
    detail: str
    count: int
    oldest_ms: int
    newest_ms: int


def add_checksum(data: bytes) -> bytes:
    """Return data with a checksum, as it is stored."""
    return b"".join((_CHECKSUM_MARK, zlib.crc32(data).to_bytes(_CRC_BYTES), data))


def strip_checksum(stored: bytes) -> bytes:
    """Return the data; raises StoreCorruptedError if the checksum is wrong."""
    if not stored.startswith(_CHECKSUM_MARK):
        return stored
    data = stored[_DATA_START:]
    if zlib.crc32(data) != int.from_bytes(stored[len(_CHECKSUM_MARK) : _DATA_START]):
        raise StoreCorruptedError(
            f"the checksum of {len(data)} bytes is wrong: they were damaged at rest"
        )
    return data


def sanitize_text(text: str | None) -> str | None:
    """Return the text without characters that some databases reject."""
    return None if text is None else text.encode("utf-8", "replace").decode().replace("\0", "?")
