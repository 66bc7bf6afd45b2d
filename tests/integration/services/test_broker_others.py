"""Other nodes: with the same name, gone, silent, in a new life, and behind a lost connection."""

import asyncio
from typing import Any

import pytest

from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import (
    BrokerDisconnectedError,
    BrokerOptionsError,
    RequestRejectedError,
    RequestTimeoutError,
    ServiceNotAvailableError,
)
from postroad.services.kinds import Kind
from postroad.services.service import Service, event
from postroad.services.transporters import MemoryTransporter
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.services.nodes import SHORT, Nodes, RawNode, Worker, raw_service

# Others with the same name.


async def test_a_second_node_with_a_name_is_refused_and_disturbs_nobody(nodes: Nodes) -> None:
    older = await nodes.add("near", Worker())
    far, raw = await nodes.add("far"), await nodes.raw("raw")
    newer_worker = Worker("newer")
    newer = nodes.make("near", newer_worker)
    with pytest.raises(BrokerOptionsError, match="uses the node name 'near'"):
        await newer.start()
    assert not newer.is_running
    assert newer_worker.log == []
    await nodes.settle()
    for broker in (older, far):
        assert await broker.call("worker.act") == "near"
        assert not broker.registry.has_service("newer")
    assert {kind for kind, _ in raw.received_packets} == {Kind.DISCOVER}
    await older.stop()
    assert (await raw.next(Kind.INFO))["services"] == []
    await raw.next(Kind.DISCONNECT)
    await newer.start()


