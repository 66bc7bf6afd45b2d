"""What is in the tables of a store, as Python sees it."""

from __future__ import annotations

import msgspec

from postroad.durable.bridges.protocol import MessageRejection
from postroad.durable.stored_messages import StoredMessage

RETRIED_HEADER = "postroad-retried"
"""How often a message was a dead letter and was tried again; unless it never was."""


class Peer(msgspec.Struct):
    """How far things are with one peer."""

    id: int
    name: str
    epoch: int
    head: int
    """Number of the last message posted."""
    head_chain: bytes
    settled: int
    """Number of the last message the peer is known to have."""
    settled_chain: bytes
    is_paused: bool = False
    """Whether an operator wants nothing to be sent for now."""


class OutPage(msgspec.Struct, frozen=True):
    """Letters in a row that wait to be sent."""

    first: int
    last: int
    chain: bytes
    letters: bytes | None
    """None if they were removed and only their numbers are left."""

    @property
    def size(self) -> int:
        return 0 if self.letters is None else len(self.letters)


class Stream(msgspec.Struct):
    """How far a sender's store has been accepted."""

    id: int
    watermark: int
    chain: bytes
    refusals: list[MessageRejection] = []
    """What was refused of it and its sender may not know, by number; filled while receiving."""


class InPage(msgspec.Struct):
    """Letters of one queue that came together."""

    id: int
    queue: str
    sender: str
    letters: list[StoredMessage]
    size: int
    ahead_ms: int
    """By how much this node's clock was ahead of the sender's."""
    received_ms: int
    done: int = 0
    """A bit for each letter that is finished."""

    @property
    def pending(self) -> int:
        """Letters that are not finished."""
        return len(self.letters) - self.done.bit_count()


class AsideLetter(msgspec.Struct):
    """A letter whose turn is not the order of arrival."""

    id: int
    queue: str
    sender: str
    letter: StoredMessage
    due_ms: int
    holds_key: bool
    """Whether later letters of its key wait for it."""
    failures: int
    ahead_ms: int
    received_ms: int
    error: str | None = None


class WaitingLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A letter of a queue that is not handled, and what was tried."""

    letter: StoredMessage
    failures: int = 0
    """How often its handler has failed."""
    error: str | None = None
    """The last one."""
    due_ms: int = 0
    """When it is tried, by the clock of this node; 0 if it is its turn by the order of arrival."""
    is_held: bool = False
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
    died_ms: int
    letter: StoredMessage

    @property
    def retried(self) -> int:
        """How often it was a dead letter before, and was tried again."""
        text = (self.letter.headers or {}).get(RETRIED_HEADER, "0")
        return int(text) if text.isdecimal() else 0


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one queue that died of the same."""

    queue: str
    reason: str
    detail: str
    count: int
    oldest_ms: int
    newest_ms: int
