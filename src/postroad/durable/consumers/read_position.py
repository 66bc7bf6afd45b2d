"""How far the batches of one queue are loaded. Pure: ids come in, decisions come out.

Batches have rising ids. They get into memory in three ways: read from the store, announced when
they are committed, or, sooner, announced before their commit. In each way, none may be added before
one with a lower id, which would never be loaded then.
"""

from __future__ import annotations

from collections.abc import Sequence


class ReadPosition:
    """The last batch in memory, and what is known of later ones."""

    __slots__ = ("_is_read_whole", "_newest", "_skipped", "position")

    def __init__(self) -> None:
        self.position = 0
        # The last batch that is known to be in the store.
        self._newest = 0
        # The last batch that was not loaded before its commit.
        self._skipped = 0
        self._is_read_whole = False

    @property
    def has_more(self) -> bool:
        """Whether the store may have batches that are not in memory."""
        return not self._is_read_whole or self.position < self._newest

    def on_loaded(self, batches: Sequence[int], *, is_end: bool) -> None:
        """Advance after batches were read; `is_end` if there were no more."""
        self._is_read_whole = is_end
        if batches:
            self.position = batches[-1]

    def on_committed(self, batch: int, *, has_capacity: bool) -> bool:
        """Return whether to load a batch that was committed."""
        if batch <= self.position:
            # It was read, or loaded before its commit was done.
            return False
        is_loaded = has_capacity and not self.has_more
        self._newest = max(self._newest, batch)
        if is_loaded:
            self.position = batch
        return is_loaded

    def on_precommit(self, batch: int, *, has_capacity: bool) -> bool:
        """Return whether to load a batch before its commit is done."""
        if has_capacity and not self.has_more and self._skipped <= self._newest:
            self.position = self._newest = batch
            return True
        self._skipped = batch
        return False

    def reset(self) -> None:
        """Start over with nothing in memory."""
        # Not `_skipped`: the commit of that batch may not be done.
        self.position = self._newest = 0
        self._is_read_whole = False
