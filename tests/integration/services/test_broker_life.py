"""The life of a node: its start, its end, others with its name, and those that fall silent."""

import asyncio
from typing import Any

import pytest

from postroad.core.errors import UsageError
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import (
    BrokerDisconnectedError,
    RequestRejectedError,
    ServiceNotAvailableError,
)
from postroad.services.kinds import Kind
from postroad.services.service import action
from postroad.services.transporters import MemoryTransporter
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.services.nodes import SHORT, Gate, Nodes, Worker


class Failing(Worker):
    async def started(self) -> None:
        raise OSError("no disk")


def services_in(info: dict[str, Any]) -> set[str]:
    return {it["name"] for it in info["services"]}


# The start.


async def test_a_service_is_announced_when_it_has_started(nodes: Nodes) -> None:
    raw = await nodes.raw("raw")
    slow, quick = Worker("slow"), Worker("quick")
    slow.start_gate = Gate()
    broker = nodes.make("near", slow, quick)
    starting = asyncio.ensure_future(broker.start())
    await slow.start_gate.reached()
    await eventually(lambda: raw.packets(Kind.INFO), "what has started is told")
    assert services_in(raw.packets(Kind.INFO)[-1]) == {"$node", "quick"}
    raw.send(Kind.DISCOVER)
    told = await raw.ask("near", "slow.act")
    assert told["error"]["name"] == "ServiceNotFoundError"
    assert all(services_in(it) == {"$node", "quick"} for it in raw.packets(Kind.INFO))
    slow.start_gate.open()
    await starting
    await eventually(lambda: "slow" in services_in(raw.packets(Kind.INFO)[-1]), "the rest is told")


async def test_nothing_is_said_before_others_were_heard(nodes: Nodes) -> None:
    raw = await nodes.raw("raw")
    broker = nodes.make("near", Worker(), start_wait_s=0.1)
    starting = asyncio.ensure_future(broker.start())
    await raw.next(Kind.DISCOVER)
    raw.send(Kind.DISCOVER)
    raw.send(Kind.DISCOVER, "near")
    assert not raw.packets(Kind.INFO)
    await starting
    info = await raw.next(Kind.INFO)
    assert services_in(info) == {"$node", "worker"}
    assert info["seq"] == 2


async def test_starting_or_stopping_twice_is_done_once(nodes: Nodes) -> None:
    worker = Worker()
    near = nodes.make("near", worker)
    await asyncio.gather(near.start(), near.start())
    await near.start()
    assert worker.log == ["started"]
    await asyncio.gather(near.stop(), near.stop())
    await near.stop()
    assert worker.log == ["started", "stopped"]
    await Broker("never-started").stop()


async def test_a_service_that_fails_ends_everything_that_was_begun(nodes: Nodes) -> None:
    raw = await nodes.raw("raw")
    good, bad, waiting = Worker("good"), Failing("bad"), Worker("waiting")
    waiting.start_gate = Gate()
    broker = nodes.make("near", good, bad, waiting)
    with pytest.raises(OSError, match="no disk"):
        await broker.start()
    assert not broker.is_running
    assert good.log in (["started", "stopped"], [])
    assert (bad.log, waiting.log) == ([], [])
    assert waiting.start_gate.waiting == 0
    await raw.next(Kind.DISCONNECT)
    with pytest.raises(UsageError):
        await broker.call("good.act")
    await broker.remove("bad")
    waiting.start_gate.open()
    await broker.start()
    assert await broker.call("waiting.act") == "near"


async def test_a_start_can_be_cancelled_timed_or_stopped(nodes: Nodes) -> None:
    worker = Worker()
    worker.start_gate = Gate()
    broker = nodes.make("near", worker)
    starting = asyncio.ensure_future(broker.start())
    await worker.start_gate.reached()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not broker.is_running
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await broker.start()
    assert not broker.is_running
    starting = asyncio.ensure_future(broker.start())
    await worker.start_gate.reached()
    await broker.stop()
    with pytest.raises(UsageError, match="stopped while it started"):
        await starting
    assert not broker.is_running
    assert worker.log == []
    worker.start_gate.open()
    await broker.start()
    assert worker.log == ["started"]


class Absent(MemoryTransporter):
    """A server that is not there for a while."""

    def __init__(self, nodes: Nodes, failures: int) -> None:
        super().__init__(nodes.hub)
        self.failures = failures

    async def connect(self) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionRefusedError("nobody there")
        await super().connect()


