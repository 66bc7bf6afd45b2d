"""Everything a commit may change, in one place."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence

from postroad.core.errors import StoreError, StoreLockedError, StoreMismatchError
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.stored_messages import (
    StoredMessage,
    decode_batch,
    encode_stored_message,
    join_batch,
)

from .database import Backend, Database, close_quietly
from .dead import DeadLetters
from .outbox import Outbox
from .queues import Queues
from .rows import InPage, OutPage
from .schema import MIGRATIONS, read_meta, write_meta
from .streams import Streams

_SCHEMA = str(len(MIGRATIONS))
# A commit can happen only if the one before it is the last of this process in the database, and
# nobody has brought the tables up to date since. One statement checks that, and marks this one.
_MARK = (
    "UPDATE postroad_meta SET value = ? WHERE name = ? AND value = ?"
    " AND ? = (SELECT value FROM postroad_meta WHERE name = 'schema')"
)


class Displaced(Exception):
    """What this process remembers is not what the database has: it must not go on.

    Attributes:
        failure: what whoever waits for a commit is told.
    """

    def __init__(self, failure: StoreError) -> None:
        super().__init__(str(failure))
        self.failure = failure


def sign_in(database: Database, role: str) -> None:
    """Note who works on the store from now on; whoever did so before can commit nothing more."""
    write_meta(database, f"process.{role}", os.urandom(8).hex())
    count = _count_of(read_meta(database, f"commits.{role}"))
    write_meta(database, f"commits.{role}", f"{count} {os.urandom(8).hex()}")


def _count_of(mark: str | None) -> int:
    return 0 if mark is None else int(mark.partition(" ")[0])


class News:
    """What a commit brought, for those who wait for it."""

    __slots__ = ("appended", "arrived", "dead", "held", "set_aside_in")

    def __init__(self, outbox: Outbox, queues: Queues, dead: DeadLetters) -> None:
        self.appended: list[tuple[str, OutPage]] = outbox.appended
        self.arrived: list[InPage] = queues.arrived
        self.set_aside_in: dict[str, None] = queues.set_aside_in
        self.held: dict[str, int] = queues.held
        self.dead: dict[str, int] = dead.held

    @property
    def is_none(self) -> bool:
        """Whether there is nothing that anybody waits for."""
        return not (self.appended or self.arrived or self.set_aside_in or self.held or self.dead)


class Ledger:
    """The tables, as one commit after the other changes them. Used by one thread."""

    def __init__(
        self, database: Database, store: bytes, owner: str, role: str, config: DurableQueuesConfig
    ) -> None:
        self.database = database
        self.owner = owner
        self.dead = DeadLetters(database)
        self.outbox = Outbox(database, store, config, self.dead)
        self.queues = Queues(database)
        self.streams = Streams(database, config, self.queues)
        self.now_ms = 0
        # Letters of this commit for this node itself.
        self._to_self: list[bytes] = []
        # Every process that writes counts its own commits.
        self.role = role
        self._counter = f"commits.{role}"
        self._process_key = f"process.{role}"
        self._process = read_meta(database, self._process_key)
        self._mark = read_meta(database, self._counter)
        # That of the commit under way.
        self._next_mark: str | None = None
        # With the number of an attempt it tells a commit from all others, also from those of a
        # copy that went its own way.
        self._source = os.urandom(8).hex()
        self._next_attempt = itertools.count().__next__
        self.commits = _count_of(self._mark)

    def begin(self, now_ms: int) -> None:
        """Begin a commit; raises Displaced if the database is not as the last one left it."""
        self.now_ms = now_ms
        mark = f"{self.commits + 1} {self._source}.{self._next_attempt()}"
        self._next_mark = mark
        parameters = (mark, self._counter, self._mark or "", _SCHEMA)
        self.database.begin()
        if not self.database.change(_MARK, parameters):
            raise Displaced(self._explain(self.database))

    def append(self, peer: str, encoded: bytes) -> None:
        """Add a letter for a peer."""
        self.append_all(peer, (encoded,))

    def append_all(self, peer: str, encoded: Sequence[bytes]) -> None:
        """Add letters for a peer; those to this node itself go straight into its queues."""
        if peer == self.owner:
            self._to_self.extend(encoded)
        else:
            self.outbox.append(peer, encoded)

    def append_pages(self, peer: str, pages: Iterable[tuple[int, bytes]]) -> None:
        """Add letters for a peer that are bound to pages already; each with their number."""
        for count, page in pages:
            if peer == self.owner:
                self._store_own(page)
            else:
                self.outbox.append_page(peer, count, page, self.now_ms)

    def _store_own(self, page: bytes) -> None:
        letters = decode_batch(page)
        self.queues.store_letters(self.owner, letters, 0, self.now_ms, page=page)

    def append_letter(self, peer: str, letter: StoredMessage) -> None:
        """Add one letter that exists already."""
        self.append(peer, encode_stored_message(letter))

    def seal(self) -> None:
        """Write what was gathered."""
        self.outbox.flush(self.now_ms)
        if self._to_self:
            for encoded in self.outbox.split(self._to_self):
                self._store_own(join_batch(encoded))
            self._to_self.clear()
        self.queues.flush()

    def has_happened(self, database: Database | None = None) -> bool:
        """Whether the commit that was begun last is in the database.

        Raises:
            Displaced: neither that one nor the one before it is the last there.
        """
        database = database or self.database
        try:
            mark = read_meta(database, self._counter)
            process = read_meta(database, self._process_key)
            is_known = mark is not None and mark in (self._mark, self._next_mark)
            if is_known and process == self._process:
                return mark == self._next_mark
            failure = self._explain(database)
        except StoreError:
            raise
        except Exception as error:
            raise Displaced(
                StoreMismatchError(f"the database has no tables of this store any more: {error}")
            ) from error
        raise Displaced(failure)

    def _explain(self, database: Database) -> StoreError:
        """Why this process cannot go on with what is in the database."""
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
        count = _count_of(read_meta(database, self._counter))
        if count < self.commits:
            state = f"is {self.commits - count} commits behind what this node committed"
        else:
            state = f"has a commit {count} that this node did not make"
        return StoreMismatchError(
            f"the database {state}: a fail-over or a restored copy has another history; start the "
            "node again, and it takes up what the database has"
        )

    def keep(self) -> News:
        """The commit happened."""
        self.commits += 1
        self._mark, self._next_mark = self._next_mark, None
        news = News(self.outbox, self.queues, self.dead)
        self.outbox.appended, self.dead.held = [], {}
        self.queues.keep()
        return news

    def roll_back(self) -> News | None:
        """Make ready for the next commit; what the last one brought if it happened after all."""
        self.database.rollback()
        return self._keep_or_forget()

    def _keep_or_forget(self) -> News | None:
        if self.has_happened():
            return self.keep()
        self.forget()
        return None

    def connect_again(self, backend: Backend) -> News | None:
        """Go on with another connection; what the last commit brought if it happened after all."""
        close_quietly(self.database)
        try:
            database = backend.connect()
        except StoreLockedError:
            # By what is left of the last connection, or by whoever came after this process.
            self._check_from_beside(backend)
            raise
        self.database = database
        for part in (self.dead, self.outbox, self.queues, self.streams):
            part.database = database
        return self._keep_or_forget()

    def _check_from_beside(self, backend: Backend) -> None:
        reader = backend.connect_reader()
        try:
            self.has_happened(reader)
        finally:
            close_quietly(reader)

    def forget(self) -> None:
        """The commit did not happen."""
        self._next_mark = None
        self._to_self.clear()
        self.dead.held.clear()
        self.outbox.forget()
        self.queues.forget()
        self.streams.forget()
