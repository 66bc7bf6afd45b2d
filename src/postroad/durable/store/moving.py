"""Moving letters from one queue of a node to another, inside a commit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from typing import NamedTuple

import msgspec

from postroad.durable.stored_messages import NEVER_MS, StoredMessage

from .ledger import Ledger
from .queries import list_queues, read_aside, read_inbox
from .rows import AsideLetter, InPage

_PAGES_AT_ONCE = 8
_BYTES_MAX = 1024 * 1024


class _Found(NamedTuple):
    """A letter, and where it is."""

    place: InPage | AsideLetter
    bit: int
    letter: StoredMessage

    @property
    def origin(self) -> tuple[str, int]:
        """Who sent it, and by how much this node's clock was ahead then."""
        return self.place.sender, self.place.ahead_ms


def move_letters(ledger: Ledger, queue: str, to: str, limit: int) -> int:
    """Put some letters of a queue into another one, as if they were new; 0 if there are none.

    Letters set aside come first: those of their key that are not must stay behind them.
    """
    id, _ = list_queues(ledger.database).get(queue, (0, False))
    located = [*_first(_letters_of(ledger, queue, id, limit), limit)]
    for (sender, ahead_ms), group in groupby(located, lambda message: message.origin):
        letters = [msgspec.structs.replace(message.letter, queue=to) for message in group]
        ledger.queues.store_letters(sender, letters, ahead_ms, ledger.now_ms)
    done: dict[int, int] = {}
    pages = [
        (message.place, message.bit) for message in located if isinstance(message.place, InPage)
    ]
    for page, bit in pages:
        done[page.id] = done.get(page.id, 0) | bit
    for page in {page.id: page for page, _ in pages}.values():
        ledger.queues.finish_some(id, page.id, page.received_ms, done[page.id])
    for message in located:
        if isinstance(message.place, AsideLetter):
            # Whatever waits for it in its queue is moved too, or waits for nobody any more.
            ledger.queues.finish_aside(message.place, ledger.now_ms)
    return len(located)


def _first(letters: Iterator[_Found], limit: int) -> Iterator[_Found]:
    """As many as make a page that is not too large, one at least."""
    size = 0
    for message in islice(letters, limit):
        yield message
        size += len(message.letter.body)
        if size >= _BYTES_MAX:
            return


def _letters_of(ledger: Ledger, queue: str, id: int, limit: int) -> Iterator[_Found]:
    aside = read_aside(ledger.database, queue, id, NEVER_MS, NEVER_MS, limit)
    for message in sorted(aside, key=lambda message: message.id):
        yield _Found(message, 0, message.letter)
    after = 0
    while pages := read_inbox(ledger.database, queue, id, after, _PAGES_AT_ONCE):
        after = pages[-1].id
        for page in pages:
            for index, letter in enumerate(page.letters):
                if not page.done >> index & 1:
                    yield _Found(page, 1 << index, letter)
