"""Moves messages from one queue of a node to another, inside a commit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from typing import NamedTuple

import msgspec

from postroad.durable.stored_messages import NEVER_MS, StoredMessage

from .queries import list_queues, read_deferred, read_inbox_batches
from .rows import DeferredMessage, InboxBatch
from .store_tables import StoreTables

_BATCHES_AT_ONCE = 8
_BYTES_MAX = 1024 * 1024


class _LocatedMessage(NamedTuple):
    """A message, and where it is stored."""

    location: InboxBatch | DeferredMessage
    bit: int
    message: StoredMessage

    @property
    def sender_and_skew(self) -> tuple[str, int]:
        """Its sender, and by how much this node's clock was ahead of the sender's."""
        return self.location.sender, self.location.clock_skew_ms


def move_messages(tables: StoreTables, queue: str, to: str, limit: int) -> int:
    """Move messages of a queue to another one, as if they were new; returns how many.

    Deferred messages come first, to stay ahead of the other messages of their key.
    """
    id, _ = list_queues(tables.database).get(queue, (0, False))
    located = [*_take_batch(_messages_of(tables, queue, id, limit), limit)]
    for (sender, clock_skew_ms), group in groupby(located, lambda message: message.sender_and_skew):
        messages = [msgspec.structs.replace(message.message, queue=to) for message in group]
        tables.queues.store_messages(sender, messages, clock_skew_ms, tables.now_ms)
    done: dict[int, int] = {}
    batches = [
        (message.location, message.bit)
        for message in located
        if isinstance(message.location, InboxBatch)
    ]
    for batch, bit in batches:
        done[batch.id] = done.get(batch.id, 0) | bit
    for batch in {batch.id: batch for batch, _ in batches}.values():
        tables.queues.mark_range_done(id, batch.id, batch.received_ms, done[batch.id])
    for message in located:
        if isinstance(message.location, DeferredMessage):
            # Messages that wait for it are moved too, or are released.
            tables.queues.delete_deferred(message.location, tables.now_ms)
    return len(located)


def _take_batch(messages: Iterator[_LocatedMessage], limit: int) -> Iterator[_LocatedMessage]:
    """Return as many messages as fit into a batch, at least one."""
    size = 0
    for located in islice(messages, limit):
        yield located
        size += len(located.message.body)
        if size >= _BYTES_MAX:
            return


def _messages_of(tables: StoreTables, queue: str, id: int, limit: int) -> Iterator[_LocatedMessage]:
    deferred = read_deferred(tables.database, queue, id, NEVER_MS, NEVER_MS, limit)
    for entry in sorted(deferred, key=lambda entry: entry.id):
        yield _LocatedMessage(entry, 0, entry.message)
    after = 0
    while batches := read_inbox_batches(tables.database, queue, id, after, _BATCHES_AT_ONCE):
        after = batches[-1].id
        for batch in batches:
            for index, message in enumerate(batch.messages):
                if not batch.done_bits >> index & 1:
                    yield _LocatedMessage(batch, 1 << index, message)
