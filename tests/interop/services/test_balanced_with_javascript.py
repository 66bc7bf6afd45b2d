"""Nodes that leave it to the server who gets a call, or an event of a group."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.interop.services.pairs import BALANCED, OURS, THEIRS, Pair, Wiring, open_pair
from tests.support.deadlines import DEADLINE_S

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

balanced = pytest.mark.parametrize("pair", BALANCED, ids=str, indirect=True, scope="module")
CALLS = 40


@balanced
async def test_the_server_chooses_who_gets_a_call(pair: Pair) -> None:
    # Also if the caller could do it.
    ours = await asyncio.gather(*(pair.broker.call("shared.where") for _ in range(CALLS)))
    theirs = await asyncio.gather(*(pair.js.call("shared.where") for _ in range(CALLS)))

    assert {*ours} == {*theirs} == {OURS, THEIRS}

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
async def test_broadcast(pair: Pair) -> None:
    await pair.broker.broadcast("split.all", "from here")
    await pair.js.ask("broadcast", event="split.all", data="from there")
    theirs, ours = await pair.js.heard(2), await pair.hear(2)

    for heard in (theirs, ours):
        assert sorted(it["data"] for it in heard) == ["from here", "from there"]


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
