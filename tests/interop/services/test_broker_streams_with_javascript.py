"""Streams between our node and one of the original system, both ways."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

import pytest

from postroad.services.errors import MoleculerError
from tests.interop.services.javascript_node import JavascriptError
from tests.interop.services.pairs import BALANCED, PLAIN, Pair, Wiring
from tests.interop.services.python_services import content, digest, source

WIRINGS = (*PLAIN, Wiring("TCP", "MsgPack"), Wiring("NATS", "CBOR"), BALANCED[0])

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.parametrize("pair", WIRINGS, ids=str, indirect=True, scope="module"),
]

SIZES = [0, 1, 300 * 1_024, 3_000_000]
LARGE = 50_000_000
# As text, bytes take four times as much, and the other node a minute.
LARGE_TEXT = 5_000_000
LARGE_S = 120
OBJECTS = [{"n": 1, "deep": {"er": [None, True]}}, {"n": 2, "text": "gr\u00fcn"}, {"n": 3}]
TORN = ("MoleculerError", "torn", 507, "TORN", {"at": 1})


def sum_of(said: Mapping[str, Any]) -> dict[str, Any]:
    data = content(said["seed"], said["size"])
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def told_of(error: MoleculerError) -> tuple[Any, ...]:
    return error.name, error.detail, error.status, error.type, error.data


def told_there(error: JavascriptError) -> tuple[Any, ...]:
    return tuple(error.told[name] for name in ("name", "message", "code", "type", "data"))


async def is_idle(pair: Pair) -> bool:
    """Whether no stream is left at our node, soon."""
    for _ in range(500):
        told = pair.broker.statistics()
        if told["streamsIn"] == told["streamsOut"] == 0:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize("size", SIZES)
async def test_bytes_of_any_size(pair: Pair, size: int) -> None:
    said = {"seed": "bytes", "size": size}
    expected = sum_of(said)

    ours = await pair.broker.call("js.upload", {"n": 1}, stream=source(said), meta={"m": 1})
    assert ours == {"params": {"n": 1}, "meta": {"m": 1}, **expected}
    theirs = await pair.js.call("py.upload", {"n": 1}, stream=said, meta={"m": 1})
    assert theirs == {"params": {"n": 1}, "meta": {"m": 1}, **expected}

    assert await digest(await pair.broker.call("js.download", said)) == expected
    assert await pair.js.call("py.download", said) == expected
    assert await is_idle(pair)


@pytest.mark.slow
async def test_large_streams(pair: Pair) -> None:
    size = LARGE_TEXT if pair.wiring.serializer == "JSON" else LARGE
    said = {"seed": "large", "size": size}
    expected = sum_of(said)
    limit: dict[str, Any] = {"timeout_s": LARGE_S}

    ours = await pair.broker.call("js.upload", stream=source(said), **limit)
    assert ours == {"params": {}, "meta": {}, **expected}
    theirs = await pair.js.call("py.upload", stream=said, timeout=LARGE_S * 1_000)
    assert theirs == {"params": {}, "meta": {}, **expected}

    assert await digest(await pair.broker.call("js.download", said, **limit)) == expected
    assert await pair.js.call("py.download", said, timeout=LARGE_S * 1_000) == expected


async def test_values(pair: Pair) -> None:
    said = {"objects": OBJECTS}
    ours = await pair.broker.call("js.upload", stream=source(said))
    assert ours["objects"] == OBJECTS
    theirs = await pair.js.call("py.upload", stream=said)
    assert theirs["objects"] == OBJECTS

    assert await digest(await pair.broker.call("js.download", said)) == said
    assert await pair.js.call("py.download", said) == said


async def test_there_and_back_at_once(pair: Pair) -> None:
    said = {"seed": "echo", "size": 2_000_000}
    stream = await pair.broker.call("js.back", stream=source(said))
    assert await digest(stream) == sum_of(said)
    assert await pair.js.call("py.back", stream=said) == sum_of(said)

    said = {"objects": OBJECTS}
    stream = await pair.broker.call("js.back", {"objects": True}, stream=source(said))
    assert await digest(stream) == said
    assert await pair.js.call("py.back", stream=said) == said


@pytest.mark.parametrize("size", [0, 1, 700_000])
async def test_streams_that_break_off(pair: Pair, size: int) -> None:
    said = {"seed": "torn", "size": size, "fails": True}
    with pytest.raises(MoleculerError) as caught:
        await pair.broker.call("js.upload", stream=source(said))
    assert told_of(caught.value) == TORN
    with pytest.raises(JavascriptError) as failed:
        await pair.js.call("py.upload", stream=said)
    assert told_there(failed.value) == TORN

    with pytest.raises(MoleculerError) as caught:
        await digest(await pair.broker.call("js.download", said))
    assert told_of(caught.value) == TORN
    with pytest.raises(JavascriptError) as failed:
        await pair.js.call("py.download", said)
    assert told_there(failed.value) == TORN
    assert await is_idle(pair)


async def test_many_at_once(pair: Pair) -> None:
    said = [{"seed": str(number), "size": 100_000} for number in range(20)]
    ours = [pair.broker.call("js.upload", stream=source(it)) for it in said]
    theirs = [pair.js.call("py.upload", stream=it) for it in said]
    given = await asyncio.gather(*ours, *theirs)
    assert [{**it, "params": {}, "meta": {}} for it in map(sum_of, said + said)] == given


async def test_a_reader_that_has_enough(pair: Pair) -> None:
    """The other node cannot be told; what it still sends is dropped, and calls go on."""
    said = {"seed": "much", "size": 5_000_000}
    async with await pair.broker.call("js.download", said) as stream:
        assert await anext(stream)
    assert await is_idle(pair)
    assert await pair.broker.call("js.echo", {"n": 1}) == {"n": 1}


async def test_a_stream_nobody_reads_there(pair: Pair) -> None:
    """An answer of the other node does not end the stream: it may still be read."""
    said = {"seed": "unread", "size": 1_000_000}
    assert await pair.broker.call("js.echo", {"n": 1}, stream=source(said)) == {"n": 1}
    assert await is_idle(pair)


async def test_a_call_with_a_stream_that_fails(pair: Pair) -> None:
    said = {"seed": "unread", "size": 1_000_000}
    with pytest.raises(MoleculerError) as caught:
        await pair.broker.call("js.tagAndFail", stream=source(said))
    assert caught.value.type == "CONFLICT"
    with pytest.raises(JavascriptError) as failed:
        await pair.js.call("py.tagAndFail", stream=said)
    assert failed.value.told["type"] == "CONFLICT"
    assert await is_idle(pair)
    assert await pair.js.call("py.echo", {"n": 1}) == {"n": 1}