async def test_a_node_waits_for_its_server_until_it_is_stopped(nodes: Nodes) -> None:
    async with Broker("near", transporter=Absent(nodes, 2), **SHORT) as broker:
        assert broker.is_connected
    absent = Absent(nodes, 1_000)
    broker = Broker("near", transporter=absent, **SHORT)
    starting = asyncio.ensure_future(broker.start())
    await eventually(lambda: absent.failures < 1_000, "it tries")
    await broker.stop()
    with pytest.raises(UsageError):
        await starting


# The end.


async def test_a_node_takes_its_leave_step_by_step(nodes: Nodes) -> None:
    worker = Worker()
    near = await nodes.add("near", worker)
    raw = await nodes.raw("raw")
    raw.send(Kind.REQUEST, "near", id="1", action="worker.wait")
    await worker.gate.reached()
    stopping = asyncio.ensure_future(near.stop())
    info = await raw.next(Kind.INFO)
    assert info["services"] == []
    refused = await raw.ask("near", "worker.act")
    assert refused["error"]["name"] == "ServiceNotAvailableError"
    assert (refused["error"]["code"], refused["error"]["retryable"]) == (404, True)
    assert not raw.packets(Kind.DISCONNECT)
    worker.gate.open()
    await stopping
    await raw.next(Kind.DISCONNECT)
    kinds = [kind for kind, _ in raw.received_packets if kind is not Kind.DISCOVER]
    assert kinds == [Kind.INFO, Kind.RESPONSE, Kind.RESPONSE, Kind.DISCONNECT]
    assert raw.packets(Kind.RESPONSE)[1]["data"] == "done"
    assert worker.log == ["started", "call ended", "stopped"]


async def test_what_was_withdrawn_is_not_offered_again(nodes: Nodes) -> None:
    gate = Gate()

    class Slow(Worker):
        async def stopped(self) -> None:
            await gate.passed()

    near = await nodes.add("near", Worker("first"), Slow("slow"), Worker("last"))
    raw = await nodes.raw("raw")
    stopping = asyncio.ensure_future(near.stop())
    await gate.reached()
    raw.send(Kind.DISCOVER)
    raw.send(Kind.DISCOVER, "near")
    await raw.next(Kind.INFO, 3)
    # Announcements would come about now.
    await asyncio.sleep(0.05)
    assert [it["services"] for it in raw.packets(Kind.INFO)] == [[], [], []]
    assert len({it["seq"] for it in raw.packets(Kind.INFO)}) == 1
    gate.open()
    await stopping


async def test_a_node_that_was_never_announced_says_nothing_at_the_end(nodes: Nodes) -> None:
    raw = await nodes.raw("raw")
    near = nodes.make("near", Worker(), start_wait_s=5)
    starting = asyncio.ensure_future(near.start())
    await raw.next(Kind.DISCOVER)
    await near.stop()
    with pytest.raises(UsageError):
        await starting
    await asyncio.sleep(0)
    assert {kind for kind, _ in raw.received_packets} == {Kind.DISCOVER}


async def test_what_is_on_its_way_is_still_served(nodes: Nodes) -> None:
    near = await nodes.add("near", Worker(), stop_delay_s=0.3)
    raw = await nodes.raw("raw")
    stopping = asyncio.ensure_future(near.stop())
    await raw.next(Kind.INFO)
    assert (await raw.ask("near", "worker.act"))["data"] == "near"
    await stopping


async def test_calls_of_this_node_and_events_finish_too(nodes: Nodes) -> None:
    worker = Worker()
    near = await nodes.add("near", worker)
    call = asyncio.ensure_future(near.call("worker.wait"))
    await near.emit("work")
    await worker.gate.reached(2)
    stopping = asyncio.ensure_future(near.stop())
    await asyncio.sleep(0.05)
    assert worker.log == ["started"]
    worker.gate.open()
    await stopping
    assert await call == "done"
    assert sorted(worker.log[1:3]) == ["call ended", "event ended"]
    assert worker.log[3] == "stopped"


