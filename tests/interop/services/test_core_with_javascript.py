"""The heart of it, over every transporter with every serializer, both ways."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest

from postroad.services.errors import MoleculerClientError, ServiceNotFoundError, ValidationError
from tests.interop.services.javascript_node import JavascriptError
from tests.interop.services.pairs import OURS, THEIRS, Pair, over_all
from tests.interop.services.python_services import content, digest, source

pytestmark = over_all()

PARAMS: dict[str, Any] = {
    "text": "grüße \u0000 \U0001f3e4",
    "numbers": [0, -1, 2**31, 2**53 - 1, 0.1, -1.5e300],
    "nothing": None,
    "flags": [True, False],
    "deep": {"er": [{"st": []}, {}]},
}
META = {"user": {"name": "eve"}, "n": 1}
HEADERS = {"trace": "abc"}
SIZE = 300 * 1024
OBJECTS = [{"a": 1}, [1, 2], "text", 0, {"deep": {"er": [None]}}]


def sum_of(seed: str, size: int) -> dict[str, Any]:
    return {"bytes": size, "sha256": hashlib.sha256(content(seed, size)).hexdigest()}


async def test_calls(pair: Pair) -> None:
    assert await pair.broker.call("js.echo", PARAMS) == PARAMS
    assert await pair.js.call("py.echo", PARAMS) == PARAMS
    assert await pair.broker.call("v2.js.where") == await pair.js.call("v2.py.where") == "v2"
    assert await pair.broker.call("js.nothing") is None
    assert await pair.js.call("py.nothing") is None

    # JSON has neither: they come as what the original system makes of them there.
    data, at = bytes(range(256)), datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    ours = await pair.broker.call("js.echo", {"data": data, "at": at})
    theirs = await pair.js.call("py.echo", {"data": data, "at": at})

    if pair.wiring.serializer == "JSON":
        assert ours["data"] == theirs["data"] == {"type": "Buffer", "data": [*data]}
        assert {datetime.fromisoformat(it["at"]) for it in (ours, theirs)} == {at}
    else:
        assert ours == theirs == {"data": data, "at": at}


async def test_meta_and_headers(pair: Pair) -> None:
    ctx = pair.broker.context(meta=META)
    theirs = await ctx.call("js.context", headers=HEADERS)
    ours, meta = await pair.js.call_with_meta("py.context", meta=META, headers=HEADERS)

    assert (theirs["meta"], theirs["headers"], theirs["nodeID"]) == (META, HEADERS, OURS)
    assert (ours["meta"], ours["headers"], ours["nodeID"]) == (META, HEADERS, THEIRS)
    assert ctx.meta == {**META, "seen": "by js"}
    assert meta == {**META, "seen": "by py"}


async def test_errors(pair: Pair) -> None:
    with pytest.raises(ValidationError) as refused:
        await pair.broker.call("js.checked", {"count": -1})
    with pytest.raises(MoleculerClientError) as failed:
        await pair.broker.call("js.tagAndFail")
    with pytest.raises(ServiceNotFoundError):
        await pair.broker.call("js.none", node_id=THEIRS)
    with pytest.raises(JavascriptError) as refused_there:
        await pair.js.call("py.checked", {"count": -1})
    with pytest.raises(JavascriptError) as failed_there:
        await pair.js.call("py.tagAndFail")
    with pytest.raises(JavascriptError, match="ServiceNotFoundError"):
        await pair.js.call("py.secret")

    assert refused.value.data[0]["field"] == "count"
    assert (failed.value.status, failed.value.type) == (409, "CONFLICT")
    assert (failed.value.node_id, failed_there.value.told["nodeID"]) == (THEIRS, OURS)
    assert refused_there.value.told["name"] == "ValidationError"
    assert refused_there.value.told["data"][0]["field"] == "count"
    assert failed_there.value.told["code"] == 409
    assert failed_there.value.told["data"] == {"why": "so"}
    assert failed_there.value.meta == {"tag": "set before the failure"}


async def test_events(pair: Pair) -> None:
    await pair.broker.emit("js.exact", {"n": 1}, meta=META, headers=HEADERS)
    await pair.js.ask("emit", event="py.exact", data={"n": 1}, options={"meta": META})
    # Queues of RabbitMQ know no wildcards.
    is_exact = pair.wiring.transporter == "AMQP" and not pair.wiring.uses_balancer
    expected = ["exact"] if is_exact else ["exact", "star", "stars"]
    theirs, ours = await pair.js.heard(len(expected)), await pair.hear(len(expected))

    for heard, node_id in ((theirs, OURS), (ours, THEIRS)):
        assert sorted(it["handler"] for it in heard) == expected
        assert {it["nodeID"] for it in heard} == {node_id}
        assert all(it["data"] == {"n": 1} and it["meta"] == META for it in heard)
    assert all(it["headers"] == HEADERS for it in theirs)


async def test_streams(pair: Pair) -> None:
    said = {"seed": "core", "size": SIZE}
    expected = sum_of("core", SIZE)
    ours = await pair.broker.call("js.upload", {"a": 1}, stream=source(said))
    theirs = await pair.js.call("py.upload", {"a": 1}, stream=said)

    assert ours == theirs == {"params": {"a": 1}, "meta": {}, **expected}
    assert await digest(await pair.broker.call("js.download", said)) == expected
    assert await pair.js.call("py.download", said) == expected

    said = {"objects": OBJECTS}
    ours = await pair.broker.call("js.upload", {}, stream=source(said))
    theirs = await pair.js.call("py.upload", {}, stream=said)

    assert ours["objects"] == theirs["objects"] == OBJECTS
    assert await digest(await pair.broker.call("js.download", said)) == said
    assert await pair.js.call("py.download", said) == said


async def test_restarts_with_the_same_name(pair: Pair) -> None:
    await pair.restart_javascript()
    assert await pair.broker.call("js.echo", {"n": 1}) == {"n": 1}

    await pair.broker.stop()
    await pair.js.lacks_services("py")
    await pair.start_python()
    await pair.acquainted()
    assert await pair.js.call("py.echo", {"n": 1}) == {"n": 1}
