"""Stretches of a queue: letters that one reader takes out together once it is done with them.

A stretch is plain data that can be kept anywhere. It stands for the same letters until they are
taken out. The numbers of pages begin anew when a store without any is opened, and a queue can be
purged meanwhile; so a stretch knows until when its letters were received, and is never taken for
others that came later.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from postroad.durable.stored_messages import StoredMessage, decode_batch, decode_stored_message

from .database import Database
from .seals import unseal


class PageStretch(msgspec.Struct, frozen=True, tag="pages"):
    """Pages in a row, or some letters of one page."""

    queue: int
    first: int
    last: int
    received_ms: int
    start: int = 0
    """Index of the first letter, in its only page."""
    stop: int | None = None
    """Index behind the last one; None if it has all letters of its pages."""


class AsideStretch(msgspec.Struct, frozen=True, tag="asides"):
    """Letters that were set aside."""

    queue: int
    ids: list[int]
    received_ms: int


Stretch: TypeAlias = PageStretch | AsideStretch
Bundle: TypeAlias = tuple[str, list[StoredMessage]]
"""A sender, and letters of it that are in a row."""


def read_stretch(database: Database, stretch: Stretch) -> list[Bundle]:
    """The letters of a stretch, in order; none if they were taken out or purged."""
    if isinstance(stretch, PageStretch):
        return _read_pages(database, stretch)
    return _read_asides(database, stretch)


def _read_pages(database: Database, stretch: PageStretch) -> list[Bundle]:
    rows = database.execute(
        "SELECT sender, letters, done FROM postroad_inbox"
        " WHERE queue = ? AND id BETWEEN ? AND ? AND received_ms <= ? ORDER BY id",
        (stretch.queue, stretch.first, stretch.last, stretch.received_ms),
    )
    return [
        (
            sender,
            unfinished(
                decode_batch(unseal(bytes(letters))),
                0 if done is None else int.from_bytes(done),
                stretch.start,
                stretch.stop,
            ),
        )
        for sender, letters, done in rows
    ]


def unfinished(
    letters: list[StoredMessage], done: int, start: int = 0, stop: int | None = None
) -> list[StoredMessage]:
    """Those letters of a page, from one index to another, that are not done with."""
    if not done:
        return letters if start == 0 and stop is None else letters[start:stop]
    selected = enumerate(letters[start:stop], start)
    return [letter for index, letter in selected if not done >> index & 1]


def _read_asides(database: Database, stretch: AsideStretch) -> list[Bundle]:
    bundles: list[Bundle] = []
    for id in stretch.ids:
        rows = database.execute(
            "SELECT sender, letter FROM postroad_aside"
            " WHERE id = ? AND queue = ? AND received_ms <= ?",
            (id, stretch.queue, stretch.received_ms),
        )
        bundles += (
            (sender, [decode_stored_message(unseal(bytes(letter)))]) for sender, letter in rows
        )
    return bundles


def last_page(database: Database, stretch: PageStretch) -> int | None:
    """The last page of a stretch that is there; None if none is."""
    rows = database.execute(
        "SELECT MAX(id) FROM postroad_inbox"
        " WHERE queue = ? AND id BETWEEN ? AND ? AND received_ms <= ?",
        (stretch.queue, stretch.first, stretch.last, stretch.received_ms),
    )
    return None if rows[0][0] is None else int(rows[0][0])


def bits_between(start: int, stop: int) -> int:
    """A bit for each letter from one index to another."""
    return (1 << stop) - (1 << start)
