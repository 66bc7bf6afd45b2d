"""Results of operations that somebody watches.

However many watch the same, it is asked for once, and only while somebody does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from postroad.admin.problems import problem_of

from .answers import encode
from .calling import Desk
from .wishes import Wish

logger = logging.getLogger("postroad.admin")

INTERVAL_S = 0.5

Key: TypeAlias = tuple[str, str | None, bytes]


class Watcher:
    """Somebody who watches: keeps the newest of each result that was not sent yet.

    So one who reads slowly misses some, and never holds more than one of each.
    """

    def __init__(self) -> None:
        self._news: dict[Key, bytes] = {}
        self._wake = asyncio.Event()
        self.is_ended = False

    def tell(self, key: Key, event: bytes) -> None:
        """There is a new result."""
        # What is told last shall be sent last.
        self._news.pop(key, None)
        self._news[key] = event
        self._wake.set()

    def end(self) -> None:
        """There will be no more."""
        self.is_ended = True
        self._wake.set()

    async def wait(self, timeout_s: float) -> bytes:
        """What is new, or nothing if nothing was in this time or it has ended."""
        if not self._news and not self.is_ended:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            except TimeoutError:
                return b""
        self._wake.clear()
        events = b"".join(self._news.values())
        self._news.clear()
        return events


class _Topic:
    """One wish that is watched."""

    def __init__(self, key: Key, wish: Wish) -> None:
        self.key = key
        self.wish = wish
        self.watchers: set[Watcher] = set()
        self.last: bytes | None = None
        self.polling: asyncio.Task[None] | None = None


class Watch:
    """Everything that is being watched."""

    def __init__(self, desk: Desk, interval_s: float = INTERVAL_S) -> None:
        self._desk = desk
        self._interval_s = interval_s
        self._topics: dict[Key, _Topic] = {}
        self._watchers: set[Watcher] = set()
        self._is_closed = False

    @property
    def polled(self) -> int:
        """How many different wishes are asked for."""
        return len(self._topics)

    @property
    def watchers(self) -> int:
        """How many watch."""
        return len(self._watchers)

    def join(self, wishes: Iterable[Wish]) -> Watcher:
        """Watch from now on; the results as they are come first."""
        watcher = Watcher()
        if self._is_closed:
            watcher.end()
            return watcher
        self._watchers.add(watcher)
        for wish in wishes:
            key = _key(wish)
            topic = self._topics.get(key)
            if topic is None:
                topic = self._topics[key] = _Topic(key, wish)
                topic.polling = asyncio.create_task(self._poll(topic), name=f"watch {key[0]}")
            topic.watchers.add(watcher)
            if topic.last is not None:
                watcher.tell(key, topic.last)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Watch no more."""
        self._watchers.discard(watcher)
        for topic in [*self._topics.values()]:
            topic.watchers.discard(watcher)
            if not topic.watchers:
                del self._topics[topic.key]
                assert topic.polling is not None
                topic.polling.cancel()

    def close(self) -> None:
        """End it for everybody."""
        self._is_closed = True
        for watcher in [*self._watchers]:
            watcher.end()
            self.leave(watcher)

    async def _poll(self, topic: _Topic) -> None:
        while True:
            event = await self._look(topic.wish)
            if event != topic.last:
                topic.last = event
                for watcher in topic.watchers:
                    watcher.tell(topic.key, event)
            await asyncio.sleep(self._interval_s)

    async def _look(self, wish: Wish) -> bytes:
        name = wish.operation.name
        try:
            return _event(name, encode(await self._desk.fulfil(wish)))
        except Exception as error:
            told = msgspec.to_builtins(problem_of(error))
            return _event("problem", encode({"operation": name, **told}))


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def _key(wish: Wish) -> Key:
    said: dict[str, Any] = msgspec.structs.asdict(wish.params)
    return wish.operation.name, wish.node, msgspec.msgpack.encode(said)
