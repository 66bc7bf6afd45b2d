"""Caches of whole brokers, in memory and in a real Redis."""

import asyncio
import json
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from postroad.core.errors import UsageError
from postroad.services.broker import Broker
from postroad.services.caching import Cache, RedisStore
from postroad.services.context import Context
from postroad.services.service import CacheOptions, Service, action
from postroad.services.transporters import MemoryHub, MemoryTransporter
from tests.support.servers.redis import fresh_key, redis_server, shared_redis


class Posts(Service):
    name = "posts"

    def __init__(self) -> None:
        self.runs = 0

    @action(cache=True)
    async def find(self, ctx: Context, id: int = 0) -> Any:
        self.runs += 1
        return {"id": id, "run": self.runs, "raw": (1, 2)}

    @action(cache=CacheOptions(keys=("id", "#user"), ttl_s=100))
    def get(self, ctx: Context, id: int, verbose: bool = False) -> Any:
        self.runs += 1
        return [id, self.runs]

    @action(cache=["id"])
    def file(self, ctx: Context, id: int) -> bytes:
        self.runs += 1
        return b"\x00\xff" * id

    @action(cache=True)
    async def slow(self, ctx: Context) -> Any:
        self.runs += 1
        await asyncio.sleep(0.02)
        return self.runs

    @action(cache=True)
    def unsendable(self, ctx: Context) -> Any:
        self.runs += 1
        return object()

    @action
    def uncached(self, ctx: Context) -> int:
        self.runs += 1
        return self.runs


def redis_cache(namespace_of: str, **options: Any) -> Cache:
    store = RedisStore(shared_redis().url, prefix=namespace_of, **options)
    return Cache(store)


async def test_in_memory() -> None:
    service = Posts()
    broker = Broker("a", caching="memory")
    broker.add(service)
    async with broker:
        first = await broker.call("posts.find", {"id": 1})
        assert await broker.call("posts.find", {"id": 1}) is first
        assert await broker.call("posts.get", {"id": 1}, meta={"user": 1}) == [1, 2]
        verbose = {"id": 1, "verbose": True}
        assert await broker.call("posts.get", verbose, meta={"user": 1}) == [1, 2]
        assert await broker.call("posts.get", {"id": 1}, meta={"user": 2}) == [1, 3]
        assert [await broker.call("posts.uncached") for _ in range(2)] == [4, 5]
        assert await broker.call("posts.slow", timeout_s=5) == 6
        assert await broker.call("posts.find", {"id": 1}, meta={"$cache": False}) != first
        await broker.cache.clean("posts.get")
        assert await broker.call("posts.find", {"id": 1}) is first
        assert await broker.call("posts.get", {"id": 1}, meta={"user": 2}) == [1, 8]


async def test_without_a_cache() -> None:
    broker = Broker("a")
    broker.add(Posts())
    async with broker:
        assert await broker.call("posts.get", {"id": 1}) == [1, 1]
        assert await broker.call("posts.get", {"id": 1}) == [1, 2]
        with pytest.raises(UsageError, match="caching="):
            await broker.cache.clean()


async def test_calls_of_other_nodes_and_equal_ones_at_once() -> None:
    hub, service = MemoryHub(), Posts()
    here = Broker("a", transporter=MemoryTransporter(hub), caching=True, start_wait_s=0.01)
    there = Broker("b", transporter=MemoryTransporter(hub), start_wait_s=0.01)
    here.add(service)
    async with here, there:
        await there.wait_for_services("posts", timeout_s=30)
        results = await asyncio.gather(
            *(there.call("posts.slow") for _ in range(20)),
            *(here.call("posts.slow") for _ in range(20)),
        )
        assert results == [1] * 40


async def test_a_time_out_of_one_caller_is_not_that_of_another() -> None:
    service = Posts()
    broker = Broker("a", caching=True)
    broker.add(service)
    async with broker:
        hasty = asyncio.create_task(broker.call("posts.slow", timeout_s=0.005))
        patient = asyncio.create_task(broker.call("posts.slow", timeout_s=10))
        with pytest.raises(TimeoutError):
            await hasty
        assert await patient == 2


