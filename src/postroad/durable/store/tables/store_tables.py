"""All tables of a store that a commit may change."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence

from postroad.core.errors import StoreError, StoreLockedError, StoreMismatchError
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.store.backends.backend import DatabaseBackend, StoreConnection, close_quietly
from postroad.durable.stored_messages import (
    StoredMessage,
    decode_batch,
    encode_stored_message,
    join_batch,
)

from .dead_letters import DeadLetterTable
from .outbox import OutboxTable
from .queues import QueueTable
from .rows import InboxBatch, OutboxBatch
from .schema import MIGRATIONS, read_meta, write_meta
from .streams import StreamTable

_SCHEMA = str(len(MIGRATIONS))
# A commit is valid only if the one before it is the last of this process in the database, and
# the schema was not migrated since. One statement checks that, and marks this commit.
_ADVANCE_MARK = (
    "UPDATE postroad_meta SET value = ? WHERE name = ? AND value = ?"
    " AND ? = (SELECT value FROM postroad_meta WHERE name = 'schema')"
)


class DisplacedError(Exception):
    """The database differs from what this process remembers, so it must not continue.

    Attributes:
        failure: the error of mutations that wait for a commit.
    """

    def __init__(self, failure: StoreError) -> None:
        super().__init__(str(failure))
        self.failure = failure


def register_process(database: StoreConnection, role: str) -> None:
    """Record this process as the writer of the store; earlier writers cannot commit any more."""
    write_meta(database, f"process.{role}", os.urandom(8).hex())
    count = _count_of(read_meta(database, f"commits.{role}"))
    write_meta(database, f"commits.{role}", f"{count} {os.urandom(8).hex()}")


def _count_of(mark: str | None) -> int:
    return 0 if mark is None else int(mark.partition(" ")[0])


class CommitEvent:
    """The additions of a commit, for listeners."""

    __slots__ = (
        "bytes_by_sender",
        "dead_letter_bytes_by_sender",
        "deferred_queues",
        "inbox_batches",
        "outbox_batches",
    )

    def __init__(self, outbox: OutboxTable, queues: QueueTable, dead: DeadLetterTable) -> None:
        self.outbox_batches: list[tuple[str, OutboxBatch]] = outbox.added_batches
        self.inbox_batches: list[InboxBatch] = queues.inbox_batches
        self.deferred_queues: dict[str, None] = queues.deferred_queues
        self.bytes_by_sender: dict[str, int] = queues.bytes_by_sender
        self.dead_letter_bytes_by_sender: dict[str, int] = dead.bytes_by_sender

    @property
    def is_empty(self) -> bool:
        """Whether the commit has added nothing that listeners wait for."""
        return not (
            self.outbox_batches
            or self.inbox_batches
            or self.deferred_queues
            or self.bytes_by_sender
            or self.dead_letter_bytes_by_sender
        )


class StoreTables:
    """The tables inside one commit after the other. Used by one thread."""

    def __init__(
        self,
        database: StoreConnection,
        store: bytes,
        owner: str,
        role: str,
        config: DurableQueuesConfig,
    ) -> None:
        self.database = database
        self.owner = owner
        self.dead_letters = DeadLetterTable(database)
        self.outbox = OutboxTable(database, store, config, self.dead_letters)
        self.queues = QueueTable(database)
        self.streams = StreamTable(database, config, self.queues)
        self.now_ms = 0
        # Messages of this commit to this node itself.
        self._local_messages: list[bytes] = []
        # Every process that writes counts its own commits.
        self.role = role
        self._mark_key = f"commits.{role}"
        self._process_key = f"process.{role}"
        self._process = read_meta(database, self._process_key)
        self._mark = read_meta(database, self._mark_key)
        # The number of the current commit.
        self._next_mark: str | None = None
        # With an attempt number it identifies a commit among all others, including those of a
        # copy that diverged.
        self._source = os.urandom(8).hex()
        self._next_attempt = itertools.count().__next__
        self.commits = _count_of(self._mark)

    def begin(self, now_ms: int) -> None:
        """Start a commit; raises DisplacedError if the last one of the database is not known."""
        self.now_ms = now_ms
        mark = f"{self.commits + 1} {self._source}.{self._next_attempt()}"
        self._next_mark = mark
        parameters = (mark, self._mark_key, self._mark or "", _SCHEMA)
        self.database.begin()
        if not self.database.change(_ADVANCE_MARK, parameters):
            raise DisplacedError(self._displacement_error(self.database))

    def enqueue(self, peer: str, encoded: bytes) -> None:
        """Append a message for a peer."""
        self.enqueue_all(peer, (encoded,))

    def enqueue_all(self, peer: str, encoded: Sequence[bytes]) -> None:
        """Append messages for a peer; those to this node itself go straight into its queues."""
        if peer == self.owner:
            self._local_messages.extend(encoded)
        else:
            self.outbox.enqueue(peer, encoded)

    def enqueue_batches(self, peer: str, batches: Iterable[tuple[int, bytes]]) -> None:
        """Append encoded batches for a peer, each with the number of its messages."""
        for count, batch in batches:
            if peer == self.owner:
                self._store_local_batch(batch)
            else:
                self.outbox.enqueue_batch(peer, count, batch, self.now_ms)

    def _store_local_batch(self, batch: bytes) -> None:
        messages = decode_batch(batch)
        self.queues.store_messages(self.owner, messages, 0, self.now_ms, batch=batch)

    def enqueue_message(self, peer: str, message: StoredMessage) -> None:
        """Encode and append one message."""
        self.enqueue(peer, encode_stored_message(message))

    def flush(self) -> None:
        """Write what was appended."""
        self.outbox.flush(self.now_ms)
        if self._local_messages:
            for encoded in self.outbox.split(self._local_messages):
                self._store_local_batch(join_batch(encoded))
            self._local_messages.clear()
        self.queues.flush()

    def is_last_commit_durable(self, database: StoreConnection | None = None) -> bool:
        """Whether the commit that was started last is in the database.

        Raises:
            DisplacedError: neither that one nor the one before it is the last there.
        """
        database = database or self.database
        try:
            mark = read_meta(database, self._mark_key)
            process = read_meta(database, self._process_key)
            is_known = mark is not None and mark in (self._mark, self._next_mark)
            if is_known and process == self._process:
                return mark == self._next_mark
            failure = self._displacement_error(database)
        except StoreError:
            raise
        except Exception as error:
            raise DisplacedError(
                StoreMismatchError(f"the database has no tables of this store any more: {error}")
            ) from error
        raise DisplacedError(failure)

    def _displacement_error(self, database: StoreConnection) -> StoreError:
        """Return why this process cannot continue with the database."""
        if read_meta(database, self._process_key) not in (self._process, None):
            return StoreLockedError(
                "another process has worked on the store meanwhile; start this one again"
            )
        schema = read_meta(database, "schema")
        if schema != _SCHEMA:
            return StoreMismatchError(
                f"the store has schema {schema} since another version of Postroad was here, and "
                f"this one knows {_SCHEMA}; start the node again with that version"
            )
        count = _count_of(read_meta(database, self._mark_key))
        if count < self.commits:
            state = f"is {self.commits - count} commits behind what this node committed"
        else:
            state = f"has a commit {count} that this node did not make"
        return StoreMismatchError(
            f"the database {state}: a fail-over or a restored copy has another history; start the "
            "node again, and it takes up what the database has"
        )

    def on_committed(self) -> CommitEvent:
        """Clear the changes of a durable commit."""
        self.commits += 1
        self._mark, self._next_mark = self._next_mark, None
        event = CommitEvent(self.outbox, self.queues, self.dead_letters)
        self.outbox.added_batches, self.dead_letters.bytes_by_sender = [], {}
        self.queues.on_committed()
        return event

    def roll_back(self) -> CommitEvent | None:
        """Prepare the next commit; return the event of the last one if it was durable after all."""
        self.database.rollback()
        return self._resolve_last_commit()

    def _resolve_last_commit(self) -> CommitEvent | None:
        if self.is_last_commit_durable():
            return self.on_committed()
        self.on_rolled_back()
        return None

    def reconnect(self, backend: DatabaseBackend) -> CommitEvent | None:
        """Continue with a new connection; return the event of the last commit if it is durable."""
        close_quietly(self.database)
        try:
            database = backend.connect()
        except StoreLockedError:
            # By the rest of the last connection, or by another process.
            self._check_over_new_connection(backend)
            raise
        self.database = database
        for part in (self.dead_letters, self.outbox, self.queues, self.streams):
            part.database = database
        return self._resolve_last_commit()

    def _check_over_new_connection(self, backend: DatabaseBackend) -> None:
        reader = backend.connect_reader()
        try:
            self.is_last_commit_durable(reader)
        finally:
            close_quietly(reader)

    def on_rolled_back(self) -> None:
        """Drop the changes of a commit that failed."""
        self._next_mark = None
        self._local_messages.clear()
        self.dead_letters.bytes_by_sender.clear()
        self.outbox.on_rolled_back()
        self.queues.on_rolled_back()
        self.streams.on_rolled_back()
