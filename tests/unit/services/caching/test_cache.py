"""Caches: what is kept, for whom, how long, and what happens when the store does not answer."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from postroad.core.errors import ConfigError
from postroad.services.broker import Broker
from postroad.services.caching import (
    MISSING,
    Cache,
    CacheStore,
    MemoryStore,
    RedisStore,
    make_cache,
)
from postroad.services.caching.store import fits
from postroad.services.context import Context
from postroad.services.schema import ActionInfo
from postroad.services.service import CacheOptions
from tests.support.cases import each, naming
from tests.support.deadlines import DEADLINE_S

FIND = ActionInfo(name="posts.find", raw_name="find")

Action = Callable[[Context], Awaitable[Any]]


class Counted:
    """An action that counts how often it runs, and can be held up."""

    def __init__(self, *results: Any) -> None:
        self.runs = 0
        self.results = list(results)
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, ctx: Context) -> Any:
        self.runs += 1
        run = self.runs
        await self.gate.wait()
        result = self.results[min(run, len(self.results)) - 1] if self.results else [run]
        if isinstance(result, Exception):
            raise result
        return result


class Broken(CacheStore):
    """A store that never answers, or fails at once."""

    def __init__(self, *, wait_s: float | None = None) -> None:
        self.wait_s = wait_s
        self.asked = 0

    async def _answer(self) -> Any:
        self.asked += 1
        if self.wait_s is None:
            raise ConnectionError("the server is gone")
        await asyncio.Event().wait()

    async def get(self, key: str) -> Any:
        return await self._answer()

    async def set(self, key: str, packed: Any, ttl_s: float | None) -> None:
        await self._answer()

    async def clean(self, patterns: Sequence[str]) -> None:
        await self._answer()


def cached(cache: Cache, action: Action, **options: Any) -> Callable[..., Awaitable[Any]]:
    broker = Broker("test")
    run = cache.around(action, FIND, CacheOptions(**options))

    async def call(params: Any = None, **more: Any) -> Any:
        return await run(Context(broker, params=params, action=FIND.name, **more))

    return call


async def turns(count: int = 5) -> None:
    """Let everything go on that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_equal_calls_run_once_by_the_keys_that_count() -> None:
    action = Counted()
    call = cached(Cache(), action)
    assert await call({"a": 1, "b": 2}) == [1]
    assert await call({"b": 2, "a": 1}) == [1]
    assert await call({"a": 2, "b": 1}) == [2]
    assert action.runs == 2
    action = Counted()
    call = cached(Cache(), action, keys=("id", "#user", "@lang"))
    assert await call({"id": 1, "x": 1}, meta={"user": "a"}, headers={"lang": "en"}) == [1]
    assert await call({"id": 1, "x": 2}, meta={"user": "a", "y": 1}, headers={"lang": "en"}) == [1]
    assert await call({"id": 1}, meta={"user": "b"}, headers={"lang": "en"}) == [2]
    assert await call({"id": 1}, meta={"user": "b"}, headers={"lang": "de"}) == [3]
    call = cached(Cache(), Counted())
    assert await call() == [1]
    assert await call(meta={"$cache": False}) == [2]
    assert await call() == [1]


async def test_results_are_kept_but_errors_are_not() -> None:
    results: list[Any] = [None, 0, False, "", [], {}]
    for result in results:
        action = Counted(result, "another")
        call = cached(Cache(), action)
        assert [await call(), await call()] == [result, result], result
    run = Cache().around(Counted(), FIND, CacheOptions())
    first, second = (Context(Broker("test"), params={}) for _ in range(2))
    await run(first)
    await run(second)
    assert (first.cached_result, second.cached_result) == (False, True)
    action = Counted(ValueError("no"), "yes")
    call = cached(Cache(), action)
    with pytest.raises(ValueError, match="no"):
        await call()
    assert await call() == "yes"
    assert await call() == "yes"
    assert action.runs == 2


