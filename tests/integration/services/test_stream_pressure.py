"""Streams that are read more slowly than they could be sent, and streams in which nothing moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from postroad.core.limits import KIB, MIB
from postroad.services.stream_sources import Objects
from postroad.services.stream_window import WINDOW_BYTES
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.raw_peers import holds_for
from tests.support.services.stream_nodes import Pair, Tape, chunks_of, joined, pair_of
from tests.support.tiers import by_tier

CHUNK = bytes(100 * KIB)
IDLE_S = 2.0
"""After what a stream is given up of which nothing is heard; more than a busy machine pauses."""


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with pair_of(serializer="MsgPack") as pair:
        yield pair


# Between nodes.


async def test_a_sender_waits_for_the_action_that_reads(pair: Pair) -> None:
    tape = Tape(500, CHUNK)
    call = asyncio.ensure_future(pair.near.call("files.hold", stream=tape.play()))
    await eventually(lambda: tape.given > 30, "it sends what it may", DEADLINE_S)
    await holds_for(lambda: tape.given < 50, "no more than that", 0.2)
    assert pair.bytes_waiting(pair.far) <= WINDOW_BYTES + len(CHUNK)
    pair.files.gate.set()
    assert await call == 500
    await pair.until_idle()


async def test_an_action_waits_for_the_caller_that_reads(pair: Pair) -> None:
    tape = pair.files.tape = Tape(500, CHUNK)
    stream = await pair.near.call("files.get")
    await eventually(lambda: tape.given > 30, "it sends what it may", DEADLINE_S)
    await holds_for(lambda: tape.given < 50, "no more than that", 0.2)
    assert pair.bytes_waiting(pair.near) <= WINDOW_BYTES + len(CHUNK)
    assert len(await joined(stream)) == 500 * len(CHUNK)
    await pair.until_idle()


async def test_values_count_as_much_as_they_weigh(pair: Pair) -> None:
    tape = pair.files.tape = Tape(50, {"text": "x" * MIB})
    stream = await pair.near.call("files.play", {"objects": True})
    await eventually(lambda: tape.given >= 4, "it sends what it may", DEADLINE_S)
    await holds_for(lambda: tape.given <= 6, "no more than that", 0.1)
    assert len(await chunks_of(stream)) == 50
    await pair.until_idle()


async def test_a_slow_reader_never_has_much_waiting(pair: Pair) -> None:
    pair.files.tape = Tape(300, CHUNK)
    most = 0
    async with await pair.near.call("files.get") as stream:
        async for _ in stream:
            most = max(most, pair.bytes_waiting(pair.near))
            await asyncio.sleep(0.001)
    assert 0 < most <= WINDOW_BYTES + len(CHUNK)


async def test_streams_do_not_wait_for_each_other(pair: Pair) -> None:
    pair.files.tape = Tape(500, CHUNK)
    stuck = await pair.near.call("files.get")
    for _ in range(3):
        other = await pair.near.call("files.get")
        assert len(await joined(other)) == 500 * len(CHUNK)
    await stuck.aclose()
    await pair.until_idle()


async def test_a_stream_does_not_stop_everything_else(pair: Pair) -> None:
    """A source that never waits, and a reader that never waits, leave room for calls."""
    pair.files.tape = Tape(20_000, b"x" * 100)
    stream = await pair.near.call("files.get")
    reading = asyncio.ensure_future(joined(stream))
    calls = 0
    while not reading.done():
        await pair.near.call("files.ignore")
        calls += 1
    assert len(await reading) == 2_000_000
    assert calls > 50


# Nothing moves.


async def check_quiet_sender(where: str, way: str) -> None:
    async with pair_of(stream_idle_s=IDLE_S) as pair:
        tape = Tape(2, b"x")
        tape.gate.clear()
        if way == "there":
            call = asyncio.ensure_future(pair.caller(where).call("files.put", stream=tape.play()))
        else:
            pair.files.tape = tape
            stream = await pair.caller(where).call("files.get")
            call = asyncio.ensure_future(chunks_of(stream))
        await asyncio.sleep(2.1 * IDLE_S)
        assert not call.done()
        tape.gate.set()
        assert await call
        await pair.until_idle()


async def check_slow_reader(where: str) -> None:
    async with pair_of(stream_idle_s=IDLE_S) as pair:
        tape = Tape(500, b"x")
        call = asyncio.ensure_future(pair.caller(where).call("files.hold", stream=tape.play()))
        await eventually(lambda: pair.files.seen, "the action reads")
        await asyncio.sleep(2.1 * IDLE_S)
        pair.files.gate.set()
        assert await call == 500
        await pair.until_idle()


async def test_a_stream_may_be_quiet_and_a_reader_take_its_time() -> None:
    """Between nodes of this package, whoever has nothing to send says that it is alive."""
    async with asyncio.TaskGroup() as group:
        for where in ("local", "remote"):
            group.create_task(check_slow_reader(where))
            for way in ("there", "back"):
                group.create_task(check_quiet_sender(where, way))


async def test_many_streams_at_once(pair: Pair) -> None:
    async def echo(number: int) -> bool:
        sent = [{"n": number, "i": index} for index in range(100)]
        tape = Tape(100, sent[0])
        stream = await pair.near.call("files.echo", stream=Objects(tape.play()))
        return await chunks_of(stream) == [sent[0]] * 100

    assert all(await asyncio.gather(*map(echo, range(by_tier(test=60, nightly=200)))))
    await pair.until_idle()