async def test_a_conflict_that_comes_later_is_told_and_changes_nothing(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    near = await nodes.add("near", Worker())
    raw = await nodes.raw("raw")
    raw.send(Kind.INFO, None, sender="near", instanceID="another", seq=1, services=[])
    assert (await raw.ask("near", "worker.act"))["success"]
    assert "uses the node name 'near'" in caplog.text
    await near.stop()
    await raw.next(Kind.DISCONNECT)


# Others that go, fall silent and come again.


async def introduced(nodes: Nodes, broker: Broker) -> RawNode:
    raw = await nodes.raw("raw")
    raw.introduce(raw_service("odd", "act"))
    await broker.wait_for_services("odd", timeout_s=DEADLINE_S)
    return raw


async def test_calls_to_a_node_that_leaves_or_begins_a_new_life_are_over(nodes: Nodes) -> None:
    near = await nodes.add("near")
    raw = await introduced(nodes, near)
    call = asyncio.ensure_future(near.call("odd.act"))
    await raw.next(Kind.REQUEST)
    raw.send(Kind.INFO, None, instanceID="new life", seq=1, services=[raw_service("odd", "act")])
    with pytest.raises(RequestRejectedError):
        await call
    call = asyncio.ensure_future(near.call("odd.act"))
    request = await raw.next(Kind.REQUEST, 2)
    raw.send(Kind.RESPONSE, "near", id=request["id"], success=True, data=1)
    assert await call == 1
    call = asyncio.ensure_future(near.call("odd.act"))
    await raw.next(Kind.REQUEST, 3)
    raw.send(Kind.DISCONNECT)
    with pytest.raises(RequestRejectedError) as caught:
        await call
    assert caught.value.data == {"action": "odd.act", "nodeID": "raw"}
    with pytest.raises(ServiceNotAvailableError):
        await near.call("odd.act")


async def test_calls_that_the_new_life_got_are_not_over(nodes: Nodes) -> None:
    near = await nodes.add("near")
    raw = await introduced(nodes, near)
    before = asyncio.ensure_future(near.call("odd.act"))
    await raw.next(Kind.REQUEST)
    await asyncio.sleep(0.01)
    raw.send(Kind.DISCOVER)
    await raw.next(Kind.INFO)
    after = asyncio.ensure_future(near.call("odd.act"))
    request = await raw.next(Kind.REQUEST, 2)
    raw.send(Kind.INFO, None, instanceID="new life", seq=1, services=[raw_service("odd", "act")])
    with pytest.raises(RequestRejectedError):
        await before
    raw.send(Kind.RESPONSE, "near", id=request["id"], success=True, data="by the new life")
    assert await after == "by the new life"


async def test_a_silent_node_is_lost_and_found_again(nodes: Nodes) -> None:
    near = await nodes.add("near", heartbeat_interval_s=0.1, heartbeat_timeout_s=1.0)
    raw = await introduced(nodes, near)
    await raw.next(Kind.HEARTBEAT)
    call = asyncio.ensure_future(near.call("odd.act"))
    with pytest.raises(RequestRejectedError):
        await call
    assert not near.registry.has_service("odd")
    asked = len(raw.packets(Kind.DISCOVER))
    raw.send(Kind.HEARTBEAT, None, cpu=10)
    await eventually(lambda: len(raw.packets(Kind.DISCOVER)) > asked, "it is asked")
    raw.introduce(raw_service("odd", "act"))
    await near.wait_for_services("odd", timeout_s=DEADLINE_S)


async def test_heartbeats_keep_a_node(nodes: Nodes) -> None:
    times = {"heartbeat_interval_s": 0.05, "heartbeat_timeout_s": 1.0}
    near, far = await nodes.add("near", **times), await nodes.add("far", **times)
    node = near.registry.node("far")
    assert node is not None
    before = node.last_seen
    await eventually(lambda: node.last_seen > before + 1.2, "it was heard for long enough")
    assert node.is_available
    assert far.is_running


async def test_a_heartbeat_on_the_wire(nodes: Nodes) -> None:
    raw = await nodes.raw("raw")
    await nodes.add("near", heartbeat_interval_s=0.02, heartbeat_timeout_s=1.0)
    packet = await raw.next(Kind.HEARTBEAT)
    info = await raw.next(Kind.INFO)
    assert (packet["sender"], packet["ver"]) == ("near", "5")
    assert (packet["seq"], packet["instanceID"]) == (info["seq"], info["instanceID"])
    assert 0 <= packet["cpu"] <= 100


async def test_a_missed_info_is_asked_for(nodes: Nodes) -> None:
    near = await nodes.add("near")
    raw = await introduced(nodes, near)
    asked = len(raw.packets(Kind.DISCOVER))
    raw.send(Kind.HEARTBEAT, None, cpu=10, seq=9, instanceID="life of raw")
    await eventually(lambda: len(raw.packets(Kind.DISCOVER)) > asked, "it is asked")
    assert raw.packets(Kind.DISCOVER)[-1]["sender"] == "near"


async def test_pings(nodes: Nodes) -> None:
    near, _ = await nodes.add("near"), await nodes.add("far")
    result = await near.ping("far")
    assert result.node_id == "far"
    assert 0 <= result.elapsed_s < 5
    assert abs(result.time_difference_s) < 5
    with pytest.raises(RequestTimeoutError, match="'nobody'"):
        await near.ping("nobody", timeout_s=0.01)
    raw = await nodes.raw("raw")
    raw.send(Kind.PING, "near", id="p", time=123)
    pong = await raw.next(Kind.PONG)
    assert (pong["id"], pong["time"]) == ("p", 123)
    raw.send(Kind.PONG, "near", id="unknown", time=1, arrived=2)
    assert (await near.ping("far")).node_id == "far"


# Connections that are lost.


class Loose(MemoryTransporter):
    """A connection that the test cuts and mends."""

    async def cut(self) -> None:
        await self.disconnect()
        self.listener.disconnected("cut")

    async def mend(self) -> None:
        listener, self.listener = self.listener, _Deaf()
        try:
            await self.connect()
        finally:
            self.listener = listener
        listener.connected(is_again=True)


class _Deaf:
    """Hears nothing of a connection."""

    def received(
        self, kind: Kind, data: bytes, done: object = None, sender: str | None = None
    ) -> None: ...
    def connected(self, *, is_again: bool) -> None: ...
    def disconnected(self, reason: str) -> None: ...
    def node_lost(self, node_id: str, *, is_unexpected: bool) -> None: ...


async def test_a_node_that_was_cut_off_catches_up(nodes: Nodes) -> None:
    told: list[tuple[str, Any]] = []

    class Watcher(Service):
        name = "watcher"

        @event("$transporter.*")
        def on_change(self, ctx: Context) -> None:
            told.append((ctx.event, ctx.params))

    far = await nodes.add("far", Worker())
    loose = Loose(nodes.hub)
    near = Broker("near", transporter=loose, **SHORT)
    near.add(Watcher())
    async with near:
        await near.wait_for_services("worker", timeout_s=DEADLINE_S)
        await loose.cut()
        assert not near.is_connected
        with pytest.raises(BrokerDisconnectedError) as caught:
            await near.call("worker.act")
        assert caught.value.retryable
        with pytest.raises(BrokerDisconnectedError):
            await near.ping("far")
        await near.launch(Worker("own"))
        await far.launch(Worker("new"))
        assert await near.call("own.act") == "near"
        await loose.mend()
        await near.wait_for_services("new", timeout_s=DEADLINE_S)
        await far.wait_for_services("own", timeout_s=DEADLINE_S)
        assert await far.call("own.act") == "near"
        assert await near.call("new.act") == "far"
        names = [name for name, _ in told]
        assert names == ["$transporter.disconnected", "$transporter.connected"]
        assert told[1][1] == {"wasReconnect": True}


async def test_metadata_that_cannot_be_sent_is_left_out(nodes: Nodes) -> None:
    await nodes.add("near", metadata={"zone": 1, "secret": object()})
    far = await nodes.add("far")
    told = next(it for it in await far.call("$node.list") if it["id"] == "near")
    assert told["metadata"] == {"zone": 1}
