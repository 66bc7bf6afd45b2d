"""Nodes that leave it to the server who gets a call, or an event of a group."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from postroad.services.errors import MoleculerClientError, ServiceNotFoundError
from tests.interop.services.javascript_node import JavascriptError
from tests.interop.services.pairs import BALANCED, OURS, THEIRS, Pair, Wiring, open_pair
from tests.interop.services.python_services import digest, source
from tests.support.deadlines import DEADLINE_S

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

balanced = pytest.mark.parametrize("pair", BALANCED, ids=str, indirect=True, scope="module")
# Servers of this sort know no wildcards.
KNOWS_WILDCARDS = ("NATS",)
CALLS = 40


@balanced
async def test_calls(pair: Pair) -> None:
    params = {"text": "grüße", "numbers": [0, 0.5, 2**53 - 1], "nothing": None}
    assert await pair.broker.call("js.echo", params) == params
    assert await pair.js.call("py.echo", params) == params
    assert await pair.broker.call("v2.js.where") == await pair.js.call("v2.py.where") == "v2"


@balanced
async def test_meta_and_headers(pair: Pair) -> None:
    meta, headers = {"user": "eve"}, {"trace": "abc"}
    ctx = pair.broker.context(meta=meta)
    theirs = await ctx.call("js.context", headers=headers)
    ours, meta_there = await pair.js.call_with_meta("py.context", meta=meta, headers=headers)

    assert (theirs["meta"], theirs["headers"], theirs["nodeID"]) == (meta, headers, OURS)
    assert (ours["meta"], ours["headers"], ours["nodeID"]) == (meta, headers, THEIRS)
    assert ctx.meta == {**meta, "seen": "by js"}
    assert meta_there == {**meta, "seen": "by py"}


@balanced
async def test_errors(pair: Pair) -> None:
    with pytest.raises(MoleculerClientError) as here:
        await pair.broker.call("js.tagAndFail")
    with pytest.raises(JavascriptError) as there:
        await pair.js.call("py.tagAndFail")
    with pytest.raises(ServiceNotFoundError):
        await pair.broker.call("js.secret")
    with pytest.raises(JavascriptError, match="ServiceNotFoundError"):
        await pair.js.call("py.secret")

    assert (here.value.status, here.value.node_id) == (409, THEIRS)
    assert (there.value.told["code"], there.value.told["nodeID"]) == (409, OURS)


@balanced
async def test_the_server_chooses_who_gets_a_call(pair: Pair) -> None:
    """Also if the caller could do it."""
    ours = await asyncio.gather(*(pair.broker.call("shared.where") for _ in range(CALLS)))
    theirs = await asyncio.gather(*(pair.js.call("shared.where") for _ in range(CALLS)))

    assert {*ours} == {*theirs} == {OURS, THEIRS}


@balanced
async def test_a_node_that_is_named_gets_the_call(pair: Pair) -> None:
    for node_id in (OURS, THEIRS):
        for _ in range(5):
            assert await pair.broker.call("shared.where", node_id=node_id) == node_id
            assert await pair.js.call("shared.where", nodeID=node_id) == node_id


@balanced
async def test_an_event_comes_to_each_group_once(pair: Pair) -> None:
    """Both nodes have handlers of the same group; the server chooses one for each event."""
    for number in range(CALLS):
        await pair.broker.emit("shared.done", number)
        await pair.js.ask("emit", event="shared.done", data=CALLS + number)
    theirs: list[Any] = []
    ours: list[Any] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(theirs) + len(ours) < 2 * CALLS:
            theirs += await pair.js.heard(0)
            ours += await pair.hear(0)

    assert theirs
    assert ours
    assert sorted(it["data"] for it in theirs + ours) == [*range(2 * CALLS)]
    assert {it["handler"] for it in theirs + ours} == {"shared"}


@balanced
async def test_events_of_one_node(pair: Pair) -> None:
    await pair.broker.emit("js.exact", {"n": 1}, meta={"user": "eve"})
    await pair.js.ask("emit", event="py.exact", data={"n": 1}, options={"meta": {"user": "eve"}})
    has_wildcards = pair.wiring.transporter in KNOWS_WILDCARDS
    expected = ["exact", "star", "stars"] if has_wildcards else ["exact"]
    theirs, ours = await pair.js.heard(len(expected)), await pair.hear(len(expected))

    for heard in (theirs, ours):
        assert sorted(it["handler"] for it in heard) == expected
        assert all((it["data"], it["meta"]) == ({"n": 1}, {"user": "eve"}) for it in heard)


@balanced
async def test_broadcast(pair: Pair) -> None:
    await pair.broker.broadcast("split.all", "from here")
    await pair.js.ask("broadcast", event="split.all", data="from there")
    theirs, ours = await pair.js.heard(2), await pair.hear(2)

    for heard in (theirs, ours):
        assert sorted(it["data"] for it in heard) == ["from here", "from there"]


@balanced
async def test_streams(pair: Pair) -> None:
    """They go to one node, whatever the server would choose."""
    said = {"objects": [{"n": number} for number in range(20)]}
    assert (await pair.broker.call("js.upload", stream=source(said)))["objects"] == said["objects"]
    assert (await pair.js.call("py.upload", stream=said))["objects"] == said["objects"]
    assert await digest(await pair.broker.call("js.download", said)) == said
    assert await pair.js.call("py.download", said) == said


async def test_what_a_lost_node_did_not_finish_is_done_by_another(modules: Path) -> None:
    """RabbitMQ keeps a request until it was dealt with."""
    async with open_pair(modules, Wiring("AMQP", uses_balancer=False)) as pair:
        calls = [
            asyncio.create_task(pair.broker.call("shared.work", {"ms": 60_000}, timeout_s=30))
            for _ in range(4)
        ]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        await pair.js.call("js.echo", nodeID=THEIRS)
        assert not all(it.done() for it in calls)
        await pair.js.kill()

        assert await asyncio.gather(*calls) == [OURS] * 4
