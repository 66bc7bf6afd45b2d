"""What waits to be sent: pages of letters with gapless numbers, one row of them for each peer.

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
from postroad.durable.bridges.hash_chain import extend_chain, initial_chain
from postroad.durable.bridges.protocol import DeadLetterReason, MessageRejection
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.stored_messages import (
    StoredMessage,
    decode_batch,
    join_batch,
    split_into_batches,
)

from .database import Database
from .dead import DeadLetters
from .queries import PAGE_SPAN, chain_after, find_peer, page_id, page_with
from .rows import OutPage, Peer

UNREADABLE_QUEUE = "_unreadable"


class Idempotence(msgspec.Struct, frozen=True):
    """The key that makes posting twice the same as posting once."""

    key: str
    digest: bytes
    """Of what was posted, to notice another message under the same key."""

    def check(self, digest: bytes, peer: str) -> None:
        """Raise IdempotencyConflictError unless what was posted before is the same."""
        if digest != self.digest:
            raise IdempotencyConflictError(
                f"idempotency key {self.key!r} was used for another message to {peer!r}"
            )


class Outbox:
    """Appends to and removes from the outbox of a store."""

    def __init__(
        self, database: Database, store: bytes, config: DurableQueuesConfig, dead: DeadLetters
    ) -> None:
        self.database = database
        self._store = store
        self._config = config
        self._dead = dead
        # As the next commit will leave them; forgotten when one fails.
        self._peers: dict[str, Peer] = {}
        self._posted: dict[str, list[bytes]] = {}
        # Pages of this commit, for bridges that wait for them.
        self.appended: list[tuple[str, OutPage]] = []

    def find(self, name: str) -> Peer | None:
        """The state of a peer; None if it is new."""
        peer = self._peers.get(name) or find_peer(self.database, name)
        if peer is not None:
            self._peers[name] = peer
        return peer

    def peer(self, name: str) -> Peer:
        """The state of a peer, made if it is new."""
        peer = self.find(name)
        if peer is None:
            peer = self._peers[name] = self._add_peer(name)
        return peer

    def _add_peer(self, name: str) -> Peer:
        chain = initial_chain(self._store, 1, name)
        rows = self.database.execute("SELECT COALESCE(MAX(id), 0) + 1 FROM postroad_peers")
        peer = Peer(rows[0][0], name, 1, 0, chain, 0, chain)
        self.database.execute(
            "INSERT INTO postroad_peers (id, name, epoch, settled, settled_chain)"
            " VALUES (?, ?, ?, ?, ?)",
            (peer.id, name, peer.epoch, peer.settled, peer.settled_chain),
        )
        return peer

    # Posting.

    def check_room(self, name: str, count: int) -> None:
        """Raise OutboxFullError if the outbox of a peer has no capacity for `count` more."""
        if count <= self.room(name):
            return
        peer = self._peers.get(name)
        if peer is not None:
            # What a bridge of another process has settled is not known here yet.
            peer.settled, peer.settled_chain = self.database.execute(
                "SELECT settled, settled_chain FROM postroad_peers WHERE id = ?", (peer.id,)
            )[0]
        if count > self.room(name):
            raise OutboxFullError(
                f"{self._waiting(name)} messages wait for {name!r}; this node keeps "
                f"{self._config.outbox_messages_max} (outbox_messages_max)"
            )

    def room(self, name: str) -> int:
        """How many more messages this node keeps for a peer."""
        return self._config.outbox_messages_max - self._waiting(name)

    def _waiting(self, name: str) -> int:
        posted, peer = len(self._posted.get(name, ())), self.find(name)
        return posted if peer is None else peer.head + posted - peer.settled

    def find_posted(self, name: str, idempotence: Idempotence) -> int | None:
        """The id of the letter posted under that key before, if there was one."""
        peer = self.find(name)
        if peer is None:
            return None
        rows = self.database.execute(
            "SELECT digest, letter FROM postroad_idempotency WHERE peer = ? AND key = ?",
            (peer.id, idempotence.key),
        )
        if not rows:
            return None
        digest, letter = rows[0]
        idempotence.check(bytes(digest), name)
        return int(letter)

    def remember_posted(self, name: str, idempotence: Idempotence, id: int, now_ms: int) -> None:
        """Note that a letter was posted under a key."""
        self.database.execute(
            "INSERT INTO postroad_idempotency (peer, key, digest, letter, posted_ms)"
            " VALUES (?, ?, ?, ?, ?)",
            (self.peer(name).id, idempotence.key, idempotence.digest, id, now_ms),
        )

    def forget_posted(self, before_ms: int) -> None:
        """Drop keys that are too old."""
        self.database.execute("DELETE FROM postroad_idempotency WHERE posted_ms < ?", (before_ms,))

    def append(self, name: str, encoded: Sequence[bytes]) -> None:
        """Add letters for a peer; they get their numbers at the end of this commit."""
        if encoded:
            self._posted.setdefault(name, []).extend(encoded)

    def flush(self, now_ms: int) -> None:
        """Write what was appended, as pages."""
        for name, encoded in self._posted.items():
            peer = self.peer(name)
            for letters in self.split(encoded):
                self._write_page(peer, len(letters), join_batch(letters), now_ms)
        self._posted.clear()

    def split(self, encoded: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        """Cut letters into pages."""
        config = self._config
        return split_into_batches(encoded, config.batch_messages_max, config.batch_bytes_max)

    def append_page(self, name: str, count: int, letters: bytes, now_ms: int) -> None:
        """Add a page of so many letters as it is, before what `append` adds in this commit."""
        self._write_page(self.peer(name), count, letters, now_ms)

    def _write_page(self, peer: Peer, count: int, letters: bytes, now_ms: int) -> None:
        first, last = peer.head + 1, peer.head + count
        peer.head, peer.head_chain = last, extend_chain(peer.head_chain, letters)
        self.database.execute(
            "INSERT INTO postroad_outbox (id, last, chain, posted_ms, letters)"
            " VALUES (?, ?, ?, ?, ?)",
            (page_id(peer.id, first), last, peer.head_chain, now_ms, letters),
        )
        self.appended.append((peer.name, OutPage(first, last, peer.head_chain, letters)))

    # Settling.

    def settle(
        self,
        name: str,
        epoch: int,
        upto: int,
        chain: bytes,
        refusals: Sequence[MessageRejection],
        now_ms: int,
    ) -> None:
        """Remove what a peer has accepted; what it refused becomes dead letters of this node."""
        peer = find_peer(self.database, name)
        if peer is None or peer.epoch != epoch or upto <= peer.settled:
            return
        self._check_end(peer, upto, chain)
        self._bury(
            peer,
            [rejection for rejection in refusals if peer.settled < rejection.number <= upto],
            now_ms,
        )
        self.database.execute(
            "DELETE FROM postroad_outbox WHERE id > ? AND id <= ?",
            (page_id(peer.id, 0), page_id(peer.id, upto)),
        )
        self.database.execute(
            "UPDATE postroad_peers SET settled = ?, settled_chain = ? WHERE id = ?",
            (upto, chain, peer.id),
        )
        if name in self._peers:
            self._peers[name].settled, self._peers[name].settled_chain = upto, chain

    def _check_end(self, peer: Peer, upto: int, chain: bytes) -> None:
        """A peer can have accepted whole pages only, and those that were sent."""
        if chain_after(self.database, peer.id, upto) != chain:
            raise StreamDivergedError(
                f"{peer.name!r} claims to have accepted message {upto}, but not the one that "
                "was posted here"
            )

    def _bury(self, peer: Peer, refusals: Sequence[MessageRejection], now_ms: int) -> None:
        """Make dead letters of what was refused."""
        page = OutPage(0, 0, b"", None)
        letters: Sequence[StoredMessage] = ()
        for refusal in refusals:
            if not page.first <= refusal.number <= page.last:
                page = page_with(self.database, peer.id, refusal.number) or page
                letters = read_letters(page)
            index = refusal.number - page.first
            if index < len(letters):
                self._dead.add_outbound(
                    peer.name, letters[index], refusal.reason, refusal.detail, now_ms
                )

    def void(
        self, name: str, page: OutPage, reason: DeadLetterReason, detail: str, now_ms: int
    ) -> None:
        """Make dead letters of a page that cannot be sent; its numbers stay."""
        peer = self.peer(name)
        if page.letters is None:
            return
        for letter in read_letters(page):
            self._dead.add_outbound(name, letter, reason, detail, now_ms)
        self.database.execute(
            "UPDATE postroad_outbox SET letters = NULL WHERE id = ? AND chain = ?",
            (page_id(peer.id, page.first), page.chain),
        )

    def start_epoch(self, name: str) -> int:
        """Number everything that waits for a peer from 1 again, as a stream it never saw.

        Returns how many messages wait.
        """
        peer = self.peer(name)
        pages = self.database.execute(
            "SELECT id, last, letters FROM postroad_outbox WHERE id > ? AND id < ? ORDER BY id",
            (page_id(peer.id, 0), page_id(peer.id + 1, 0)),
        )
        peer.epoch += 1
        peer.head = peer.settled = 0
        peer.head_chain = peer.settled_chain = initial_chain(self._store, peer.epoch, name)
        # In this order no page ever gets the id of another one: each moves to a lower one.
        for id, last, letters in pages:
            first = peer.head + 1
            peer.head += last - id % PAGE_SPAN + 1
            peer.head_chain = extend_chain(peer.head_chain, b"" if letters is None else letters)
            self.database.execute(
                "UPDATE postroad_outbox SET id = ?, last = ?, chain = ? WHERE id = ?",
                (page_id(peer.id, first), peer.head, peer.head_chain, id),
            )
        self.database.execute(
            "UPDATE postroad_peers SET epoch = ?, settled = 0, settled_chain = ? WHERE id = ?",
            (peer.epoch, peer.settled_chain, peer.id),
        )
        return peer.head

    def pause(self, name: str, is_paused: bool) -> None:
        """Write down whether what waits for a peer shall wait on."""
        peer = self.peer(name)
        peer.is_paused = is_paused
        self.database.execute(
            "UPDATE postroad_peers SET is_paused = ? WHERE id = ?", (int(is_paused), peer.id)
        )

    def purge(self, name: str) -> int:
        """Empty the pages that wait for a peer; returns how many messages that were."""
        peer = self.peer(name)
        rows = self.database.execute(
            "UPDATE postroad_outbox SET letters = NULL WHERE id > ? AND id < ?"
            " AND letters IS NOT NULL RETURNING id, last",
            (page_id(peer.id, 0), page_id(peer.id + 1, 0)),
        )
        return sum(last - id % PAGE_SPAN + 1 for id, last in rows)

    def forget(self) -> None:
        """Drop what is only in memory: the commit failed."""
        self._peers.clear()
        self._posted.clear()
        self.appended.clear()


def read_letters(page: OutPage) -> Sequence[StoredMessage]:
    """The letters of a page; what nobody can read any more is one letter of all its bytes."""
    if page.letters is None:
        return ()
    try:
        return decode_batch(bytes(page.letters))
    except MalformedPayloadError:
        return (StoredMessage(0, UNREADABLE_QUEUE, bytes(page.letters), 0),)
