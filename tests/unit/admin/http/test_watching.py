"""Watchers that read slowly hold the newest of each, and no more."""

import asyncio

from postroad.admin.http.watching import Key, Watcher

ONE: Key = ("queue.ls", None, b"")
OTHER: Key = ("flow.ls", None, b"")


async def test_watcher_keeps_the_newest_of_each() -> None:
    watcher = Watcher()
    for number in range(1000):
        watcher.tell(ONE, b"a%d;" % number)
    watcher.tell(OTHER, b"b;")
    watcher.tell(ONE, b"last;")
    assert await watcher.wait(1.0) == b"b;last;"
    assert await Watcher().wait(0.001) == b""


async def test_news_or_the_end_wake_whoever_waits() -> None:
    watcher = Watcher()
    waiting = asyncio.create_task(watcher.wait(60.0))
    await asyncio.sleep(0)
    watcher.tell(ONE, b"a;")
    assert await waiting == b"a;"
    watcher = Watcher()
    waiting = asyncio.create_task(watcher.wait(60.0))
    await asyncio.sleep(0)
    watcher.end()
    assert await waiting == b""
    assert watcher.is_ended
