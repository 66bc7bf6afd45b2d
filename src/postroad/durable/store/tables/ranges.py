"""Stretches of a queue: letters that one reader takes out together once it is done with them.

A stretch is plain data that can be kept anywhere. It stands for the same letters until they are
taken out. The numbers of pages begin anew when a store without any is opened, and a queue can be
purged meanwhile; so a stretch knows until when its letters were received, and is never taken for
others that came later.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.stored_messages import StoredMessage, decode_batch, decode_stored_message

from .rows import strip_checksum


class BatchRange(msgspec.Struct, frozen=True, tag="pages"):
    """Pages in a row, or some letters of one page."""

    queue: int
    first: int
    last: int
    received_ms: int
    start: int = 0
    """Index of the first letter, in its only page."""
    stop: int | None = None
    """Index behind the last one; None if it has all letters of its pages."""


class DeferredSet(msgspec.Struct, frozen=True, tag="asides"):
    """Letters that were set aside."""

    queue: int
    ids: list[int]
    received_ms: int


MessageRange: TypeAlias = BatchRange | DeferredSet
SenderMessages: TypeAlias = tuple[str, list[StoredMessage]]
"""A sender, and letters of it that are in a row."""


def read_range(database: StoreConnection, message_range: MessageRange) -> list[SenderMessages]:
    """The letters of a stretch, in order; none if they were taken out or purged."""
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
    """Those letters of a page, from one index to another, that are not done with."""
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
    """The last page of a stretch that is there; None if none is."""
    rows = database.execute(
        "SELECT MAX(id) FROM postroad_inbox"
        " WHERE queue = ? AND id BETWEEN ? AND ? AND received_ms <= ?",
        (message_range.queue, message_range.first, message_range.last, message_range.received_ms),
    )
    return None if rows[0][0] is None else int(rows[0][0])


def bits_between(start: int, stop: int) -> int:
    """A bit for each letter from one index to another."""
    return (1 << stop) - (1 << start)
