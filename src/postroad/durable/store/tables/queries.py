"""Reads from a store, inside a commit or between commits."""

from __future__ import annotations

import logging

import msgspec

from postroad.core.errors import MalformedPayloadError, StoreCorruptedError
from postroad.durable.bridges.protocol import MessageRejection
from postroad.durable.store.backends.backend import DatabaseRow, StoreConnection
from postroad.durable.stored_messages import (
    NEVER_MS,
    StoredMessage,
    decode_batch,
    decode_stored_message,
)

from .rows import (
    DeadLetter,
    DeadLetterGroup,
    DeferredMessage,
    InboxBatch,
    OutboxBatch,
    PeerState,
    PendingMessage,
    SenderStream,
    strip_checksum,
)

logger = logging.getLogger("postroad.durable")

_BATCHES_AT_ONCE = 8

# The ids of a peer's batches lie between multiples of this span.
BATCH_ID_SPAN = 2**40
_BATCHES_OF_PEER = (
    f"BETWEEN peers.id * {BATCH_ID_SPAN} AND peers.id * {BATCH_ID_SPAN} + {BATCH_ID_SPAN - 1}"
)
_PEER_COLUMNS = (
    "peers.id, peers.name, peers.epoch, COALESCE(newest.last, peers.settled),"
    " COALESCE(newest.chain, peers.settled_chain), peers.settled, peers.settled_chain,"
    " peers.is_paused"
)
_PEERS = (
    "postroad_peers AS peers LEFT JOIN postroad_outbox AS newest ON newest.id ="
    f" (SELECT MAX(id) FROM postroad_outbox WHERE id {_BATCHES_OF_PEER})"
)
_OUTBOX_COLUMNS = "id, last, chain, letters"
_DEAD_LETTER_COLUMNS = "id, is_outbound, peer, queue, reason, detail, failures, died_ms, letter"
_DEFERRED_COLUMNS = "id, sender, letter, due_ms, holds_key, failures, ahead_ms, received_ms, error"


def find_peer(database: StoreConnection, name: str) -> PeerState | None:
    """Return the state of a peer, or None if nothing was ever sent to it."""
    rows = database.execute(f"SELECT {_PEER_COLUMNS} FROM {_PEERS} WHERE name = ?", (name,))
    return _to_peer(rows[0]) if rows else None


def list_peers(database: StoreConnection) -> list[PeerState]:
    """Return all peers that anything was ever sent to."""
    return [_to_peer(row) for row in database.execute(f"SELECT {_PEER_COLUMNS} FROM {_PEERS}")]


def _to_peer(row: DatabaseRow) -> PeerState:
    id, name, epoch, last_seq, last_chain, acked_seq, acked_chain, is_paused = row
    return PeerState(
        id,
        name,
        epoch,
        last_seq,
        bytes(last_chain),
        acked_seq,
        bytes(acked_chain),
        is_paused=bool(is_paused),
    )


def batch_id(peer: int, first: int) -> int:
    """Return the id of the outbox batch of a peer that starts with this number."""
    return peer * BATCH_ID_SPAN + first


def _to_outbox_batch(row: DatabaseRow) -> OutboxBatch:
    id, last, chain, messages = row
    return OutboxBatch(
        id % BATCH_ID_SPAN, last, bytes(chain), None if messages is None else bytes(messages)
    )


def read_outbox_batches(
    database: StoreConnection, peer: int, after: int, limit: int
) -> list[OutboxBatch]:
    """Return the next outbox batches of a peer, in order."""
    rows = database.execute(
        f"SELECT {_OUTBOX_COLUMNS} FROM postroad_outbox"
        " WHERE id > ? AND id < ? ORDER BY id LIMIT ?",
        (batch_id(peer, after), batch_id(peer + 1, 0), limit),
    )
    return [_to_outbox_batch(row) for row in rows]