async def test_what_takes_too_long_is_ended(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker()
    near = await nodes.add("near", worker, stop_timeout_s=0.05)
    far = await nodes.add("far")
    call = asyncio.ensure_future(far.call("worker.wait"))
    await far.emit("work")
    await worker.gate.reached(2)
    await asyncio.wait_for(near.stop(), DEADLINE_S)
    with pytest.raises(RequestRejectedError) as caught:
        await call
    assert caught.value.retryable
    assert worker.log == ["started", "stopped"]
    assert "2 calls and events took too long" in caplog.text


async def test_a_stop_that_is_cancelled_waits_for_nobody_and_leaves_nothing(nodes: Nodes) -> None:
    worker = Worker()
    near = await nodes.add("near", worker)
    call = asyncio.ensure_future(near.call("worker.wait"))
    await worker.gate.reached()
    stopping = asyncio.ensure_future(near.stop())
    await asyncio.sleep(0.05)
    stopping.cancel()
    await asyncio.wait([stopping])
    assert stopping.cancelled()
    assert worker.log == ["started", "stopped"]
    assert not near.is_running
    worker.gate.open()
    assert await call == "done"
    await near.start()
    assert worker.log[-1] == "started"


async def test_services_stop_in_reverse_and_hinder_nobody(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    order: list[str] = []

    class One(Worker):
        async def stopped(self) -> None:
            order.append(self.full_name)
            raise ValueError("in stopped")

    class Hanging(Worker):
        async def stopped(self) -> None:
            order.append(self.full_name)
            await asyncio.Event().wait()

    near = await nodes.add(
        "near", One("first"), Hanging("hanging"), One("last"), stop_timeout_s=0.1
    )
    await asyncio.wait_for(near.stop(), DEADLINE_S)
    assert order == ["last", "hanging", "first"]
    assert caplog.text.count("did not stop in good order") == 3
    assert not near.is_running


async def test_a_service_may_call_others_while_it_stops(nodes: Nodes) -> None:
    answers: list[Any] = []

    class Last(Worker):
        async def stopped(self) -> None:
            answers.append(await self.broker.call("worker.act"))
            answers.append(await self.broker.call("distant.act"))

    await nodes.add("far", Worker("distant"))
    near = await nodes.add("near", Worker(), Last("last"))
    await near.stop()
    assert answers == ["near", "far"]


async def test_an_action_can_stop_its_broker_and_may_wait_for_that(nodes: Nodes) -> None:
    stopping: list[asyncio.Future[None]] = []

    class Switch(Worker):
        @action
        async def off(self, ctx: Context) -> None:
            if ctx.params.get("waits"):
                await self.broker.stop()
            stopping.append(asyncio.ensure_future(self.broker.stop()))

    near = await nodes.add("near", Switch(), stop_timeout_s=0.05)
    far = await nodes.add("far")
    assert await far.call("worker.off") is None
    await asyncio.wait_for(stopping[0], DEADLINE_S)
    assert not near.is_running
    await near.start()
    await nodes.settle()
    with pytest.raises(RequestRejectedError):
        await far.call("worker.off", {"waits": True}, timeout_s=5)
    assert not near.is_running


async def test_who_does_not_want_to_end_keeps_nobody(nodes: Nodes) -> None:
    gate = Gate()

    class Stubborn(Worker):
        @action
        async def stay(self, ctx: Context) -> None:
            try:
                await self.gate.passed()
            except asyncio.CancelledError:
                await gate.passed()

    near = await nodes.add("near", service := Stubborn(), stop_timeout_s=0.05)
    raw = await nodes.raw("raw")
    raw.send(Kind.REQUEST, "near", id="1", action="worker.stay", timeout=0)
    await service.gate.reached()
    await asyncio.wait_for(near.stop(), DEADLINE_S)
    await gate.reached()
    gate.open()


async def test_calls_that_wait_fail_when_their_node_stops(nodes: Nodes) -> None:
    worker = Worker()
    await nodes.add("near", worker)
    far = await nodes.add("far")
    call = asyncio.ensure_future(far.call("worker.wait"))
    await worker.gate.reached()
    await far.stop()
    with pytest.raises(BrokerDisconnectedError):
        await call


async def test_a_broker_can_start_again(nodes: Nodes) -> None:
    worker = Worker()
    near = await nodes.add("near", worker)
    far = await nodes.add("far")
    for _ in range(3):
        await near.stop()
        await eventually(lambda: not far.registry.has_service("worker"), "it is gone")
        with pytest.raises(ServiceNotAvailableError):
            await far.call("worker.act")
        await near.start()
        await nodes.settle()
        assert await far.call("worker.act") == "near"
    assert worker.log == ["started", "stopped"] * 3 + ["started"]


def test_a_broker_is_made_where_no_loop_runs() -> None:
    broker = Broker("near")
    broker.add(Worker())

    async def main() -> Any:
        async with broker:
            return await broker.call("worker.act")

    assert asyncio.run(main()) == "near"
    assert asyncio.run(main()) == "near"
