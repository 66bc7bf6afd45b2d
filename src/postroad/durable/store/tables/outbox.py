"""The outbox: batches of messages with gapless numbers, one sequence per peer.

Everything here runs inside the transaction of a commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from postroad.core.errors import (
    IdempotencyConflictError,
    MalformedPayloadError,
    OutboxFullError,
    StreamDivergedError,
)
from postroad.durable.bridges.protocol import (
    DeadLetterReason,
    MessageRejection,
    extend_chain,
    initial_chain,
)
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.stored_messages import (
    StoredMessage,
    decode_batch,
    join_batch,
    split_into_batches,
)

from .dead_letters import DeadLetterTable
from .queries import BATCH_ID_SPAN, batch_id, chain_after, find_peer, outbox_batch_with
from .rows import OutboxBatch, PeerState

UNREADABLE_QUEUE = "_unreadable"


class IdempotencyRecord(msgspec.Struct, frozen=True):
    """An idempotency key with the digest of its message."""

    key: str
    digest: bytes
    """Digest of the message, to detect another message under the same key."""

    def check(self, digest: bytes, peer: str) -> None:
        """Raise IdempotencyConflictError unless the same message was sent before."""
        if digest != self.digest:
            raise IdempotencyConflictError(
                f"idempotency key {self.key!r} was used for another message to {peer!r}"
            )


class OutboxTable:
    """The outbox of a store, inside a commit."""

    def __init__(
        self,
        database: StoreConnection,
        store: bytes,
        config: DurableQueuesConfig,
        dead: DeadLetterTable,
    ) -> None:
        self.database = database
        self._store = store
        self._config = config
        self._dead_letters = dead
        # As the next commit will leave them; dropped when a commit fails.
        self._peers: dict[str, PeerState] = {}
        self._queued: dict[str, list[bytes]] = {}
        # Batches of this commit, for the bridges.
        self.added_batches: list[tuple[str, OutboxBatch]] = []

    def find(self, name: str) -> PeerState | None:
        """Return the state of a peer, or None if it is new."""
        peer = self._peers.get(name) or find_peer(self.database, name)
        if peer is not None:
            self._peers[name] = peer
        return peer

    def peer(self, name: str) -> PeerState:
        """Return the state of a peer; created if it is new."""
        peer = self.find(name)
        if peer is None:
            peer = self._peers[name] = self._add_peer(name)
        return peer

    def _add_peer(self, name: str) -> PeerState:
        chain = initial_chain(self._store, 1, name)
        rows = self.database.execute("SELECT COALESCE(MAX(id), 0) + 1 FROM postroad_peers")
        peer = PeerState(rows[0][0], name, 1, 0, chain, 0, chain)
        self.database.execute(
            "INSERT INTO postroad_peers (id, name, epoch, settled, settled_chain)"
            " VALUES (?, ?, ?, ?, ?)",
            (peer.id, name, peer.epoch, peer.acked_seq, peer.acked_chain),
        )
        return peer

    # Sending.

    def check_capacity(self, name: str, count: int) -> None:
        """Raise OutboxFullError if the outbox of a peer has no capacity for `count` more."""
        if count <= self.capacity_left(name):
            return
        peer = self._peers.get(name)
        if peer is not None:
            # Acks that a bridge of another process has committed are not in memory yet.
            peer.acked_seq, peer.acked_chain = self.database.execute(
                "SELECT settled, settled_chain FROM postroad_peers WHERE id = ?", (peer.id,)
            )[0]
        if count > self.capacity_left(name):
            raise OutboxFullError(
                f"{self._count_unacked(name)} messages wait for {name!r}; this node keeps "
                f"{self._config.outbox_messages_max} (outbox_messages_max)"
            )

    def capacity_left(self, name: str) -> int:
        """Return how many more messages the outbox accepts for a peer."""
        return self._config.outbox_messages_max - self._count_unacked(name)

    def _count_unacked(self, name: str) -> int:
        count, peer = len(self._queued.get(name, ())), self.find(name)
        return count if peer is None else peer.last_seq + count - peer.acked_seq

    def find_sent(self, name: str, idempotency: IdempotencyRecord) -> int | None:
        """Return the id of the message sent under this key before, or None."""
        peer = self.find(name)
        if peer is None:
            return None
        rows = self.database.execute(
            "SELECT digest, letter FROM postroad_idempotency WHERE peer = ? AND key = ?",
            (peer.id, idempotency.key),
        )
        if not rows:
            return None
        digest, message = rows[0]
        idempotency.check(bytes(digest), name)
        return int(message)

    def record_sent(self, name: str, idempotency: IdempotencyRecord, id: int, now_ms: int) -> None:
        """Record that a message was sent under a key."""
        self.database.execute(
            "INSERT INTO postroad_idempotency (peer, key, digest, letter, posted_ms)"
            " VALUES (?, ?, ?, ?, ?)",
            (self.peer(name).id, idempotency.key, idempotency.digest, id, now_ms),
        )

    def purge_sent(self, before_ms: int) -> None:
        """Delete idempotency keys from before a time."""
        self.database.execute("DELETE FROM postroad_idempotency WHERE posted_ms < ?", (before_ms,))

    def enqueue(self, name: str, encoded: Sequence[bytes]) -> None:
        """Append messages for a peer; they get their numbers at the end of this commit."""
        if encoded:
            self._queued.setdefault(name, []).extend(encoded)

    def flush(self, now_ms: int) -> None:
        """Write the appended messages as batches."""
        for name, encoded in self._queued.items():
            peer = self.peer(name)
            for messages in self.split(encoded):
                self._write_batch(peer, len(messages), join_batch(messages), now_ms)
        self._queued.clear()

    def split(self, encoded: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        """Split messages into batches."""
        config = self._config
        return split_into_batches(encoded, config.batch_messages_max, config.batch_bytes_max)

    def enqueue_batch(self, name: str, count: int, messages: bytes, now_ms: int) -> None:
        """Add an encoded batch, before the messages that `enqueue` adds in this commit."""
        self._write_batch(self.peer(name), count, messages, now_ms)

    def _write_batch(self, peer: PeerState, count: int, messages: bytes, now_ms: int) -> None:
        first, last = peer.last_seq + 1, peer.last_seq + count
        peer.last_seq, peer.last_chain = last, extend_chain(peer.last_chain, messages)
        self.database.execute(
            "INSERT INTO postroad_outbox (id, last, chain, posted_ms, letters)"
            " VALUES (?, ?, ?, ?, ?)",
            (batch_id(peer.id, first), last, peer.last_chain, now_ms, messages),
        )
        self.added_batches.append((peer.name, OutboxBatch(first, last, peer.last_chain, messages)))

    # Acknowledgements.

    def ack(
        self,
        name: str,
        epoch: int,
        acked: int,
        chain: bytes,
        rejections: Sequence[MessageRejection],
        now_ms: int,
    ) -> None:
        """Remove what a peer has accepted; rejected messages become dead letters of this node."""
        peer = find_peer(self.database, name)
        if peer is None or peer.epoch != epoch or acked <= peer.acked_seq:
            return
        self._check_acked_chain(peer, acked, chain)
        self._dead_letter_rejected(
            peer,
            [rejection for rejection in rejections if peer.acked_seq < rejection.number <= acked],
            now_ms,
        )
        self.database.execute(
            "DELETE FROM postroad_outbox WHERE id > ? AND id <= ?",
            (batch_id(peer.id, 0), batch_id(peer.id, acked)),
        )
        self.database.execute(
            "UPDATE postroad_peers SET settled = ?, settled_chain = ? WHERE id = ?",
            (acked, chain, peer.id),
        )
        if name in self._peers:
            self._peers[name].acked_seq, self._peers[name].acked_chain = acked, chain

    def _check_acked_chain(self, peer: PeerState, acked: int, chain: bytes) -> None:
        """Raise unless a peer has accepted whole batches that were sent."""
        if chain_after(self.database, peer.id, acked) != chain:
            raise StreamDivergedError(
                f"{peer.name!r} claims to have accepted message {acked}, but not the one that "
                "was sent here"
            )

    def _dead_letter_rejected(
        self, peer: PeerState, rejections: Sequence[MessageRejection], now_ms: int
    ) -> None:
        """Dead-letter rejected messages."""
        batch = OutboxBatch(0, 0, b"", None)
        messages: Sequence[StoredMessage] = ()
        for rejection in rejections:
            if not batch.first <= rejection.number <= batch.last:
                batch = outbox_batch_with(self.database, peer.id, rejection.number) or batch
                messages = read_messages(batch)
            index = rejection.number - batch.first
            if index < len(messages):
                self._dead_letters.add_outbound(
                    peer.name, messages[index], rejection.reason, rejection.detail, now_ms
                )

    def dead_letter_batch(
        self, name: str, batch: OutboxBatch, reason: DeadLetterReason, detail: str, now_ms: int
    ) -> None:
        """Dead-letter a batch that cannot be sent; its numbers stay used."""
        peer = self.peer(name)
        if batch.data is None:
            return
        for message in read_messages(batch):
            self._dead_letters.add_outbound(name, message, reason, detail, now_ms)
        self.database.execute(
            "UPDATE postroad_outbox SET letters = NULL WHERE id = ? AND chain = ?",
            (batch_id(peer.id, batch.first), batch.chain),
        )

    def start_epoch(self, name: str) -> int:
        """Number everything that waits for a peer from 1 again, as a stream it never saw.

        Returns how many messages wait.
        """
        peer = self.peer(name)
        batches = self.database.execute(
            "SELECT id, last, letters FROM postroad_outbox WHERE id > ? AND id < ? ORDER BY id",
            (batch_id(peer.id, 0), batch_id(peer.id + 1, 0)),
        )
        peer.epoch += 1
        peer.last_seq = peer.acked_seq = 0
        peer.last_chain = peer.acked_chain = initial_chain(self._store, peer.epoch, name)
        # In this order no batch gets the id of another one: each moves to a lower one.
        for id, last, messages in batches:
            first = peer.last_seq + 1
            peer.last_seq += last - id % BATCH_ID_SPAN + 1
            peer.last_chain = extend_chain(peer.last_chain, b"" if messages is None else messages)
            self.database.execute(
                "UPDATE postroad_outbox SET id = ?, last = ?, chain = ? WHERE id = ?",
                (batch_id(peer.id, first), peer.last_seq, peer.last_chain, id),
            )
        self.database.execute(
            "UPDATE postroad_peers SET epoch = ?, settled = 0, settled_chain = ? WHERE id = ?",
            (peer.epoch, peer.acked_chain, peer.id),
        )
        return peer.last_seq

    def pause(self, name: str, is_paused: bool) -> None:
        """Record whether delivery to a peer is paused."""
        peer = self.peer(name)
        peer.is_paused = is_paused
        self.database.execute(
            "UPDATE postroad_peers SET is_paused = ? WHERE id = ?", (int(is_paused), peer.id)
        )

    def purge(self, name: str) -> int:
        """Empty the batches for a peer; returns the number of their messages."""
        peer = self.peer(name)
        rows = self.database.execute(
            "UPDATE postroad_outbox SET letters = NULL WHERE id > ? AND id < ?"
            " AND letters IS NOT NULL RETURNING id, last",
            (batch_id(peer.id, 0), batch_id(peer.id + 1, 0)),
        )
        return sum(last - id % BATCH_ID_SPAN + 1 for id, last in rows)

    def on_rolled_back(self) -> None:
        """Drop what is only in memory, after a failed commit."""
        self._peers.clear()
        self._queued.clear()
        self.added_batches.clear()


def read_messages(batch: OutboxBatch) -> Sequence[StoredMessage]:
    """Return the messages of a batch; an unreadable one is a single message of all its bytes."""
    if batch.data is None:
        return ()
    try:
        return decode_batch(bytes(batch.data))
    except MalformedPayloadError:
        return (StoredMessage(0, UNREADABLE_QUEUE, bytes(batch.data), 0),)