def read_outbox_batches_of_epoch(
    database: StoreConnection, peer: int, after: int, limit: int
) -> tuple[int | None, list[OutboxBatch]]:
    """Return the next batches that wait for a peer, and the epoch of their numbers.

    While the peer is paused there is neither. In one statement, so that both are of one moment.
    """
    rows = database.execute(
        "SELECT CASE peers.is_paused WHEN 0 THEN peers.epoch END,"
        " outbox.id, outbox.last, outbox.chain, outbox.letters"
        " FROM postroad_peers AS peers LEFT JOIN postroad_outbox AS outbox"
        " ON outbox.id > ? AND outbox.id < ? WHERE peers.id = ?"
        " ORDER BY outbox.id LIMIT ?",
        (batch_id(peer, after), batch_id(peer + 1, 0), peer, limit),
    )
    if rows[0][0] is None:
        return None, []
    return int(rows[0][0]), [_to_outbox_batch(row[1:]) for row in rows if row[1] is not None]


def outbox_batch_with(database: StoreConnection, peer: int, number: int) -> OutboxBatch | None:
    """Return the outbox batch that contains a message, or None."""
    rows = database.execute(
        f"SELECT {_OUTBOX_COLUMNS} FROM postroad_outbox"
        " WHERE id > ? AND id <= ? ORDER BY id DESC LIMIT 1",
        (batch_id(peer, 0), batch_id(peer, number)),
    )
    batch = _to_outbox_batch(rows[0]) if rows else None
    return batch if batch is not None and batch.last >= number else None


def chain_after(database: StoreConnection, peer: int, number: int) -> bytes | None:
    """Return the chain after an outbox message; None unless the message ends a batch."""
    rows = database.execute(
        "SELECT last, chain FROM postroad_outbox WHERE id > ? AND id <= ? ORDER BY id DESC LIMIT 1",
        (batch_id(peer, 0), batch_id(peer, number)),
    )
    return bytes(rows[0][1]) if rows and rows[0][0] == number else None


def peer_and_chain(
    database: StoreConnection, name: str, number: int
) -> tuple[PeerState, bytes | None]:
    """Return the state of a peer, and the chain after one message if that ends a batch.

    In one statement, so that both are of the same moment.
    """
    rows = database.execute(
        f"SELECT {_PEER_COLUMNS}, batch.last, batch.chain FROM {_PEERS}"
        " LEFT JOIN postroad_outbox AS batch ON batch.id = (SELECT MAX(id) FROM postroad_outbox"
        f" WHERE id BETWEEN peers.id * {BATCH_ID_SPAN} AND peers.id * {BATCH_ID_SPAN} + ?)"
        " WHERE peers.name = ?",
        (number, name),
    )
    *columns_of_peer, last, chain = rows[0]
    peer = _to_peer(tuple(columns_of_peer))
    if number == peer.acked_seq:
        return peer, peer.acked_chain
    return peer, bytes(chain) if last == number else None


def count_outbox(database: StoreConnection, peer: int) -> int:
    """Return the number of outbox messages of a peer, without emptied batches."""
    rows = database.execute(
        "SELECT COALESCE(SUM(last - id + ?), 0) FROM postroad_outbox"
        " WHERE id > ? AND id < ? AND letters IS NOT NULL",
        (batch_id(peer, 1), batch_id(peer, 0), batch_id(peer + 1, 0)),
    )
    return int(rows[0][0])


def oldest_outbox_ms(database: StoreConnection, peer: int) -> int | None:
    """Return when the oldest outbox batch of a peer that has messages was sent."""
    rows = database.execute(
        "SELECT posted_ms FROM postroad_outbox WHERE id > ? AND id < ? AND letters IS NOT NULL"
        " ORDER BY id LIMIT 1",
        (batch_id(peer, 0), batch_id(peer + 1, 0)),
    )
    return int(rows[0][0]) if rows else None


