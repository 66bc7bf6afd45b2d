"""Ranges of a queue: messages that one reader removes together when they are done.

A range is plain data that can be kept anywhere. It stands for the same messages until they are
taken out. The numbers of batches start anew when a store without any is opened, and a queue can be
purged meanwhile; so a range knows until when its messages were received, and is never taken for
others that came later.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.stored_messages import StoredMessage, decode_batch, decode_stored_message

from .rows import strip_checksum


class BatchRange(msgspec.Struct, frozen=True, tag="pages"):
    """Consecutive batches, or some messages of one batch."""

    queue: int
    first: int
    last: int
    received_ms: int
    start: int = 0
    """Index of the first message, if the range is in a single batch."""
    stop: int | None = None
    """Index after the last message; None if the range has all messages of its batches."""


class DeferredSet(msgspec.Struct, frozen=True, tag="asides"):
    """The ids of deferred messages."""

    queue: int
    ids: list[int]
    received_ms: int


MessageRange: TypeAlias = BatchRange | DeferredSet
SenderMessages: TypeAlias = tuple[str, list[StoredMessage]]
"""A sender, and consecutive messages of it."""


def read_range(database: StoreConnection, message_range: MessageRange) -> list[SenderMessages]:
    """Return the messages of a range, in order; none if they were removed."""
    if isinstance(message_range, BatchRange):
        return _read_batches(database, message_range)
    return _read_deferred(database, message_range)


def _read_batches(database: StoreConnection, message_range: BatchRange) -> list[SenderMessages]:
    rows = database.execute(
        "SELECT sender, letters, done FROM postroad_inbox"
        " WHERE queue = ? AND id BETWEEN ? AND ? AND received_ms <= ? ORDER BY id",
        (message_range.queue, message_range.first, message_range.last, message_range.received_ms),
    )
    return [
        (
            sender,
            unfinished(
                decode_batch(strip_checksum(bytes(messages))),
                0 if done is None else int.from_bytes(done),
                message_range.start,
                message_range.stop,
            ),
        )
        for sender, messages, done in rows
    ]


def unfinished(
    messages: list[StoredMessage], done: int, start: int = 0, stop: int | None = None
) -> list[StoredMessage]:
    """Return the messages of a batch between two indexes that are not done."""
    if not done:
        return messages if start == 0 and stop is None else messages[start:stop]
    selected = enumerate(messages[start:stop], start)
    return [message for index, message in selected if not done >> index & 1]


def _read_deferred(database: StoreConnection, message_range: DeferredSet) -> list[SenderMessages]:
    bundles: list[SenderMessages] = []
    for id in message_range.ids:
        rows = database.execute(
            "SELECT sender, letter FROM postroad_aside"
            " WHERE id = ? AND queue = ? AND received_ms <= ?",
            (id, message_range.queue, message_range.received_ms),
        )
        bundles += (
            (sender, [decode_stored_message(strip_checksum(bytes(message)))])
            for sender, message in rows
        )
    return bundles


def last_batch(database: StoreConnection, message_range: BatchRange) -> int | None:
    """Return the last batch of a range that exists, or None."""
    rows = database.execute(
        "SELECT MAX(id) FROM postroad_inbox"
        " WHERE queue = ? AND id BETWEEN ? AND ? AND received_ms <= ?",
        (message_range.queue, message_range.first, message_range.last, message_range.received_ms),
    )
    return None if rows[0][0] is None else int(rows[0][0])


def bits_between(start: int, stop: int) -> int:
    """Return a bit for each message between two indexes."""
    return (1 << stop) - (1 << start)
