"""What our node and one of the original system know of each other, while both are there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from postroad.services.context import Context
from postroad.services.errors import (
    BrokerDisconnectedError,
    RequestTimeoutError,
    ServiceNotAvailableError,
)
from postroad.services.service import Service, action
from tests.interop.services.javascript_node import JavascriptError, JavascriptNode
from tests.interop.services.pairs import OURS, THEIRS, Pair, Wiring, over
from tests.support.deadlines import DEADLINE_S, eventually

pytestmark = over(Wiring("TCP"), Wiring("NATS"))


class Late(Service):
    name = "late"

    @action
    def run(self, ctx: Context) -> str:
        return "late"


async def node_there(pair: Pair, node_id: str) -> Any:
    """What the other node knows of a node."""
    return next(it for it in await pair.js.ask("nodes") if it["id"] == node_id)


async def test_ping(pair: Pair) -> None:
    ours = await pair.broker.ping(THEIRS)
    theirs = await pair.js.ask("ping", node=OURS)

    assert (ours.node_id, theirs["nodeID"]) == (THEIRS, OURS)
    assert 0 <= ours.elapsed_s < DEADLINE_S
    assert abs(ours.time_difference_s) < DEADLINE_S
    assert 0 <= theirs["elapsedTime"] < DEADLINE_S * 1_000
    assert abs(theirs["timeDiff"]) < DEADLINE_S * 1_000

    with pytest.raises((BrokerDisconnectedError, RequestTimeoutError)):
        await pair.broker.ping("nobody", timeout_s=0.1)


async def test_what_is_told_of_a_node_and_its_services(pair: Pair) -> None:
    theirs = pair.broker.registry.node(THEIRS)
    ours = await node_there(pair, OURS)

    assert theirs is not None
    assert theirs.is_available
    assert (theirs.info.client.type, theirs.info.client.version) == ("nodejs", "0.15.2")
    assert theirs.info.metadata == {"region": "there"}
    assert ours["available"]
    assert ours["client"]["type"] == "postroad"
    assert ours["metadata"] == {"region": "here"}
    assert ours["instanceID"] == pair.broker.registry.local.instance_id

    # Settings are for all to read, but those that are to be kept to oneself.
    services = {it.full_name: it for it in theirs.info.services}
    our_services = {it["fullName"]: it for it in ours["services"]}
    assert {"$node", "js", "v2.js", "beta.js", "shared"} == services.keys()
    assert {"$node", "py", "v2.py", "beta.py", "shared"} == our_services.keys()
    js, py = services["js"], our_services["py"]
    assert (js.settings["colour"], js.metadata["made"]) == ("red", "in js")
    assert (py["settings"]["colour"], py["metadata"]["made"]) == ("blue", "in python")
    assert "key" not in js.settings
    assert "key" not in py["settings"]

    actions = await pair.js.ask("actions")

    assert {"py.echo", "v2.py.where", "beta.py.where", "py.open"} <= {*actions}
    assert not {"py.guarded", "py.secret"} & {*actions}


async def test_services_come_and_go(pair: Pair) -> None:
    await pair.broker.launch(Late())
    await pair.js.has_services("late")
    assert await pair.js.call("late.run") == "late"

    await pair.broker.remove("late")
    await pair.js.lacks_services("late")
    with pytest.raises(JavascriptError, match="ServiceNotAvailableError"):
        await pair.js.call("late.run")

    await pair.js.ask("create", name="late")
    await pair.broker.wait_for_services("late", timeout_s=DEADLINE_S)
    assert await pair.broker.call("late.run") == "late"

    await pair.js.ask("destroy", name="late")
    await eventually(lambda: not pair.broker.registry.has_service("late"), "forgotten", DEADLINE_S)
    with pytest.raises(ServiceNotAvailableError):
        await pair.broker.call("late.run")


async def test_another_node_of_ours_joins(pair: Pair) -> None:
    """It hears of both, and both of it, whoever told them."""
    third = pair.make_broker("third")
    third.add(Late())
    async with third:
        await third.wait_for_services(["js", "py"], timeout_s=DEADLINE_S)
        await pair.js.has_services("late")
        await pair.broker.wait_for_services("late", timeout_s=DEADLINE_S)
        assert await pair.js.call("late.run", nodeID="third") == "late"
        assert await pair.broker.call("late.run") == "late"
        assert await third.call("js.echo", {"n": 1}) == {"n": 1}
    await pair.js.lacks_services("late")
    await eventually(lambda: not pair.broker.registry.has_service("late"), "forgotten", DEADLINE_S)


async def test_a_third_node_uses_both(pair: Pair) -> None:
    """Calls and events of a group go to each in turn, whichever system it is of."""
    third = pair.make_broker("third")
    async with third:
        await third.wait_for_services(["js", "py"], timeout_s=DEADLINE_S)
        answered = [await third.call("shared.where") for _ in range(10)]
        for number in range(10):
            await third.emit("shared.done", number)
        theirs, ours = await pair.js.heard(5), await pair.hear(5)

    assert sorted(answered) == [THEIRS] * 5 + [OURS] * 5
    assert sorted(it["data"] for it in theirs + ours) == [*range(10)]
    assert len(theirs) == len(ours) == 5


async def test_another_node_of_theirs_uses_both(pair: Pair, modules: Path) -> None:
    # With TCP nodes of theirs would look for one of the same name where the one before was.
    fourth = await JavascriptNode.spawn(modules, pair.javascript_options("fourth"))
    try:
        await fourth.ask("start")
        await fourth.ask("destroy", name="shared")
        await fourth.has_services("py")
        answered: list[str] = []
        async with asyncio.timeout(DEADLINE_S):
            while {*answered} != {OURS, THEIRS}:  # It hears of one, then of the other.
                await fourth.has_services("shared")
                answered = [await fourth.call("shared.where") for _ in range(2)]
        answered = [await fourth.call("shared.where") for _ in range(10)]
    finally:
        await fourth.close()

    assert sorted(answered) == [THEIRS] * 5 + [OURS] * 5
