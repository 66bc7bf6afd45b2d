"""Streams with calls and as results, between nodes and within one."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from postroad.core.errors import ConfigError, UsageError
from postroad.core.limits import KIB, MIB
from postroad.services.config import BrokerConfig
from postroad.services.errors import MoleculerError, RemoteError
from postroad.services.incoming_stream import IncomingStream
from postroad.services.policies import RetryPolicy
from postroad.services.stream_sources import BAD_CHUNK, Objects
from tests.support.services.stream_nodes import (
    Pair,
    Tape,
    chunks_of,
    joined,
    pair_of,
    pieces,
    values,
)
from tests.support.tiers import by_tier

WHERE = pytest.mark.parametrize("where", ["local", "remote"])
SIZES = [0, 1, 300 * KIB, 5 * MIB + 1]


def some_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("serializer", ["JSON", "MsgPack", "CBOR"])
async def test_bytes_go_with_a_call_and_are_a_result(serializer: str) -> None:
    async with pair_of(serializer=serializer) as pair:
        for size in SIZES:
            data = some_bytes(size)
            pair.files.seen.clear()
            given = await pair.near.call(
                "files.put", {"name": "a"}, stream=pieces(data, 100_000), meta={"by": "me"}
            )
            assert (given["params"], given["meta"]) == ({"name": "a"}, {"by": "me"})
            assert b"".join(pair.files.seen) == data
            assert all(type(it) is bytes and len(it) <= 256 * KIB for it in pair.files.seen)

            pair.files.tape = Tape(1, data)
            stream = await pair.near.call("files.get")
            assert isinstance(stream, IncomingStream)
            assert not stream.has_objects
            assert await joined(stream) == data
            assert await chunks_of(stream) == []
            assert pair.files.tape.is_closed
            await pair.until_idle()


async def test_megabytes_both_ways_at_once() -> None:
    data = some_bytes(by_tier(test=10_000_000, nightly=50_000_000))
    async with pair_of(serializer="MsgPack") as pair:
        stream = await pair.near.call("files.echo", stream=pieces(data, 999_999))
        assert await joined(stream) == data
        await pair.until_idle()


@WHERE
async def test_chunks_come_as_they_were_sent(pair: Pair, where: str) -> None:
    caller = pair.caller(where)
    stream = await caller.call("files.echo", stream=values(b"a", b"", b"bc"))
    assert await joined(stream) == b"abc"
    texts = ["gr\u00fc", bytearray(b"x"), memoryview(b"yz")]
    stream = await caller.call("files.echo", stream=values(*texts))
    assert await joined(stream) == "gr\u00fcxyz".encode()

    some: list[Any] = [{"a": 1}, [1, "2"], "text", 0, False, {"deep": {"er": [None]}}]
    for sent in (some, [{"n": number} for number in range(5_000)]):
        stream = await caller.call("files.echo", stream=Objects(values(*sent)))
        assert stream.has_objects
        assert await chunks_of(stream) == sent
    pair.files.tape = Tape(3, {"n": 1})
    stream = await caller.call("files.play", {"objects": True})
    assert await chunks_of(stream) == [{"n": 1}] * 3
    await pair.until_idle()


@WHERE
async def test_other_chunks_need_to_be_wrapped(pair: Pair, where: str) -> None:
    caller = pair.caller(where)
    chunks: list[Any] = [{"a": 1}, 5, None, [b"x"]]
    for chunk in chunks:
        pair.files.seen.clear()
        with pytest.raises(MoleculerError, match=r"Objects\(") as caught:
            await caller.call("files.put", stream=values(b"first", chunk))
        assert caught.value.type == BAD_CHUNK
        assert pair.files.seen == [b"first"]
        pair.files.tape = Tape(1, chunk)
        stream = await caller.call("files.get")
        with pytest.raises(MoleculerError, match=r"Objects\("):
            await anext(stream)
        assert pair.files.tape.is_closed
    with pytest.raises(MoleculerError, match="None") as caught:
        await caller.call("files.put", stream=Objects(values(None)))
    assert caught.value.type == BAD_CHUNK
    for no_stream in (b"bytes", [b"x"], 5):
        with pytest.raises(UsageError, match="async iterable"):
            await caller.call("files.put", stream=no_stream)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="one call"):
        await caller.mcall([("files.put", {})], stream=values(b"x"))
    await pair.until_idle()


async def test_values_that_cannot_be_sent(pair: Pair) -> None:
    with pytest.raises(RemoteError, match="cannot be sent") as caught:
        await pair.near.call("files.put", stream=Objects(values(1, object())))
    assert caught.value.name == "UnsendablePacket"
    assert pair.files.seen == [1]
    await pair.until_idle()


@WHERE
async def test_meta_comes_back_with_the_beginning(pair: Pair, where: str) -> None:
    """A generator runs when it is read, and by then the answer has gone."""
    pair.files.tape = Tape(1, b"x")
    for action, meta in (("files.play", {"told": "by files"}), ("files.get", {})):
        ctx = pair.caller(where).context()
        stream = await ctx.call(action)
        assert await joined(stream) == b"x"
        assert ctx.meta == meta


@WHERE
async def test_the_time_is_that_of_the_answer(pair: Pair, where: str) -> None:
    tape = pair.files.tape = Tape(2, b"x")
    stream = await pair.caller(where).call("files.get", timeout_s=0.05)
    tape.gate.clear()
    reading = asyncio.ensure_future(joined(stream))
    await asyncio.sleep(0.1)
    tape.gate.set()
    assert await reading == b"xx"


@WHERE
async def test_a_call_is_not_made_twice_with_a_stream(where: str) -> None:
    async with pair_of(retry=RetryPolicy(is_enabled=True, delay_s=0.01)) as pair:
        tape = Tape(1, {"wrong": 1})
        with pytest.raises(MoleculerError):
            await pair.caller(where).call("files.put", stream=tape.play(), retries=3)
        assert tape.given == 1
        assert tape.is_closed


async def test_a_stream_has_one_reader(pair: Pair) -> None:
    tape = pair.files.tape = Tape(1, b"x")
    tape.gate.clear()
    stream = await pair.near.call("files.get")
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="one reader"):
        await anext(stream)
    tape.gate.set()
    assert await first == b"x"


async def test_a_read_that_is_cancelled_loses_nothing_but_within_a_node(pair: Pair) -> None:
    for caller in (pair.near, pair.far):
        tape = pair.files.tape = Tape(2, b"x")
        tape.gate.clear()
        stream = await caller.call("files.get")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.02)
        tape.gate.set()
        if caller is pair.near:
            assert await joined(stream) == b"xx"
        else:
            with pytest.raises(MoleculerError, match="cancelled"):
                await joined(stream)


async def test_where_the_transporter_balances() -> None:
    async with pair_of(uses_balancer=False) as pair:
        data = some_bytes(MIB)
        stream = await pair.near.call("files.echo", stream=pieces(data, 100_000))
        assert await joined(stream) == data
        pair.files.tape = Tape(3, b"x")
        stream = await pair.near.call("files.get")
        assert await joined(stream) == b"xxx"
        await pair.until_idle()


async def test_too_many_streams() -> None:
    async with pair_of(streams_max=1) as pair:
        tape = pair.files.tape = Tape(1, b"x")
        tape.gate.clear()
        first = await pair.near.call("files.get")
        with pytest.raises(MoleculerError, match="too many streams"):
            await pair.near.call("files.get")
        tape.gate.set()
        assert await joined(first) == b"x"
        again = await pair.near.call("files.get")
        assert await joined(again) == b"x"

        putting = Tape(1, b"x")
        putting.gate.clear()
        call = asyncio.ensure_future(pair.near.call("files.put", stream=putting.play()))
        await asyncio.sleep(0.02)
        other = Tape(1, b"x")
        with pytest.raises(MoleculerError, match="too many streams"):
            await pair.near.call("files.put", stream=other.play())
        await other.until_closed()
        putting.gate.set()
        assert (await call)["chunks"] == 1
        await pair.until_idle()


def test_settings_are_checked() -> None:
    for setting in ("streams_max", "stream_bytes_max", "streams_bytes_max"):
        wrong: dict[str, Any] = {setting: 0}
        with pytest.raises(ConfigError, match=setting):
            BrokerConfig(**wrong)
    with pytest.raises(ConfigError, match="stream_idle_s"):
        BrokerConfig(stream_idle_s=-1)


async def test_an_answer_that_comes_too_late(pair: Pair) -> None:
    """The stream of an answer nobody waits for is told to stop."""
    tape = pair.files.tape = Tape(1_000)
    call = asyncio.ensure_future(pair.near.call("files.play", {"waits": True}))
    await asyncio.sleep(0.02)
    call.cancel()
    pair.files.gate.set()
    await tape.until_closed()
    assert tape.given < 100
    await pair.until_idle()
