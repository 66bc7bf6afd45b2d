"""One cache in Redis for nodes in both languages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from postroad.services import Broker, Cache, Context, RedisStore, Service, action
from tests.interop.services.javascript_node import JavascriptNode
from tests.support.deadlines import DEADLINE_S
from tests.support.servers.redis import fresh_key, shared_redis


class Posts(Service):
    name = "posts"

    def __init__(self) -> None:
        self.runs = 0

    @action(cache=True)
    def find(self, ctx: Context) -> Any:
        self.runs += 1
        return {"py": self.runs}

    @action(cache=["id", "#user"])
    def get(self, ctx: Context) -> Any:
        self.runs += 1
        return {"py": self.runs}


@asynccontextmanager
async def both(modules: Path) -> AsyncIterator[tuple[Broker, JavascriptNode]]:
    """A node in each language, with the same service and one cache."""
    url, namespace = shared_redis().url, fresh_key()
    cacher = {"type": "Redis", "options": {"redis": url}}
    javascript = await JavascriptNode.spawn(modules, {"namespace": namespace, "cacher": cacher})
    # A call that Redis keeps waiting for long would do without it.
    cache = Cache(RedisStore(url, wait_s=DEADLINE_S), keys="moleculer")
    broker = Broker("py", namespace=namespace, caching=cache, request_timeout_s=10 * DEADLINE_S)
    broker.add(Posts())
    try:
        await javascript.ask("start")
        async with broker:
            yield broker, javascript
    finally:
        await javascript.close()


PARAMS: list[Any] = [
    {},
    {"id": 5},
    {"id": 5, "q": "a.b", "n": None, "is": True},
    {"b": 1, "a": {"c": [1, 2.5, "x"], "d": {}}},
    {"2": "two", "10": "ten", "x": -0.5},
    {"text": 'ünï|"code"', "none": []},
]


async def test_results_that_one_keeps_are_found_by_the_other(modules: Path) -> None:
    async with both(modules) as (python, javascript):
        for count, params in enumerate(PARAMS, 1):
            assert await python.call("posts.find", params) == {"py": count}
            assert await javascript.call("posts.find", params) == {"py": count}
        for count, params in enumerate(PARAMS, 1):
            other = {**params, "other": True}
            assert await javascript.call("posts.find", other) == {"js": count}
            assert await python.call("posts.find", other) == {"js": count}

        # Keys are made of some params, and of meta.
        meta = {"user": "ann"}
        last = len(PARAMS)
        by_javascript, by_python = {"js": last + 1}, {"py": last + 1}
        assert await javascript.call("posts.get", {"id": 1, "x": 1}, meta=meta) == by_javascript
        assert await python.call("posts.get", {"id": 1, "x": 2}, meta=meta) == by_javascript
        assert await python.call("posts.get", {"id": 1}) == by_python
        assert await javascript.call("posts.get", {"id": 1}) == by_python

        # Either cleans for both.
        await javascript.ask("clean", pattern="posts.find*")
        assert await python.call("posts.find", {"id": 5}) == {"py": last + 2}
        assert await python.call("posts.get", {"id": 1}) == by_python
        await python.cache.clean("posts.get")
        assert await javascript.call("posts.get", {"id": 1}) == {"js": last + 2}
        assert await javascript.call("posts.find", {"id": 5}) == {"py": last + 2}