def peek_outbox(database: StoreConnection, name: str, limit: int) -> list[StoredMessage]:
    """Return the first outbox messages of a peer."""
    peer = find_peer(database, name)
    messages: list[StoredMessage] = []
    after = 0
    while peer is not None and len(messages) < limit:
        batches = read_outbox_batches(database, peer.id, after, _BATCHES_AT_ONCE)
        if not batches:
            break
        after = batches[-1].last
        for batch in batches:
            if batch.data is not None:
                messages.extend(decode_batch(batch.data))
    return messages[:limit]


def find_stream(
    database: StoreConnection, sender: str, store: bytes, epoch: int
) -> SenderStream | None:
    """Return the watermark of a sender's store, or None if it never sent anything."""
    rows = database.execute(
        "SELECT id, watermark, chain FROM postroad_streams"
        " WHERE sender = ? AND store = ? AND epoch = ?",
        (sender, store, epoch),
    )
    return SenderStream(rows[0][0], rows[0][1], bytes(rows[0][2])) if rows else None


def list_rejections(database: StoreConnection, stream: int, after: int) -> list[MessageRejection]:
    """Return the rejections of a stream that its sender may not know."""
    rows = database.execute(
        "SELECT number, reason, detail FROM postroad_refusals"
        " WHERE stream = ? AND number > ? ORDER BY number",
        (stream, after),
    )
    return [MessageRejection(*row) for row in rows]


def list_queues(database: StoreConnection) -> dict[str, tuple[int, bool]]:
    """Return all queues: their numbers, and whether they are paused."""
    rows = database.execute("SELECT name, id, is_paused FROM postroad_queues ORDER BY name")
    return {name: (id, bool(is_paused)) for name, id, is_paused in rows}


def read_inbox_batches(
    database: StoreConnection, queue: str, id: int, after: int, limit: int
) -> list[InboxBatch]:
    """Return the next inbox batches of a queue."""
    rows = database.execute(
        "SELECT id, sender, letters, size, ahead_ms, received_ms, done, pending"
        " FROM postroad_inbox WHERE queue = ? AND id > ? ORDER BY id LIMIT ?",
        (id, after, limit),
    )
    return [_to_inbox_batch(queue, row) for row in rows]


def _to_inbox_batch(queue: str, row: DatabaseRow) -> InboxBatch:
    """Decode a stored batch; a damaged one stays in the table and has no messages."""
    id, sender, messages, size, clock_skew_ms, received_ms, done, pending = row
    batch = InboxBatch(id, queue, sender, [], size, clock_skew_ms, received_ms)
    try:
        batch.messages = decode_batch(strip_checksum(bytes(messages)))
        batch.done_bits = 0 if done is None else int.from_bytes(done)
        if batch.pending != pending:
            raise StoreCorruptedError(
                f"{batch.pending} are marked as not handled, and {pending} counted"
            )
    except (StoreCorruptedError, MalformedPayloadError) as error:
        logger.error("batch %d of queue %r is damaged and not delivered: %s", id, queue, error)
        batch.messages, batch.done_bits = [], 0
    return batch


def read_deferred(
    database: StoreConnection, queue: str, id: int, now_ms: int, latest_ms: int, limit: int
) -> list[DeferredMessage]:
    """Return the deferred messages that are due, the most urgent first.

    So are retries that are planned for after `latest_ms`.
    """
    rows = database.execute(
        f"SELECT {_DEFERRED_COLUMNS} FROM postroad_aside WHERE queue = ? AND (due_ms <= ?"
        " OR failures > 0 AND due_ms > ? AND due_ms < ?) ORDER BY priority DESC, id LIMIT ?",
        (id, now_ms, latest_ms, NEVER_MS, limit),
    )
    return [deferred for row in rows if (deferred := _to_deferred(queue, row)) is not None]


