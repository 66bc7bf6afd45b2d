"""Packets that somebody sends in the name of a node: what they may not do to those who live."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import RequestRejectedError
from postroad.services.kinds import Kind
from postroad.services.service import Service, action
from postroad.services.transporters import MemoryTransporter
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.services.nodes import SHORT, Nodes, RawNode, Worker, raw_service

CALLS = 50
PATIENT = {"verify_timeout_s": 30.0}
"""Long enough for a busy machine to answer."""

Forge = Callable[[RawNode, dict[str, Any]], None]


def forge_goodbye(raw: RawNode, info: dict[str, Any]) -> None:
    raw.send(Kind.DISCONNECT, None, sender="far")


def forge_goodbye_of_this_life(raw: RawNode, info: dict[str, Any]) -> None:
    raw.send(Kind.DISCONNECT, None, sender="far", instanceID=info["instanceID"])


def forge_goodbye_to_one(raw: RawNode, info: dict[str, Any]) -> None:
    raw.send(Kind.DISCONNECT, "near", sender="far")


def forge_many_goodbyes(raw: RawNode, info: dict[str, Any]) -> None:
    for _ in range(100):
        raw.send(Kind.DISCONNECT, None, sender="far")


def forge_restart(raw: RawNode, info: dict[str, Any]) -> None:
    raw.send(Kind.INFO, None, **{**info, "instanceID": "another life", "seq": 1})


def forge_restarts_in_turn(raw: RawNode, info: dict[str, Any]) -> None:
    for number in range(20):
        raw.send(Kind.INFO, None, **{**info, "instanceID": f"life {number}", "services": []})


def forge_restart_twice(raw: RawNode, info: dict[str, Any]) -> None:
    forge_restart(raw, info)
    forge_restart(raw, info)


def forge_nothing_offered(raw: RawNode, info: dict[str, Any]) -> None:
    raw.send(Kind.INFO, None, **{**info, "seq": info["seq"] + 1, "services": []})


def forge_nothing_offered_for_ever(raw: RawNode, info: dict[str, Any]) -> None:
    raw.send(Kind.INFO, None, **{**info, "seq": 2**53 - 1, "services": []})


def forge_no_time_for_calls(raw: RawNode, info: dict[str, Any]) -> None:
    services = [{**it, "actions": _hurried(it["actions"])} for it in info["services"]]
    raw.send(Kind.INFO, None, **{**info, "seq": info["seq"] + 1, "services": services})


def forge_restart_and_goodbye(raw: RawNode, info: dict[str, Any]) -> None:
    forge_restart(raw, info)
    forge_goodbye(raw, info)


def _hurried(actions: dict[str, Any]) -> dict[str, Any]:
    return {name: {**it, "timeout": 1} for name, it in actions.items()}


@pytest.mark.parametrize(
    "forge",
    [
        forge_goodbye,
        forge_goodbye_of_this_life,
        forge_goodbye_to_one,
        forge_many_goodbyes,
        forge_restart,
        forge_restart_twice,
        forge_restarts_in_turn,
        forge_nothing_offered,
        forge_nothing_offered_for_ever,
        forge_no_time_for_calls,
        forge_restart_and_goodbye,
    ],
)
async def test_forged_packet_of_a_live_node_costs_no_call(nodes: Nodes, forge: Forge) -> None:
    worker = Worker()
    near, far = await nodes.add("near", **PATIENT), await nodes.add("far", worker)
    raw = await nodes.raw("raw")
    calls = [asyncio.ensure_future(near.call("worker.wait")) for _ in range(CALLS)]
    await worker.gate.reached(CALLS)
    raw.send(Kind.DISCOVER, "far")
    forge(raw, await raw.next(Kind.INFO))
    await heard(raw, "near")
    assert not any(call.done() for call in calls)
    # It is asked whether it is there, and meanwhile there is no other to be called.
    assert await near.call("worker.act") == "far"
    await settled(near, "far")
    assert await near.call("worker.act") == "far"
    assert far.is_running
    worker.gate.open()
    assert await asyncio.gather(*calls) == ["done"] * CALLS
    assert calm(near, "far", instance_of(far))


async def heard(raw: RawNode, node_id: str) -> None:
    """Wait until a node has dealt with all that the raw one sent."""
    assert (await raw.ask(node_id, "$node.list"))["success"]


async def settled(broker: Broker, node_id: str) -> None:
    """Wait until what somebody said of a node is found to be true or not."""
    node = broker.registry.node(node_id)
    assert node is not None
    await eventually(lambda: node.doubt is None, "the doubt is over", DEADLINE_S)


def instance_of(broker: Broker) -> str:
    return broker.registry.local.instance_id


def calm(broker: Broker, node_id: str, instance_id: str) -> bool:
    """Whether a node is known as it was."""
    node = broker.registry.node(node_id)
    return node is not None and node.is_available and node.instance_id == instance_id


class Named(Service):
    name = "named"

    @action
    def where(self, ctx: Context) -> str:
        return ctx.broker.node_id


async def test_doubtful_node_is_avoided_where_there_is_another(nodes: Nodes) -> None:
    near = await nodes.add("near", **PATIENT)
    await nodes.add("other", Named())
    raw = await nodes.raw("raw")
    raw.introduce(raw_service("named", "where"))
    await eventually(lambda: len(near.registry.actions.get("named.where") or ()) == 2, "both")
    raw.send(Kind.DISCONNECT)
    await heard(raw, "near")
    assert [await near.call("named.where") for _ in range(4)] == ["other"] * 4
    # Whoever names it still gets through, and so does an event for all.
    call = asyncio.ensure_future(near.call("named.where", node_id="raw"))
    request = await raw.next(Kind.REQUEST)
    raw.send(Kind.RESPONSE, "near", id=request["id"], success=True, data="raw")
    assert await call == "raw"


async def test_node_that_leaves_answers_no_ping_and_is_lost(nodes: Nodes) -> None:
    worker = Worker()
    near, far = await nodes.add("near"), await nodes.add("far", worker, stop_timeout_s=0.01)
    raw = await nodes.raw("raw")
    call = asyncio.ensure_future(near.call("worker.wait"))
    await worker.gate.reached()
    stopping = asyncio.ensure_future(far.stop())
    await raw.next(Kind.DISCONNECT)
    raw.send(Kind.PING, "far", time=1, id="late")
    await stopping
    with pytest.raises(RequestRejectedError):
        await call
    await eventually(lambda: not near.registry.has_service("worker"), "it is lost")
    assert raw.packets(Kind.PONG) == []


async def test_node_that_is_there_again_at_once_is_noticed(nodes: Nodes) -> None:
    """A process that was killed and started again says nothing but who it is now."""
    near = await nodes.add("near")
    raw = await nodes.raw("raw")
    raw.introduce(raw_service("odd", "act"))
    await near.wait_for_services("odd", timeout_s=DEADLINE_S)
    call = asyncio.ensure_future(near.call("odd.act"))
    await raw.next(Kind.REQUEST)
    await raw.disconnect()
    transporter = MemoryTransporter(nodes.hub)
    again = Broker("raw", transporter=transporter, **SHORT)
    again.add(Named())
    nodes.brokers.append(again)
    await again.start()
    with pytest.raises(RequestRejectedError):
        await call
    assert await near.call("named.where") == "raw"
    assert not near.registry.has_service("odd")


async def test_restart_that_is_claimed_again_and_again_costs_no_call(nodes: Nodes) -> None:
    """Whoever says it often, and while the node is asked, does not confirm it."""
    worker = Worker()
    near, far = await nodes.add("near", **PATIENT), await nodes.add("far", worker)
    raw = await nodes.raw("raw")
    call = asyncio.ensure_future(near.call("worker.wait"))
    await worker.gate.reached()
    raw.send(Kind.DISCOVER, "far")
    info = await raw.next(Kind.INFO)
    while near.statistics()["transit"]["refuted"] < 20:
        forge_restart_twice(raw, info)
        await heard(raw, "near")
        assert not call.done()
    await settled(near, "far")
    worker.gate.open()
    assert await call == "done"
    assert calm(near, "far", instance_of(far))


# Those who ask.


async def test_flood_of_questions_is_answered_seldom_and_a_newcomer_soon(nodes: Nodes) -> None:
    near = await nodes.add("near", Worker())
    raw = await nodes.raw("raw")
    for number in range(2_000):
        raw.send(Kind.DISCOVER, None, sender=f"stranger-{number % 500}")
    newcomer = await nodes.raw("newcomer")
    # The newcomer was answered, by an answer of its own or by one for all.
    assert near.statistics()["transit"]["packets_sent"] < 100
    assert newcomer.received_packets == []


async def test_flood_in_the_name_of_one_is_answered_seldom(nodes: Nodes) -> None:
    near = await nodes.add("near", Worker())
    raw = await nodes.raw("raw")
    for _ in range(1_000):
        raw.send(Kind.DISCOVER)
    await heard(raw, "near")
    await raw.next(Kind.INFO)
    assert len(raw.packets(Kind.INFO)) < 10
    assert near.is_running


async def test_flood_of_heartbeats_asks_a_node_seldom(nodes: Nodes) -> None:
    near = await nodes.add("near")
    raw = await nodes.raw("raw")
    raw.introduce(raw_service("odd", "act"))
    await near.wait_for_services("odd", timeout_s=DEADLINE_S)
    for number in range(1_000):
        raw.send(Kind.HEARTBEAT, None, cpu=1, seq=100 + number, instanceID="life of raw")
    await heard(raw, "near")
    assert len(raw.packets(Kind.DISCOVER)) < 10


# Those who are not there.


@pytest.mark.parametrize("count", [10_000])
async def test_newcomer_is_found_among_nodes_that_are_not_there(nodes: Nodes, count: int) -> None:
    near = await nodes.add("near")
    raw = await nodes.raw("raw")
    for number in range(count):
        raw.send(
            Kind.INFO,
            "near",
            sender=f"nobody-{number}",
            instanceID=f"life {number}",
            seq=1,
            services=[raw_service("named", "where")],
        )
    newcomer = nodes.make("newcomer", Worker())
    await newcomer.start()
    await near.wait_for_services("worker", timeout_s=DEADLINE_S)
    assert await near.call("worker.act") == "newcomer"
    assert len(near.registry.nodes()) < 200


async def test_heartbeats_of_nodes_that_are_not_there_keep_nobody_out(nodes: Nodes) -> None:
    near = await nodes.add("near")
    raw = await nodes.raw("raw")
    for number in range(10_000):
        raw.send(Kind.HEARTBEAT, "near", sender=f"nobody-{number}", cpu=1)
    newcomer = nodes.make("newcomer", Worker())
    await newcomer.start()
    await near.wait_for_services("worker", timeout_s=DEADLINE_S)
    assert await near.call("worker.act") == "newcomer"