async def test_streams_are_neither_kept_nor_looked_up() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    async def action(ctx: Context) -> AsyncIterator[int]:
        return numbers()

    call = cached(Cache(), action)
    first, second = await call(), await call()
    assert first is not second

    async def chunks() -> AsyncIterator[bytes]:
        yield b""

    action = Counted()
    run = Cache().around(action, FIND, CacheOptions())
    for expected in ([1], [2]):
        ctx = Context(Broker("test"), params={})
        ctx.stream = cast(Any, chunks())
        assert await run(ctx) == expected


async def test_params_without_a_key_are_computed(caplog: pytest.LogCaptureFixture) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    call = cached(Cache(), Counted())
    assert [await call(deep), await call(deep)] == [[1], [2]]
    assert "no key for a call of posts.find" in caplog.text


async def test_entries_expire_by_ttl_of_cache_or_action() -> None:
    now = 100.0
    store = MemoryStore(clock=lambda: now)
    call = cached(Cache(store, ttl_s=60), Counted())
    assert await call() == [1]
    now = 159.9
    assert await call() == [1]
    now = 160.0
    assert await call() == [2]
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    call = cached(Cache(store, ttl_s=60), Counted(), ttl_s=5)
    assert await call() == [1]
    now = 5.0
    assert await call() == [2]


async def test_least_used_entry_goes_and_clean_forgets_what_fits() -> None:
    store = MemoryStore(entries_max=2)
    call = cached(Cache(store), Counted())
    assert [await call(name) for name in "ab"] == [[1], [2]]
    assert await call("a") == [1]
    assert await call("c") == [3]
    assert len(store) == 2
    assert await call("a") == [1]
    assert await call("b") == [4]
    cache = Cache()
    call = cached(cache, Counted())
    assert await call() == [1]
    await cache.clean("users.**")
    assert await call() == [1]
    await cache.clean("users.**", "posts.*")
    assert await call() == [2]
    await cache.clean()
    assert await call() == [3]


async def test_results_are_shared_unless_copies_are_wanted() -> None:
    call = cached(Cache(), Counted())
    first = await call()
    assert await call() is first
    call = cached(Cache(MemoryStore(copies=True)), Counted())
    first = await call()
    first.append("mine")
    assert await call() == [1]
    second = await call()
    second.append("mine too")
    assert await call() == [1]


async def test_result_that_cannot_be_copied_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def action(ctx: Context) -> Any:
        return iter([]), threading.Lock()

    call = cached(Cache(MemoryStore(copies=True)), action)
    assert await call() is not await call()
    assert "cannot be kept" in caplog.text


@each(
    ("posts.find", "posts.find:#1;", True),
    ("posts.*", "posts.find:[#1.5;s3:a.b]", True),
    ("posts.**", "posts.find:", True),
    ("**", "v2.posts.find:x", True),
    ("posts.find:#1**", "posts.find:#1.5;", True),
    ("posts.*", "v2.posts.find:", False),
    ("posts.*", "posts.comments.find:", False),
    ("posts.fin", "posts.find:", False),
    ("users.*", "posts.find:users.find", False),
)
def test_patterns(pattern: str, key: str, expected: bool) -> None:
    assert fits(key, [pattern]) is expected


async def test_calls_that_compute_during_a_clean_are_not_kept() -> None:
    cache, action = Cache(), Counted()
    call = cached(cache, action)
    action.gate.clear()
    old = asyncio.ensure_future(call())
    await turns()
    await cache.clean("posts.*")
    new = asyncio.ensure_future(call())
    await turns()
    action.gate.set()
    assert await old == [1]
    assert await new == [2]
    assert await call() == [2]
    cache, action = Cache(locks=False), Counted()
    call = cached(cache, action)
    action.gate.clear()
    several = [asyncio.ensure_future(call()) for _ in range(3)]
    await turns()
    await cache.clean("posts.*")
    action.gate.set()
    assert sorted(await asyncio.gather(*several)) == [[1], [2], [3]]
    assert await call() == [4]