def _to_deferred(queue: str, row: DatabaseRow) -> DeferredMessage | None:
    id, sender, data, due_ms, blocks_key, failures, clock_skew_ms, received_ms, error = row
    try:
        message = decode_stored_message(strip_checksum(bytes(data)))
    except (StoreCorruptedError, msgspec.DecodeError) as problem:
        logger.error("message %d of queue %r is damaged and not delivered: %s", id, queue, problem)
        return None
    return DeferredMessage(
        id=id,
        queue=queue,
        sender=sender,
        message=message,
        due_ms=due_ms,
        blocks_key=bool(blocks_key),
        failures=failures,
        clock_skew_ms=clock_skew_ms,
        received_ms=received_ms,
        error=error,
    )


def peek_queue(database: StoreConnection, queue: str, limit: int) -> list[StoredMessage]:
    """Return the first messages of a queue, the deferred ones last."""
    return [pending.message for pending in peek_pending(database, queue, limit)]


def peek_pending(database: StoreConnection, queue: str, limit: int) -> list[PendingMessage]:
    """Return the first messages of a queue, with their failures."""
    id, _ = list_queues(database).get(queue, (0, False))
    messages: list[PendingMessage] = []
    after = 0
    while len(messages) < limit:
        batches = read_inbox_batches(database, queue, id, after, _BATCHES_AT_ONCE)
        if not batches:
            break
        after = batches[-1].id
        for batch in batches:
            messages.extend(
                PendingMessage(message=message)
                for index, message in enumerate(batch.messages)
                if not batch.done_bits >> index & 1
            )
    if len(messages) < limit:
        deferred = read_deferred(database, queue, id, NEVER_MS, NEVER_MS, limit - len(messages))
        messages.extend(map(_to_pending, deferred))
    return messages[:limit]


def _to_pending(deferred: DeferredMessage) -> PendingMessage:
    is_blocked = deferred.due_ms >= NEVER_MS
    return PendingMessage(
        message=deferred.message,
        failures=deferred.failures,
        error=deferred.error,
        due_ms=0 if is_blocked else deferred.due_ms,
        is_blocked=is_blocked,
    )


def next_deferred_ms(database: StoreConnection, id: int, after_ms: int) -> int | None:
    """Return when the next deferred message becomes due, or None."""
    rows = database.execute(
        "SELECT MIN(due_ms) FROM postroad_aside WHERE queue = ? AND due_ms > ? AND due_ms < ?",
        (id, after_ms, NEVER_MS),
    )
    return None if rows[0][0] is None else int(rows[0][0])


def blocked_keys(database: StoreConnection, id: int) -> dict[str, int]:
    """Return the keys that are blocked by a retry, with the number of blocked messages."""
    rows = database.execute(
        "SELECT key, COUNT(*) FROM postroad_aside WHERE queue = ? AND holds_key = 1 GROUP BY key",
        (id,),
    )
    return {key: int(count) for key, count in rows}


def dead_letter_bytes_by_sender(database: StoreConnection) -> dict[str, int]:
    """Return the bytes of received dead letters, by sender."""
    rows = database.execute(
        "SELECT peer, SUM(LENGTH(letter)) FROM postroad_dead WHERE is_outbound = 0 GROUP BY peer"
    )
    return {sender: int(size) for sender, size in rows}


def count_pending(database: StoreConnection, id: int) -> int:
    """Return the number of messages in a queue."""
    batches = database.execute(
        "SELECT COALESCE(SUM(pending), 0) FROM postroad_inbox WHERE queue = ?", (id,)
    )
    deferred = database.execute("SELECT COUNT(*) FROM postroad_aside WHERE queue = ?", (id,))
    return int(batches[0][0]) + int(deferred[0][0])


def oldest_inbox_ms(database: StoreConnection, id: int, now_ms: int) -> int | None:
    """Return when the oldest batch of a queue was received, or a message that waits for a retry.

    Delayed messages do not count before they are due.
    """
    rows = database.execute(
        "SELECT received_ms FROM postroad_inbox WHERE queue = ? ORDER BY id LIMIT 1", (id,)
    )
    deferred = database.execute(
        "SELECT MIN(received_ms) FROM postroad_aside WHERE queue = ?"
        " AND (failures > 0 OR due_ms <= ? OR due_ms >= ?)",
        (id, now_ms, NEVER_MS),
    )
    moments_ms = [int(moment_ms) for (moment_ms,) in (*rows, *deferred) if moment_ms is not None]
    return min(moments_ms, default=None)


