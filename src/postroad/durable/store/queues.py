"""Letters in this node's queues: pages in the order of arrival, and letters set aside.

Everything here runs inside the transaction of a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from postroad.durable.stored_messages import (
    NEVER_MS,
    StoredMessage,
    encode_batch,
    encode_stored_message,
)

from .database import Database
from .queries import count_pending, sizes_by_sender
from .rows import AsideLetter, InPage
from .seals import seal
from .stretches import PageStretch, Stretch, bits_between
from .texts import storable

_NUMBERED = ("postroad_inbox", "postroad_aside", "postroad_queues", "postroad_streams")


class Queues:
    """Adds to and removes from the queues of a store."""

    def __init__(self, database: Database) -> None:
        self.database = database
        # As the next commit will leave them; forgotten when one fails.
        self._ids: dict[str, int] | None = None
        # Read before anything is deleted and never forgotten: no number is used again while this
        # process lives, because those who read the tables remember how far they have come.
        self._next_ids = {table: _first_free_id(database, table) for table in _NUMBERED}
        # Pages that changed in this commit, with what they were before.
        self._changed: dict[int, tuple[InPage, int]] = {}
        # Told of pages as soon as it is known that they will be written.
        self.on_arriving: Callable[[InPage], None] = lambda page: None
        # For whoever waits for it: what is new in this commit, and by how many bytes each sender
        # has more or less here.
        self.arrived: list[InPage] = []
        self.set_aside_in: dict[str, None] = {}
        self.held: dict[str, int] = {}

    # Names and numbers.

    def queue_id(self, name: str) -> int:
        """The number of a queue, opened if it is new."""
        queues = self.ids()
        id = queues.get(name)
        if id is None:
            id = queues[name] = self.next_id("postroad_queues")
            self.database.execute(
                "INSERT INTO postroad_queues (id, name, is_paused) VALUES (?, ?, 0)", (id, name)
            )
        return id

    def ids(self) -> dict[str, int]:
        """The numbers of all queues."""
        if self._ids is None:
            rows = self.database.execute("SELECT name, id FROM postroad_queues")
            self._ids = dict(rows)
        return self._ids

    def next_id(self, table: str) -> int:
        """A number for a new row."""
        id = self._next_ids[table]
        self._next_ids[table] = id + 1
        return id

    def store_letters(
        self,
        sender: str,
        letters: Sequence[StoredMessage],
        ahead_ms: int,
        now_ms: int,
        *,
        page: bytes | None = None,
        is_early: bool = False,
    ) -> None:
        """Put letters into their queues.

        Args:
            sender: the node they came from.
            letters: in order.
            ahead_ms: by how much this node's clock is ahead of the sender's.
            now_ms: the time.
            page: what they came in, if all of them did.
            is_early: whether they may be told of before they are committed.
        """
        by_queue: dict[str, list[StoredMessage]] = {}
        for letter in letters:
            if letter.is_fifo:
                by_queue.setdefault(letter.queue, []).append(letter)
            else:
                self._set_aside_new(sender, letter, ahead_ms, now_ms)
        for together in by_queue.values():
            is_whole = page is not None and len(together) == len(letters)
            data = page if is_whole and page is not None else encode_batch(together)
            arrived = self.page_of(sender, together, len(data), ahead_ms, now_ms)
            if is_early:
                self.on_arriving(arrived)
            self.store_page(arrived, data)

    def knows(self, queue: str) -> bool:
        """Whether memory has the number of a queue."""
        return self._ids is not None and queue in self._ids

    def page_of(
        self, sender: str, letters: list[StoredMessage], size: int, ahead_ms: int, now_ms: int
    ) -> InPage:
        """A new page of letters that are all for one queue."""
        id = self.next_id("postroad_inbox")
        return InPage(id, letters[0].queue, sender, letters, size, ahead_ms, now_ms)

    def store_page(self, page: InPage, data: bytes) -> None:
        """Write a page, whose letters these bytes are."""
        self.database.execute(
            "INSERT INTO postroad_inbox"
            " (id, queue, sender, size, pending, received_ms, ahead_ms, letters)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                page.id,
                self.queue_id(page.queue),
                page.sender,
                page.size,
                len(page.letters),
                page.received_ms,
                page.ahead_ms,
                seal(data),
            ),
        )
        self.arrived.append(page)
        self._count(page.sender, page.size)

    # Handling.

    def finish(self, page: InPage, letters: int) -> None:
        """Letters of a page are done with, each of them a bit."""
        if page.id not in self._changed:
            self._changed[page.id] = (page, page.done)
        page.done |= letters

    def confirm(self, page: InPage) -> int | None:
        """Correct a page in memory by what is stored; the bits of what is done with there.

        None if the store does not have it any more.
        """
        rows = self.database.execute(
            "SELECT done FROM postroad_inbox WHERE id = ? AND received_ms = ?",
            (page.id, page.received_ms),
        )
        if not rows:
            return None
        stored = 0 if rows[0][0] is None else int.from_bytes(rows[0][0])
        _, before = self._changed.get(page.id, (page, page.done))
        # What this commit did with it is kept.
        new = page.done & ~before
        page.done = stored | new
        if new:
            self._changed[page.id] = (page, stored)
        return page.done

    def confirm_aside(self, aside: AsideLetter) -> bool:
        """Correct a letter set aside by what is stored; False if it is not there any more."""
        rows = self.database.execute(
            "SELECT holds_key, failures FROM postroad_aside WHERE id = ? AND received_ms = ?",
            (aside.id, aside.received_ms),
        )
        for holds_key, failures in rows:
            aside.holds_key, aside.failures = bool(holds_key), failures
        return bool(rows)

    def finish_aside(self, aside: AsideLetter, now_ms: int) -> None:
        """A letter set aside is done with; the next one of its key may go."""
        for (size,) in self.database.execute(
            "DELETE FROM postroad_aside WHERE id = ? RETURNING LENGTH(letter)", (aside.id,)
        ):
            self._count(aside.sender, -size)
        if aside.holds_key:
            self._wake_first(self.queue_id(aside.queue), aside.letter.key, now_ms)
            self.set_aside_in[aside.queue] = None

    def _set_aside_new(
        self, sender: str, letter: StoredMessage, ahead_ms: int, now_ms: int
    ) -> None:
        due_ms = letter.deliver_at_ms + ahead_ms if letter.deliver_at_ms else now_ms
        self.set_aside(
            AsideLetter(0, letter.queue, sender, letter, due_ms, False, 0, ahead_ms, now_ms)
        )

    def set_aside(self, aside: AsideLetter) -> None:
        """Keep a letter by itself, to have its turn when it is due."""
        aside.id = self.next_id("postroad_aside")
        letter, data = aside.letter, seal(encode_stored_message(aside.letter))
        self.database.execute(
            "INSERT INTO postroad_aside (id, queue, sender, key, priority, due_ms, holds_key,"
            " failures, error, received_ms, ahead_ms, letter)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                aside.id,
                self.queue_id(aside.queue),
                aside.sender,
                letter.key,
                letter.priority,
                aside.due_ms,
                int(aside.holds_key),
                aside.failures,
                storable(aside.error),
                aside.received_ms,
                aside.ahead_ms,
                data,
            ),
        )
        self._count(aside.sender, len(data))
        self._ensure_head(aside)
        self.set_aside_in[aside.queue] = None

    def postpone(self, aside: AsideLetter) -> None:
        """Write down that a letter set aside waits again."""
        self.database.execute(
            "UPDATE postroad_aside SET due_ms = ?, holds_key = ?, failures = ?, error = ?"
            " WHERE id = ?",
            (
                aside.due_ms,
                int(aside.holds_key),
                aside.failures,
                storable(aside.error),
                aside.id,
            ),
        )
        self._ensure_head(aside)
        self.set_aside_in[aside.queue] = None

    def _ensure_head(self, aside: AsideLetter) -> None:
        """If no letter of a key is on its way that others of it wait for, the first one goes."""
        if aside.due_ms < NEVER_MS:
            return
        queue, key = self.queue_id(aside.queue), aside.letter.key
        rows = self.database.execute(
            "SELECT 1 FROM postroad_aside WHERE queue = ? AND key = ? AND holds_key = 1"
            " AND due_ms < ? LIMIT 1",
            (queue, key, NEVER_MS),
        )
        if not rows:
            self._wake_first(queue, key, 0)

    def _wake_first(self, queue: int, key: str | None, due_ms: int) -> None:
        self.database.execute(
            "UPDATE postroad_aside SET due_ms = ? WHERE id = (SELECT MIN(id) FROM"
            " postroad_aside WHERE queue = ? AND key = ? AND holds_key = 1)",
            (due_ms, queue, key),
        )

    def release_forgotten(self, queue: str) -> None:
        """Let the first letter of each key go that waits for one that is not there."""
        self.database.execute(
            "UPDATE postroad_aside SET due_ms = 0 WHERE id IN (SELECT MIN(id) FROM postroad_aside"
            " WHERE queue = ? AND holds_key = 1 GROUP BY key HAVING MIN(due_ms) >= ?)",
            (self.queue_id(queue), NEVER_MS),
        )

    def pause(self, queue: str, is_paused: bool) -> None:
        """Write down whether the consumers of a queue shall rest."""
        self.database.execute(
            "UPDATE postroad_queues SET is_paused = ? WHERE id = ?",
            (int(is_paused), self.queue_id(queue)),
        )

    def release_held(self, queue: str) -> None:
        """Let all letters go that wait for others of their key: order does not matter any more."""
        self.database.execute(
            "UPDATE postroad_aside SET holds_key = 0,"
            " due_ms = CASE WHEN due_ms >= ? THEN 0 ELSE due_ms END"
            " WHERE queue = ? AND holds_key = 1",
            (NEVER_MS, self.queue_id(queue)),
        )

    # Stretches, for those who have a queue for themselves.

    def take_out(self, stretch: Stretch) -> None:
        """The letters of a stretch are done with, as far as they are there."""
        if not isinstance(stretch, PageStretch):
            for id in stretch.ids:
                self._delete(
                    "DELETE FROM postroad_aside WHERE id = ? AND queue = ? AND received_ms <= ?"
                    " RETURNING sender, LENGTH(letter)",
                    (id, stretch.queue, stretch.received_ms),
                )
        elif stretch.stop is not None:
            bits = bits_between(stretch.start, stretch.stop)
            self.finish_some(stretch.queue, stretch.first, stretch.received_ms, bits)
        else:
            self._delete(
                "DELETE FROM postroad_inbox WHERE queue = ? AND id BETWEEN ? AND ?"
                " AND received_ms <= ? RETURNING sender, size",
                (stretch.queue, stretch.first, stretch.last, stretch.received_ms),
            )

    def finish_some(self, queue: int, page: int, received_ms: int, bits: int) -> bool:
        """Some letters of a page are done with; False if it is not there any more.

        Goes by what is stored, and not by a page in memory as `finish` does.
        """
        rows = self.database.execute(
            "SELECT pending, done FROM postroad_inbox"
            " WHERE id = ? AND queue = ? AND received_ms <= ?",
            (page, queue, received_ms),
        )
        for pending, data in rows:
            before = 0 if data is None else int.from_bytes(data)
            done = before | bits
            remaining = pending + before.bit_count() - done.bit_count()
            if remaining:
                self.database.execute(
                    "UPDATE postroad_inbox SET done = ?, pending = ? WHERE id = ?",
                    (done.to_bytes((done.bit_length() + 7) // 8), remaining, page),
                )
            else:
                self._delete(
                    "DELETE FROM postroad_inbox WHERE id = ? RETURNING sender, size", (page,)
                )
        return bool(rows)

    def _delete(self, statement: str, parameters: Sequence[object]) -> None:
        for sender, size in self.database.execute(statement, parameters):
            self._count(sender, -size)

    def purge(self, queue: str) -> int:
        """Remove everything from a queue; returns how many messages that were."""
        id = self.queue_id(queue)
        for sender, size in sizes_by_sender(self.database, id).items():
            self._count(sender, -size)
        count = count_pending(self.database, id)
        self.database.execute("DELETE FROM postroad_inbox WHERE queue = ?", (id,))
        self.database.execute("DELETE FROM postroad_aside WHERE queue = ?", (id,))
        return count

    def _count(self, sender: str, size: int) -> None:
        self.held[sender] = self.held.get(sender, 0) + size

    # The end of a commit.

    def flush(self) -> None:
        """Write down which letters of which pages are done with."""
        for page, _ in self._changed.values():
            pending = page.pending
            if pending:
                self.database.execute(
                    "UPDATE postroad_inbox SET done = ?, pending = ? WHERE id = ?",
                    (page.done.to_bytes((len(page.letters) + 7) // 8), pending, page.id),
                )
            else:
                # It may be gone already, if the queue was purged.
                for (size,) in self.database.execute(
                    "DELETE FROM postroad_inbox WHERE id = ? RETURNING size", (page.id,)
                ):
                    self._count(page.sender, -size)

    def keep(self) -> None:
        """The commit happened, and what it brought was taken."""
        self._changed.clear()
        self.arrived, self.set_aside_in, self.held = [], {}, {}

    def forget(self) -> None:
        """Drop what is only in memory: the commit failed."""
        for page, done in self._changed.values():
            page.done = done
        self._changed.clear()
        self._ids = None
        self.arrived.clear()
        self.set_aside_in.clear()
        self.held.clear()


def _first_free_id(database: Database, table: str) -> int:
    return int(database.execute(f"SELECT COALESCE(MAX(id), 0) + 1 FROM {table}")[0][0])
