"""One cache in Redis for nodes in both languages."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from postroad.services import Broker, Cache, Context, RedisStore, Service, action
from tests.support.deadlines import DEADLINE_S
from tests.support.servers.redis import fresh_key, shared_redis
from tests.support.services.javascript import HERE, find_program


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


class JavaScript:
    """A node of the original system with the same service."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def call(self, action: str, params: Any, meta: Any = None) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([action, params, meta or {}]).encode() + b"\n")
        async with asyncio.timeout(DEADLINE_S):
            return json.loads(await self._process.stdout.readline())


@asynccontextmanager
async def both(modules: Path) -> AsyncIterator[tuple[Broker, JavaScript]]:
    """A node in each language, with one cache."""
    url, namespace = shared_redis().url, fresh_key()
    process = await asyncio.create_subprocess_exec(
        *(find_program("node"), str(HERE / "cacher.js"), url, namespace),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"NODE_PATH": str(modules)},
    )
    broker = Broker("py", namespace=namespace, caching=Cache(RedisStore(url), keys="moleculer"))
    broker.add(Posts())
    try:
        async with broker:
            yield broker, JavaScript(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(DEADLINE_S):
            await process.wait()


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
        assert await javascript.call("posts.get", {"id": 1, "x": 1}, meta) == by_javascript
        assert await python.call("posts.get", {"id": 1, "x": 2}, meta=meta) == by_javascript
        assert await python.call("posts.get", {"id": 1}) == by_python
        assert await javascript.call("posts.get", {"id": 1}) == by_python

        # Either cleans for both.
        await javascript.call("clean", "posts.find*")
        assert await python.call("posts.find", {"id": 5}) == {"py": last + 2}
        assert await python.call("posts.get", {"id": 1}) == by_python
        await python.cache.clean("posts.get")
        assert await javascript.call("posts.get", {"id": 1}) == {"js": last + 2}
        assert await javascript.call("posts.find", {"id": 5}) == {"py": last + 2}
