"""Everything a commit may change, in one place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from postroad.core.errors import StoreLocked
from postroad.durable.config import MailConfig
from postroad.durable.letters import Letter, bind_page, decode_page, encode_letter

from .database import Database
from .dead import DeadLetters
from .outbox import Outbox
from .queues import Queues
from .rows import InPage, OutPage
from .schema import read_meta, write_meta
from .streams import Streams


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
        self, database: Database, store: bytes, owner: str, role: str, config: MailConfig
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
        self._counter = f"commits.{role}"
        self._process_key = f"process.{role}"
        self._process = read_meta(database, self._process_key)
        self.commits = int(read_meta(database, self._counter) or 0)

    def begin(self, now_ms: int) -> None:
        """Begin a commit."""
        self.now_ms = now_ms
        self.database.begin()

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
        letters = decode_page(page)
        self.queues.store_letters(self.owner, letters, 0, self.now_ms, page=page)

    def append_letter(self, peer: str, letter: Letter) -> None:
        """Add one letter that exists already."""
        self.append(peer, encode_letter(letter))

    def seal(self) -> None:
        """Write what was gathered, and the number that tells whether this commit happened."""
        self.outbox.flush(self.now_ms)
        if self._to_self:
            for encoded in self.outbox.split(self._to_self):
                self._store_own(bind_page(encoded))
            self._to_self.clear()
        self.queues.flush()
        write_meta(self.database, self._counter, str(self.commits + 1))

    def has_happened(self) -> bool:
        """Whether the commit that was sealed last is in the database."""
        return int(read_meta(self.database, self._counter) or 0) == self.commits + 1

    def check_alone(self) -> None:
        """Raise StoreLocked if another process has opened the store in this role since."""
        if read_meta(self.database, self._process_key) != self._process:
            raise StoreLocked(
                "another process has worked on the store meanwhile; start this one again"
            )

    def keep(self) -> News:
        """The commit happened."""
        self.commits += 1
        news = News(self.outbox, self.queues, self.dead)
        self.outbox.appended, self.dead.held = [], {}
        self.queues.keep()
        return news

    def reconnect(self, database: Database) -> None:
        """Go on with another connection."""
        self.database = database
        for part in (self.dead, self.outbox, self.queues, self.streams):
            part.database = database

    def forget(self) -> None:
        """The commit did not happen."""
        self._to_self.clear()
        self.dead.held.clear()
        self.outbox.forget()
        self.queues.forget()
        self.streams.forget()