async def test_what_is_being_written_when_all_is_cleaned_is_not_kept() -> None:
    class Slow(MemoryStore):
        writes = asyncio.Event()
        may_write = asyncio.Event()

        async def set(self, key: str, packed: Any, ttl_s: float | None) -> None:
            self.writes.set()
            await self.may_write.wait()
            await super().set(key, packed, ttl_s)

    store = Slow()
    cache = Cache(store)
    call = cached(cache, Counted())
    old = asyncio.ensure_future(call())
    await store.writes.wait()
    cleaning = asyncio.ensure_future(cache.clean("posts.*"))
    await turns()
    store.may_write.set()
    await cleaning
    assert await old == [1]
    assert await call() == [2]


async def test_equal_calls_at_once_run_once_unless_locks_are_off() -> None:
    cache, action = Cache(), Counted()
    call = cached(cache, action)
    action.gate.clear()
    calls = [asyncio.ensure_future(call()) for _ in range(10)]
    other = asyncio.ensure_future(call("other"))
    await turns()
    action.gate.set()
    assert await asyncio.gather(*calls) == [[1]] * 10
    assert await other == [2]
    assert (cache.statistics.misses, cache.statistics.waited) == (2, 9)
    action = Counted()
    call = cached(Cache(locks=False), action)
    action.gate.clear()
    calls = [asyncio.ensure_future(call()) for _ in range(3)]
    await turns()
    action.gate.set()
    assert await asyncio.gather(*calls) == [[1], [2], [3]]
    action = Counted(ValueError("first"), "good")
    call = cached(Cache(), action)
    action.gate.clear()
    calls = [asyncio.ensure_future(call()) for _ in range(3)]
    await turns()
    action.gate.set()
    first, *rest = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, ValueError)
    assert rest == ["good", "good"]


async def test_when_the_one_that_runs_is_ended_another_takes_over() -> None:
    action = Counted()
    call = cached(Cache(), action)
    action.gate.clear()
    calls = [asyncio.ensure_future(call()) for _ in range(4)]
    await turns()
    assert action.runs == 1
    calls[0].cancel()
    await turns(10)
    assert action.runs == 2
    calls[2].cancel()
    action.gate.set()
    assert await calls[1] == [2]
    assert await calls[3] == [2]
    assert action.runs == 2


@each(None, 0.01)
async def test_broken_store_fails_no_call(
    wait_s: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    store = Broken(wait_s=wait_s)
    cache = Cache(store)
    call = cached(cache, Counted())
    with caplog.at_level(logging.WARNING):
        assert [await call(number) for number in range(5)] == [[1], [2], [3], [4], [5]]
    # After the first failure it is left alone for a while.
    assert store.asked == 1
    assert cache.statistics.failures == 1
    assert "does not answer" in caplog.text


async def test_slow_store_takes_only_a_part_of_the_time_of_a_call() -> None:
    call = cached(Cache(Broken(wait_s=60)), Counted())
    async with asyncio.timeout(DEADLINE_S):
        assert await call(timeout_s=0.04) == [1]


async def test_nonsense_in_a_store_is_not_a_result(caplog: pytest.LogCaptureFixture) -> None:
    class Nonsense(MemoryStore):
        def unpack(self, packed: Any) -> Any:
            raise ValueError("nonsense")

    call = cached(Cache(Nonsense()), Counted())
    assert [await call(), await call()] == [[1], [2]]
    assert "makes no sense" in caplog.text


def test_caches_are_made_by_name() -> None:
    assert "MemoryStore" in repr(make_cache(True))
    assert "MemoryStore" in repr(make_cache("memory"))
    assert make_cache(False) is None
    made = repr(make_cache("redis://user:secret@localhost:1234/5"))
    assert "redis://localhost:1234/5" in made
    assert "secret" not in made
    assert repr(MISSING) == "MISSING"
    for said in ("", "memcached://x", "memory://x"):
        with naming(said), pytest.raises(ConfigError, match="no cache"):
            make_cache(said)


@each(
    lambda: Cache(keys="other"),
    lambda: Cache(ttl_s=0),
    lambda: Cache(ttl_s=float("nan")),
    lambda: MemoryStore(entries_max=0),
    lambda: RedisStore(serializer="XML"),
    lambda: RedisStore(wait_s=0),
    lambda: RedisStore("redis://localhost:no"),
    lambda: RedisStore("http://localhost"),
)
def test_nonsense_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()