def sizes_by_sender(database: StoreConnection, id: int | None = None) -> dict[str, int]:
    """Return the bytes in one queue or all of them, by sender."""
    where, queue = ("", ()) if id is None else (" WHERE queue = ?", (id,))
    rows = database.execute(
        "SELECT sender, SUM(size) FROM ("
        f"SELECT sender, size FROM postroad_inbox{where} UNION ALL"
        f" SELECT sender, LENGTH(letter) AS size FROM postroad_aside{where}"
        ") AS held GROUP BY sender",
        (*queue, *queue),
    )
    return {sender: int(size) for sender, size in rows}


def find_dead_letter(database: StoreConnection, id: int) -> DeadLetter | None:
    """Return one dead letter, or None."""
    rows = database.execute(f"SELECT {_DEAD_LETTER_COLUMNS} FROM postroad_dead WHERE id = ?", (id,))
    return _to_dead_letter(rows[0]) if rows else None


def list_dead_letters(
    database: StoreConnection, queue: str | None, after: int, limit: int, reason: str | None = None
) -> list[DeadLetter]:
    """Return the dead letters after an id, oldest first."""
    where, parameters = _dead_letter_filter(queue, reason)
    rows = database.execute(
        f"SELECT {_DEAD_LETTER_COLUMNS} FROM postroad_dead WHERE id > ?{where} ORDER BY id LIMIT ?",
        (after, *parameters, limit),
    )
    return [_to_dead_letter(row) for row in rows]


def _dead_letter_filter(queue: str | None, reason: str | None) -> tuple[str, list[str]]:
    """Return the condition and parameters for dead letters of a queue and a reason."""
    conditions = [
        (name, value) for name, value in (("queue", queue), ("reason", reason)) if value is not None
    ]
    return "".join(f" AND {name} = ?" for name, _ in conditions), [value for _, value in conditions]


def group_dead_letters(database: StoreConnection) -> list[DeadLetterGroup]:
    """Return dead letters grouped by queue, reason and detail, the largest groups first."""
    rows = database.execute(
        "SELECT queue, reason, detail, COUNT(*) AS number, MIN(died_ms), MAX(died_ms)"
        " FROM postroad_dead GROUP BY queue, reason, detail"
        " ORDER BY number DESC, queue, reason, detail"
    )
    return [
        DeadLetterGroup(
            queue=queue,
            reason=reason,
            detail=detail,
            count=int(count),
            oldest_ms=oldest_ms,
            newest_ms=newest_ms,
        )
        for queue, reason, detail, count, oldest_ms, newest_ms in rows
    ]


def last_dead_letter_id(database: StoreConnection) -> int:
    """Return the id of the newest dead letter; 0 if there is none."""
    return int(database.execute("SELECT COALESCE(MAX(id), 0) FROM postroad_dead")[0][0])


def count_dead_letters(
    database: StoreConnection, queue: str | None = None, reason: str | None = None
) -> int:
    """Return the number of dead letters."""
    where, parameters = _dead_letter_filter(queue, reason)
    rows = database.execute(f"SELECT COUNT(*) FROM postroad_dead WHERE 1 = 1{where}", parameters)
    return int(rows[0][0])


def _to_dead_letter(row: DatabaseRow) -> DeadLetter:
    id, is_outbound, peer, queue, reason, detail, failures, dead_at_ms, message = row
    return DeadLetter(
        id=id,
        is_outbound=bool(is_outbound),
        peer=peer,
        queue=queue,
        reason=reason,
        detail=detail,
        failures=failures,
        dead_at_ms=dead_at_ms,
        message=decode_stored_message(bytes(message)),
    )
