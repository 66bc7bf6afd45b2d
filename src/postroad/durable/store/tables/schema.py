"""The tables, as numbered migrations. A released one is never changed.

Some names in the tables are older than those in the code:

    letter, letters                 a message, the messages of a batch
    posted_ms                       when they were sent
    settled, settled_chain          acked_seq, acked_chain: what a peer has acknowledged
    postroad_aside                  deferred messages
    holds_key                       blocks_key: later messages of the key wait for it
    ahead_ms                        clock_skew_ms
    postroad_refusals               rejections
    died_ms                         dead_at_ms
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from postroad.core.errors import StoreMismatchError
from postroad.durable.store.backends.backend import DatabaseBackend, StoreConnection

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # What waits to be sent: `settled` is the last message that the peer has acknowledged.
        """CREATE TABLE postroad_peers (
            id {id}, name TEXT NOT NULL UNIQUE, epoch BIGINT NOT NULL,
            settled BIGINT NOT NULL, settled_chain {blob} NOT NULL)""",
        # The id is made of the peer and the first number, so that a send changes one table and no
        # index; the last batch of a peer tells how far its numbers go.
        """CREATE TABLE postroad_outbox (
            id {id}, last BIGINT NOT NULL, chain {blob} NOT NULL, posted_ms BIGINT NOT NULL,
            letters {blob})""",
        """CREATE TABLE postroad_idempotency (
            peer BIGINT NOT NULL, key TEXT NOT NULL, digest {blob} NOT NULL, letter BIGINT NOT NULL,
            posted_ms BIGINT NOT NULL, PRIMARY KEY (peer, key))""",
        "CREATE INDEX postroad_idempotency_age ON postroad_idempotency (posted_ms)",
        # What was received: one watermark for each store that ever sent something.
        """CREATE TABLE postroad_streams (
            id {id}, sender TEXT NOT NULL, store {blob} NOT NULL,
            epoch BIGINT NOT NULL, watermark BIGINT NOT NULL, chain {blob} NOT NULL,
            UNIQUE (sender, store, epoch))""",
        """CREATE TABLE postroad_refusals (
            stream BIGINT NOT NULL, number BIGINT NOT NULL, reason TEXT NOT NULL,
            detail TEXT NOT NULL, PRIMARY KEY (stream, number))""",
        """CREATE TABLE postroad_queues (
            id {id}, name TEXT NOT NULL UNIQUE, is_paused BIGINT NOT NULL)""",
        # `done` has a bit for each message that is finished; without any it is NULL.
        """CREATE TABLE postroad_inbox (
            id {id}, queue BIGINT NOT NULL, sender TEXT NOT NULL,
            size BIGINT NOT NULL, pending BIGINT NOT NULL, done {blob}, received_ms BIGINT NOT NULL,
            ahead_ms BIGINT NOT NULL, letters {blob} NOT NULL)""",
        "CREATE INDEX postroad_inbox_order ON postroad_inbox (queue, id)",
        # Messages whose turn is not the order of arrival: delayed, urgent, or waiting for a retry.
        """CREATE TABLE postroad_aside (
            id {id}, queue BIGINT NOT NULL, sender TEXT NOT NULL, key TEXT,
            priority BIGINT NOT NULL, due_ms BIGINT NOT NULL, holds_key BIGINT NOT NULL,
            failures BIGINT NOT NULL, error TEXT, received_ms BIGINT NOT NULL,
            ahead_ms BIGINT NOT NULL, letter {blob} NOT NULL)""",
        "CREATE INDEX postroad_aside_due ON postroad_aside (queue, due_ms)",
        "CREATE INDEX postroad_aside_key ON postroad_aside (queue, key, id)",
        """CREATE TABLE postroad_dead (
            id {serial}, is_outbound BIGINT NOT NULL, peer TEXT NOT NULL, queue TEXT NOT NULL,
            reason TEXT NOT NULL, detail TEXT NOT NULL, failures BIGINT NOT NULL,
            died_ms BIGINT NOT NULL, letter {blob} NOT NULL)""",
    ),
    (
        # Operators pause bridges, and look at dead letters in groups.
        "ALTER TABLE postroad_peers ADD COLUMN is_paused BIGINT NOT NULL DEFAULT 0",
        "CREATE INDEX postroad_dead_kind ON postroad_dead (queue, reason)",
    ),
    # Messages with checksums and commits with marks, which earlier versions cannot read.
    (),
    (
        # Messages that other users of the database sent within their own transactions.
        # The peer is NULL where they are for the node itself.
        "CREATE TABLE postroad_arrivals (id {serial}, peer TEXT, body {blob} NOT NULL)",
    ),
)


class Schema(msgspec.Struct, frozen=True):
    """The tables of one layer.

    Attributes:
        of: whose tables they are, for error messages.
        key: where the store keeps their version.
        migrations: the statements that bring each version to the next; the first ones make it.
    """

    of: str
    key: str
    migrations: tuple[tuple[str, ...], ...]

    @property
    def newest(self) -> int:
        """The version that this process writes."""
        return len(self.migrations)

    def version(self, database: StoreConnection) -> int:
        """The version in a store, 0 if there is none; raises StoreMismatchError for a newer one."""
        version = int(read_meta(database, self.key) or 0)
        if version > self.newest:
            raise StoreMismatchError(
                f"the store has schema {version} of {self.of} and this version of Postroad knows "
                f"{self.newest}: it was written by a newer one"
            )
        return version

    def migrate(self, types: Mapping[str, str], database: StoreConnection) -> bool:
        """Bring the tables up to date, inside a transaction; whether there was anything to do.

        Raises:
            StoreMismatchError: a newer version of Postroad made them.
        """
        version = self.version(database)
        for migration in self.migrations[version:]:
            for statement in migration:
                database.execute(statement.format_map(types))
        if version == self.newest:
            return False
        write_meta(database, self.key, str(self.newest))
        return True


QUEUES = Schema("queues", "schema", MIGRATIONS)


def migrate(backend: DatabaseBackend, database: StoreConnection) -> None:
    """Bring the store's own tables up to date; a newer store is rejected."""
    database.execute(
        "CREATE TABLE IF NOT EXISTS postroad_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
    )
    if QUEUES.migrate(backend.column_types, database):
        # Processes of another version that still run commit nothing more.
        database.execute(
            "UPDATE postroad_meta SET value = value || ' +' WHERE name LIKE 'commits.%'"
        )


def read_meta(database: StoreConnection, name: str) -> str | None:
    """Return a value of the table of settings, or None."""
    rows = database.execute("SELECT value FROM postroad_meta WHERE name = ?", (name,))
    return rows[0][0] if rows else None


def write_meta(database: StoreConnection, name: str, value: str) -> None:
    """Set a value of the table of settings."""
    database.execute(
        "INSERT INTO postroad_meta (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )
