"""What is in the tables of a store, as Python sees it."""

from __future__ import annotations

import zlib

import msgspec

from postroad.core.errors import StoreCorruptedError
from postroad.durable.bridges.protocol import MessageRejection
from postroad.durable.stored_messages import StoredMessage

RETRIED_HEADER = "postroad-retried"
"""How often a message was a dead letter and was tried again; unless it never was."""

# No page and no letter begins with it; those of earlier versions have no seal.
_CHECKSUM_MARK = b"\xc1"
_CRC_BYTES = 4
_DATA_START = len(_CHECKSUM_MARK) + _CRC_BYTES


class PeerState(msgspec.Struct):
    """How far things are with one peer."""

    id: int
    name: str
    epoch: int
    last_seq: int
    """Number of the last message posted."""
    last_chain: bytes
    acked_seq: int
    """Number of the last message the peer is known to have."""
    acked_chain: bytes
    is_paused: bool = False
    """Whether an operator wants nothing to be sent for now."""


class OutboxBatch(msgspec.Struct, frozen=True):
    """Letters in a row that wait to be sent."""

    first: int
    last: int
    chain: bytes
    data: bytes | None
    """None if they were removed and only their numbers are left."""

    @property
    def size(self) -> int:
        return 0 if self.data is None else len(self.data)


class SenderStream(msgspec.Struct):
    """How far a sender's store has been accepted."""

    id: int
    watermark: int
    chain: bytes
    rejections: list[MessageRejection] = []
    """What was refused of it and its sender may not know, by number; filled while receiving."""


class InboxBatch(msgspec.Struct):
    """Letters of one queue that came together."""

    id: int
    queue: str
    sender: str
    messages: list[StoredMessage]
    size: int
    clock_skew_ms: int
    """By how much this node's clock was ahead of the sender's."""
    received_ms: int
    done_bits: int = 0
    """A bit for each letter that is finished."""

    @property
    def pending(self) -> int:
        """Letters that are not finished."""
        return len(self.messages) - self.done_bits.bit_count()


class DeferredMessage(msgspec.Struct):
    """A letter whose turn is not the order of arrival."""

    id: int
    queue: str
    sender: str
    message: StoredMessage
    due_ms: int
    blocks_key: bool
    """Whether later letters of its key wait for it."""
    failures: int
    clock_skew_ms: int
    received_ms: int
    error: str | None = None


class PendingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A letter of a queue that is not handled, and what was tried."""

    message: StoredMessage
    failures: int = 0
    """How often its handler has failed."""
    error: str | None = None
    """The last one."""
    due_ms: int = 0
    """When it is tried, by the clock of this node; 0 if it is its turn by the order of arrival."""
    is_blocked: bool = False
    """Whether it waits for an earlier one of its key, which is tried again."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message nobody could deliver or handle."""

    id: int
    is_outbound: bool
    """Whether this node wanted to send it; otherwise it was received."""
    peer: str
    """Whom it was for, or whom it came from."""
    queue: str
    reason: str
    detail: str
    failures: int
    dead_at_ms: int
    message: StoredMessage

    @property
    def retried(self) -> int:
        """How often it was a dead letter before, and was tried again."""
        text = (self.message.headers or {}).get(RETRIED_HEADER, "0")
        return int(text) if text.isdecimal() else 0


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one queue that died of the same."""

    queue: str
    reason: str
    detail: str
    count: int
    oldest_ms: int
    newest_ms: int


def add_checksum(data: bytes) -> bytes:
    """What is stored in place of some data."""
    return b"".join((_CHECKSUM_MARK, zlib.crc32(data).to_bytes(_CRC_BYTES), data))


def strip_checksum(stored: bytes) -> bytes:
    """The data; raises StoreCorruptedError if it is not what was stored."""
    if not stored.startswith(_CHECKSUM_MARK):
        return stored
    data = stored[_DATA_START:]
    if zlib.crc32(data) != int.from_bytes(stored[len(_CHECKSUM_MARK) : _DATA_START]):
        raise StoreCorruptedError(
            f"the checksum of {len(data)} bytes is wrong: they were damaged at rest"
        )
    return data


def sanitize_text(text: str | None) -> str | None:
    """The text without what some database would refuse."""
    return None if text is None else text.encode("utf-8", "replace").decode().replace("\0", "?")