@pytest.mark.parametrize("serializer", ["JSON", "MsgPack"])
async def test_in_redis_for_all_nodes(serializer: str) -> None:
    prefix = fresh_key()
    services = Posts(), Posts()
    brokers = [
        Broker(f"n{number}", caching=redis_cache(prefix, serializer=serializer))
        for number in range(2)
    ]
    for broker, service in zip(brokers, services, strict=True):
        broker.add(service)
    one, two = brokers
    async with one, two:
        assert await one.call("posts.find", {"id": 1}) == {"id": 1, "run": 1, "raw": (1, 2)}
        assert await two.call("posts.find", {"id": 1}) == {"id": 1, "run": 1, "raw": [1, 2]}
        assert await one.call("posts.file", {"id": 2}) == b"\x00\xff\x00\xff"
        assert await two.call("posts.file", {"id": 2}) == b"\x00\xff\x00\xff"
        assert services[1].runs == 0
        await two.cache.clean("posts.file")
        assert (await one.call("posts.find", {"id": 1}))["run"] == 1
        await one.call("posts.file", {"id": 2})
        assert services[0].runs == 3
        await two.cache.clean("**")
        assert (await one.call("posts.find", {"id": 1}))["run"] == 4


async def test_what_is_in_redis_is_what_moleculer_reads_and_writes() -> None:
    namespace = fresh_key()
    cache = Cache(RedisStore(shared_redis().url), keys="moleculer", ttl_s=600)
    broker = Broker("a", caching=cache, namespace=namespace)
    broker.add(Posts())
    async with broker, Redis.from_url(shared_redis().url, protocol=2) as redis:
        await broker.call("posts.find", {"id": 7})
        await broker.call("posts.get", {"id": 7}, meta={"user": "u"})
        name = f"MOL-{namespace}-posts.find:id|7"
        assert json.loads(await redis.get(name)) == {"id": 7, "run": 1, "raw": [1, 2]}
        assert 590 < await redis.ttl(name) <= 600
        name = f'MOL-{namespace}-posts.get:7|"u"'
        assert json.loads(await redis.get(name)) == [7, 2]
        assert 90 < await redis.ttl(name) <= 100
        # As a node in JavaScript would.
        await redis.set(f"MOL-{namespace}-posts.find:id|8", '{"from":"elsewhere"}')
        assert await broker.call("posts.find", {"id": 8}) == {"from": "elsewhere"}
        await redis.set(f"MOL-{namespace}-posts.find:id|9", "no json")
        assert (await broker.call("posts.find", {"id": 9}))["id"] == 9
        await redis.set(f"MOL-{namespace}x-posts.find:id|1", "1")
        await broker.cache.clean("**")
        left = [it async for it in redis.scan_iter(f"MOL-{namespace}*")]
        assert left == [f"MOL-{namespace}x-posts.find:id|1".encode()]


async def test_names_with_the_wildcards_of_redis_clean_only_themselves() -> None:
    prefix = fresh_key()
    one, other = redis_cache(f"{prefix}[a]*"), redis_cache(f"{prefix}a")
    async with Broker("n1", caching=one) as first, Broker("n2", caching=other) as second:
        await first.launch(Posts())
        await second.launch(Posts())
        await first.call("posts.find")
        await second.call("posts.find")
        await first.cache.clean()
        assert (await second.call("posts.find"))["run"] == 1
        assert (await first.call("posts.find"))["run"] == 2


async def test_what_cannot_be_kept_is_given_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    service = Posts()
    broker = Broker("a", caching=redis_cache(fresh_key()))
    broker.add(service)
    async with broker:
        assert await broker.call("posts.unsendable") is not await broker.call("posts.unsendable")
        assert service.runs == 2
    assert "cannot be kept" in caplog.text


async def test_redis_that_hangs_or_dies_fails_no_call(caplog: pytest.LogCaptureFixture) -> None:
    service = Posts()
    with redis_server() as server:
        store = RedisStore(server.url, wait_s=1.0)
        broker = Broker("a", caching=Cache(store))
        broker.add(service)
        async with broker:
            assert (await broker.call("posts.find"))["run"] == 1
            assert (await broker.call("posts.find"))["run"] == 1
            server.pause()
            try:
                assert (await broker.call("posts.find", timeout_s=30))["run"] == 2
            finally:
                server.resume()
            server.kill()
            assert (await broker.call("posts.find", {"id": 2}))["run"] == 3
            with pytest.raises(RedisError):
                await broker.cache.clean()
    assert "does not answer" in caplog.text


async def test_redis_that_is_not_there_at_the_start() -> None:
    with redis_server() as server:
        url = server.url
    service = Posts()
    broker = Broker("a", caching=Cache(RedisStore(url)))
    broker.add(service)
    async with broker:
        assert [(await broker.call("posts.find"))["run"] for _ in range(2)] == [1, 2]
