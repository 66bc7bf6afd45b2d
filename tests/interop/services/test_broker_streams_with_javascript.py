"""Streams between our node and one of the original system, both ways."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

import pytest

from postroad.services.errors import MoleculerError
from tests.interop.services.javascript_node import JavascriptError
from tests.interop.services.pairs import BALANCED, Pair, Wiring, over
from tests.interop.services.python_services import content, digest, source
from tests.support.deadlines import eventually
from tests.support.tiers import by_tier

pytestmark = over(Wiring("TCP", "MsgPack"), Wiring("NATS", "CBOR"), BALANCED[0])

SIZES = (0, 1, 300 * 1_024)
LARGE = by_tier(test=3_000_000, nightly=50_000_000)
# As text, bytes take four times as much, and the other node a minute.
LARGE_TEXT = by_tier(test=1_000_000, nightly=5_000_000)
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


async def until_idle(pair: Pair) -> None:
    """Wait until no stream is left at our node."""

    def is_idle() -> bool:
        statistics = pair.broker.statistics()
        return bool(statistics["streamsIn"] == statistics["streamsOut"] == 0)

    await eventually(is_idle, "no stream is left")


async def test_bytes_of_any_size_come_whole_both_ways(pair: Pair) -> None:
    large = LARGE_TEXT if pair.wiring.serializer == "JSON" else LARGE
    limit: dict[str, Any] = {"timeout_s": LARGE_S}
    limit_there: dict[str, Any] = {"timeout": LARGE_S * 1_000}
    for size in (*SIZES, large):
        said = {"seed": "bytes", "size": size}
        expected = sum_of(said)
        uploaded = {"params": {"n": 1}, "meta": {"m": 1}, **expected}

        ours = await pair.broker.call(
            "js.upload", {"n": 1}, stream=source(said), meta={"m": 1}, **limit
        )
        theirs = await pair.js.call(
            "py.upload", {"n": 1}, stream=said, meta={"m": 1}, **limit_there
        )
        assert ours == theirs == uploaded, size

        assert await digest(await pair.broker.call("js.download", said, **limit)) == expected
        assert await pair.js.call("py.download", said, **limit_there) == expected
        await until_idle(pair)


async def test_values_and_echoes(pair: Pair) -> None:
    said: dict[str, Any] = {"objects": OBJECTS}
    ours = await pair.broker.call("js.upload", stream=source(said))
    assert ours["objects"] == OBJECTS
    theirs = await pair.js.call("py.upload", stream=said)
    assert theirs["objects"] == OBJECTS

    assert await digest(await pair.broker.call("js.download", said)) == said
    assert await pair.js.call("py.download", said) == said

    said = {"seed": "echo", "size": 2_000_000}
    stream = await pair.broker.call("js.back", stream=source(said))
    assert await digest(stream) == sum_of(said)
    assert await pair.js.call("py.back", stream=said) == sum_of(said)

    said = {"objects": OBJECTS}
    stream = await pair.broker.call("js.back", {"objects": True}, stream=source(said))
    assert await digest(stream) == said
    assert await pair.js.call("py.back", stream=said) == said


async def test_a_stream_that_breaks_off_raises_its_error_both_ways(pair: Pair) -> None:
    for size in (0, 1, 700_000):
        await check_broken_stream(pair, size)


async def check_broken_stream(pair: Pair, size: int) -> None:
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
    await until_idle(pair)


async def test_many_at_once(pair: Pair) -> None:
    said = [{"seed": str(number), "size": 100_000} for number in range(20)]
    ours = [pair.broker.call("js.upload", stream=source(it)) for it in said]
    theirs = [pair.js.call("py.upload", stream=it) for it in said]
    given = await asyncio.gather(*ours, *theirs)
    assert [{**it, "params": {}, "meta": {}} for it in map(sum_of, said + said)] == given


async def test_a_stream_that_is_not_read_to_its_end_harms_nobody(pair: Pair) -> None:
    # The other node cannot be told; what it still sends is dropped, and calls go on.
    said = {"seed": "much", "size": 5_000_000}
    async with await pair.broker.call("js.download", said) as stream:
        assert await anext(stream)
    await until_idle(pair)
    assert await pair.broker.call("js.echo", {"n": 1}) == {"n": 1}

    # An answer of the other node does not end the stream: it may still be read.
    said = {"seed": "unread", "size": 1_000_000}
    assert await pair.broker.call("js.echo", {"n": 1}, stream=source(said)) == {"n": 1}
    await until_idle(pair)

    said = {"seed": "unread", "size": 1_000_000}
    with pytest.raises(MoleculerError) as caught:
        await pair.broker.call("js.tagAndFail", stream=source(said))
    assert caught.value.type == "CONFLICT"
    with pytest.raises(JavascriptError) as failed:
        await pair.js.call("py.tagAndFail", stream=said)
    assert failed.value.told["type"] == "CONFLICT"
    await until_idle(pair)
    assert await pair.js.call("py.echo", {"n": 1}) == {"n": 1}
