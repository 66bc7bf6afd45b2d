"""Nodes that stop, hang, are killed and come back, ours and one of the original system."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from postroad.services.errors import (
    RequestRejectedError,
    ServiceNotAvailableError,
    ServiceNotFoundError,
)
from postroad.services.kinds import Kind
from postroad.services.transporters import make_transporter
from tests.interop.services.javascript_node import JavascriptError, JavascriptNode
from tests.interop.services.pairs import OURS, Pair, Wiring
from tests.interop.services.python_services import NAMES, THEIR_NAMES
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.servers.nats import shared_nats
from tests.support.services.nodes import RawNode

pytestmark = pytest.mark.timeout(600)

BEATING = Wiring("NATS")
LINKED = Wiring("TCP")
# There half a second more or less is left to chance.
TIMES: dict[str, Any] = {"heartbeat_interval_s": 1, "heartbeat_timeout_s": 3}


@pytest.fixture(params=[LINKED, BEATING], ids=str)
def wiring(request: pytest.FixtureRequest) -> Wiring:
    wiring: Wiring = request.param
    return wiring


@pytest_asyncio.fixture
async def nodes(modules: Path, wiring: Wiring) -> AsyncIterator[Pair]:
    """Nodes that are not started."""
    pair = Pair(modules, wiring, **TIMES)
    yield pair
    await pair.close()


async def until_serving(pair: Pair) -> None:
    """Wait until an action of ours runs."""
    await eventually(lambda: pair.broker.statistics()["serving"], "it runs")


async def begin_slow_call(pair: Pair) -> asyncio.Task[Any]:
    """A call of ours that the other node has, and takes long for."""
    waiting = asyncio.create_task(pair.broker.call("js.slow", {"ms": 30_000}))
    await pair.broker.call("js.echo")
    return waiting


async def check_both_answer(pair: Pair) -> None:
    await pair.acquainted()
    assert await pair.broker.call("js.echo", {"n": 1}) == {"n": 1}
    assert await pair.js.call("py.echo", {"n": 1}) == {"n": 1}


async def test_nodes_that_say_goodbye_are_missed_at_once(nodes: Pair) -> None:
    """What runs here is finished, then the other node hears of the end; nothing is lost."""
    await nodes.start()
    running = asyncio.create_task(nodes.js.call("py.slow", {"ms": 500}))
    await until_serving(nodes)
    stopping = asyncio.create_task(nodes.broker.stop())
    await nodes.js.lacks_services(*NAMES)
    with pytest.raises(JavascriptError, match="ServiceNot"):
        await nodes.js.call("py.echo")
    await stopping
    news = await nodes.js.ask("news", event="$node.disconnected", node=OURS)
    assert await running == "slept"
    assert news[-1]["unexpected"] is False
    await nodes.start_python()
    await check_both_answer(nodes)

    waiting = await begin_slow_call(nodes)
    await nodes.js.ask("stop")
    with pytest.raises(RequestRejectedError):
        await waiting
    await eventually(lambda: nodes.life_there() is None, "it is offline")
    with pytest.raises((ServiceNotFoundError, ServiceNotAvailableError)):
        await nodes.broker.call("js.echo")
    await nodes.js.close()
    await nodes.start_javascript()
    await check_both_answer(nodes)


async def test_their_node_that_is_killed_is_missed_and_may_come_back(nodes: Pair) -> None:
    """Also before anybody missed it: calls to the life before do not wait for the new one."""
    await nodes.start()
    waiting = await begin_slow_call(nodes)
    await nodes.restart_javascript()
    with pytest.raises(RequestRejectedError):
        await waiting
    await check_both_answer(nodes)

    waiting = await begin_slow_call(nodes)
    await nodes.js.kill()
    with pytest.raises(RequestRejectedError):
        await waiting
    assert nodes.life_there() is None


async def test_their_node_is_asked_before_its_calls_are_given_up(modules: Path) -> None:
    """Somebody else at the server says that it is gone, in a new life, or offers nothing."""
    pair = Pair(modules, BEATING, **TIMES)
    raw = RawNode(make_transporter(shared_nats().url), "raw", pair.namespace)
    try:
        await pair.start()
        await raw.connect()
        waiting = asyncio.create_task(pair.broker.call("js.slow", {"ms": 3_000}))
        raw.send(Kind.DISCOVER, "js")
        info = await raw.next(Kind.INFO)
        for kind, fields in (
            (Kind.DISCONNECT, {"sender": "js"}),
            (Kind.INFO, {**info, "instanceID": "another life", "seq": 1}),
            (Kind.INFO, {**info, "seq": 2**40, "services": []}),
        ):
            refuted = refutations(pair)
            # An INFO to ours alone: theirs ends its process when it hears of a life of its name.
            raw.send(kind, "py" if kind is Kind.INFO else None, **fields)
            await eventually(partial(has_more, pair, refuted), f"not so: {kind}")
            assert await pair.broker.call("js.echo", {"n": 1}) == {"n": 1}
        assert await waiting == "slept"
        assert pair.life_there() == info["instanceID"]
    finally:
        await raw.disconnect()
        await pair.close()


def has_more(pair: Pair, count: int) -> bool:
    return refutations(pair) > count


def refutations(pair: Pair) -> int:
    count: int = pair.broker.statistics()["transit"]["refuted"]
    return count


async def test_our_node_that_is_killed_is_missed_and_may_come_back(nodes: Pair) -> None:
    child, _ = await asyncio.gather(nodes.start_child(), nodes.start_javascript())
    await nodes.js.has_services(*NAMES)
    waiting = asyncio.create_task(nodes.js.call("py.slow", {"ms": 30_000}))
    await nodes.js.call("py.echo")
    child.kill()
    await child.wait()
    with pytest.raises(JavascriptError, match="RequestRejectedError"):
        await waiting
    news = await nodes.js.ask("news", event="$node.disconnected", node=OURS)
    assert news[-1]["event"] == "$node.disconnected"

    child = await nodes.start_child()
    await nodes.js.has_services(*NAMES)
    child.kill()
    await child.wait()
    await nodes.start_python()
    await nodes.broker.wait_for_services(THEIR_NAMES, timeout_s=DEADLINE_S)
    local = nodes.broker.registry.local.instance_id

    async def instance() -> Any:
        return next(it["instanceID"] for it in await nodes.js.ask("nodes") if it["id"] == OURS)

    async with asyncio.timeout(DEADLINE_S):
        while await instance() != local:
            await nodes.js.ask("ping", node=OURS)
    await nodes.js.has_services(*NAMES)
    assert await nodes.js.call("py.echo", {"n": 1}) == {"n": 1}


@pytest.mark.parametrize("wiring", [BEATING], ids=str, indirect=True)
async def test_their_node_that_hangs_is_missed_and_does_not_get_our_name(
    nodes: Pair, modules: Path
) -> None:
    await nodes.start()
    waiting = await begin_slow_call(nodes)
    nodes.js.pause()
    with pytest.raises(RequestRejectedError):
        await waiting
    assert nodes.life_there() is None
    nodes.js.resume()
    await check_both_answer(nodes)

    # It ends when it hears that there is another of its name; ours goes on.
    second = await JavascriptNode.spawn(modules, nodes.javascript_options(OURS))
    with pytest.raises(AssertionError, match="the node ended"):
        await second.ask("start")
    await second.close()
    await check_both_answer(nodes)
