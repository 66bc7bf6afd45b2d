"""Those who want to know what commits bring. All of them hear of it on the event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVarTuple

from .ledger import News
from .rows import InPage

logger = logging.getLogger("postroad.durable")

Ts = TypeVarTuple("Ts")
Pages: TypeAlias = Sequence[InPage]


class Audience:
    """Passes on what happened; a listener that fails harms no other."""

    def __init__(self) -> None:
        self._on_news: list[Callable[[News], None]] = []
        self._on_arriving: list[Callable[[InPage], None]] = []
        self._on_withdrawn: list[Callable[[Pages], None]] = []
        self._on_reconnected: list[Callable[[], None]] = []

    def add(self, on_news: Callable[[News], None]) -> None:
        """Have a function called with what each commit brought."""
        self._on_news.append(on_news)

    def remove(self, on_news: Callable[[News], None]) -> None:
        """Call a function no more; it may be gone already."""
        if on_news in self._on_news:
            self._on_news.remove(on_news)

    def add_early(
        self, on_arriving: Callable[[InPage], None], on_withdrawn: Callable[[Pages], None]
    ) -> None:
        """Have functions called with a page whose commit is under way, and with those whose fails.

        Such pages are real already, because whoever sent them keeps them until they are committed
        here. They may be handled: what follows from that is committed after them or not at all.
        """
        self._on_arriving.append(on_arriving)
        self._on_withdrawn.append(on_withdrawn)

    def add_reconnected(self, on_reconnected: Callable[[], None]) -> None:
        """Have a function called when the database is reached again after it was lost."""
        self._on_reconnected.append(on_reconnected)

    def on_news(self, news: News) -> None:
        _tell(self._on_news, news)

    def on_arriving(self, page: InPage) -> None:
        _tell(self._on_arriving, page)

    def on_withdrawn(self, pages: Pages) -> None:
        _tell(self._on_withdrawn, pages)

    def on_reconnected(self) -> None:
        _tell(self._on_reconnected)


def _tell(listeners: Sequence[Callable[[*Ts], None]], *news: *Ts) -> None:
    for listener in tuple(listeners):
        try:
            listener(*news)
        except Exception:
            logger.exception("%r could not be told what a commit brought", listener)
