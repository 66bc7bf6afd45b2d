"""What is done when calls fail or are too many: retries, circuit breakers, bulkheads, fallbacks."""

import asyncio
from typing import Any

import pytest

from postroad.services.breakers import BreakerConfig
from postroad.services.broker import Broker
from postroad.services.bulkheads import BulkheadConfig
from postroad.services.context import Context
from postroad.services.errors import (
    MoleculerClientError,
    MoleculerError,
    MoleculerRetryableError,
    MoleculerServerError,
    QueueIsFullError,
    RequestSkippedError,
    RequestTimeoutError,
    ServiceNotAvailableError,
    ServiceNotFoundError,
)
from postroad.services.kinds import Kind
from postroad.services.policies import RetryPolicy
from postroad.services.service import Service, action, event
from tests.support.deadlines import eventually
from tests.support.services.nodes import Gate, Nodes, raw_service

RETRY = RetryPolicy(is_enabled=True, retries=3, delay_s=0.001)
BREAKER = BreakerConfig(is_enabled=True, requests_min=4, half_open_s=0.05)
NARROW = BulkheadConfig(is_enabled=True, concurrency=2, queue_max=1)


class Shaky(Service):
    """Fails as often as it is told."""

    name = "shaky"

    def __init__(self, failures: int = 0, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or MoleculerRetryableError("again")
        self.seen: list[tuple[str, str]] = []
        self.gate = Gate()

    @action
    async def act(self, ctx: Context) -> str:
        self.seen.append((ctx.id, ctx.request_id))
        if len(self.seen) <= self.failures:
            raise self.error
        return ctx.broker.node_id

    @action
    def act_at_once(self, ctx: Context) -> str:
        if self.failures:
            raise self.error
        return ctx.broker.node_id

    @action
    async def wait(self, ctx: Context) -> None:
        await self.gate.passed()


async def two(nodes: Nodes, service: Service, **settings: Any) -> tuple[Broker, Broker]:
    near = await nodes.add("near", service, **settings)
    return near, await nodes.add("far", **settings)


# Retries.


@pytest.mark.parametrize("at", [0, 1])
async def test_failed_calls_are_tried_again_for_a_while(nodes: Nodes, at: int) -> None:
    service = Shaky(failures=3)
    broker = (await two(nodes, service, retry=RETRY))[at]
    assert await broker.call("shaky.act") == "near"
    ids, requests = zip(*service.seen, strict=True)
    assert len({*ids}) == 4
    assert len({*requests}) == 1
    service.failures = 100
    for retries, tries in ((None, 4), (0, 1)):
        service.seen.clear()
        with pytest.raises(MoleculerRetryableError):
            await broker.call("shaky.act", retries=retries)
        assert len(service.seen) == tries


async def test_what_cannot_get_better_is_not_tried_again(nodes: Nodes) -> None:
    service = Shaky(failures=9)
    for broker in await two(nodes, service, retry=RETRY):
        for error in (MoleculerClientError("no"), KeyError("k")):
            service.error = error
            service.seen.clear()
            with pytest.raises((MoleculerError, KeyError)):
                await broker.call("shaky.act")
            assert len(service.seen) == 1


async def test_a_call_or_an_action_can_ask_for_retries(nodes: Nodes) -> None:
    class Asking(Shaky):
        @action(retry=RETRY)
        async def again(self, ctx: Context) -> str:
            return await self.act(ctx)

    service = Asking(failures=2)
    _, far = await two(nodes, service)
    assert await far.call("shaky.act", retries=2) == "near"
    service.seen.clear()
    service.failures = 3
    assert await far.call("shaky.again") == "near"


async def test_the_next_try_may_go_to_another_node(nodes: Nodes) -> None:
    services = [Shaky(failures=100), Shaky()]
    await nodes.add("bad", services[0])
    await nodes.add("good", services[1])
    far = await nodes.add("far", retry=RETRY)
    assert [await far.call("shaky.act") for _ in range(3)] == ["good"] * 3
    assert services[0].seen


async def test_a_try_waits_for_a_service_that_is_gone_for_a_moment(nodes: Nodes) -> None:
    service = Shaky()
    near = await nodes.add("near", service)
    far = await nodes.add("far", retry=RetryPolicy(is_enabled=True, retries=50, delay_s=0.01))
    call = asyncio.ensure_future(far.call("shaky.wait"))
    await service.gate.reached()
    service.gate = Gate()
    service.gate.open()
    lost = far.registry
    await near.stop()
    assert lost.node("near") is not None
    await near.start()
    await call


async def test_each_try_has_its_time_but_no_more_than_the_caller(nodes: Nodes) -> None:
    service = Shaky()
    near, far = await two(nodes, service, retry=RETRY)
    with pytest.raises(RequestTimeoutError):
        await far.call("shaky.wait", timeout_s=0.02)
    parent = Context(near, timeout_s=0.05, started_at=near.now())
    with pytest.raises((RequestSkippedError, RequestTimeoutError)):
        await parent.call("shaky.wait", timeout_s=0.04)
    assert near.now() - parent.started_at < 2


# Circuit breakers.


class Watcher(Service):
    name = "watcher"

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    @event("$circuit-breaker.*")
    def on_turn(self, ctx: Context) -> None:
        self.heard.append((ctx.event.split(".")[1], ctx.params))


async def fail(broker: Broker, times: int, name: str = "act") -> None:
    for _ in range(times):
        with pytest.raises(MoleculerError):
            await broker.call(f"shaky.{name}")


@pytest.mark.parametrize("name", ["act", "act_at_once"])
@pytest.mark.parametrize("at", [0, 1])
async def test_an_endpoint_that_fails_is_left_alone(nodes: Nodes, at: int, name: str) -> None:
    service, watcher = Shaky(100, MoleculerServerError("broken")), Watcher()
    breaker = BreakerConfig(is_enabled=True, requests_min=4, half_open_s=60)
    broker = (await two(nodes, service, breaker=breaker))[at]
    await nodes.add("elsewhere", watcher)
    await fail(broker, 4, name)
    with pytest.raises(ServiceNotAvailableError):
        await broker.call(f"shaky.{name}")
    assert await broker.call(f"shaky.{name}", fallback="instead") == "instead"
    told = {"nodeID": "near", "action": f"shaky.{name}"}
    counts = {"failures": 4, "count": 4, "rate": 1.0}
    await eventually(lambda: watcher.heard == [("opened", told | counts)], "others are told")


async def test_an_endpoint_is_tried_again_after_a_while(nodes: Nodes) -> None:
    service, watcher = Shaky(100, MoleculerServerError("broken")), Watcher()
    await nodes.add("near", service)
    far = await nodes.add("far", watcher, breaker=BREAKER)
    await fail(far, 4)
    await eventually(lambda: len(watcher.heard) == 2, "it is half open")
    await fail(far, 1)
    await eventually(lambda: len(watcher.heard) == 4, "it is half open again")
    service.failures = 0
    assert await far.call("shaky.act") == "near"
    turns = ["opened", "half-opened", "opened", "half-opened", "closed"]
    assert [it for it, _ in watcher.heard] == turns


async def test_other_endpoints_are_called_instead(nodes: Nodes) -> None:
    bad = Shaky(100, MoleculerServerError("broken"))
    await nodes.add("bad", bad)
    await nodes.add("good", Shaky())
    far = await nodes.add("far", breaker=BreakerConfig(is_enabled=True, requests_min=2))
    results = await far.mcall([("shaky.act", None)] * 20, settled=True)
    assert len([it for it in results if it == "good"]) >= 10
    bad.seen.clear()
    assert [await far.call("shaky.act") for _ in range(6)] == ["good"] * 6
    assert bad.seen == []


async def test_errors_of_the_caller_open_nothing(nodes: Nodes) -> None:
    service = Shaky(100, MoleculerClientError("no"))
    _, far = await two(nodes, service, breaker=BREAKER)
    await fail(far, 10)
    service.failures = 0
    assert await far.call("shaky.act") == "near"


async def test_a_trial_that_is_cancelled_proves_nothing(nodes: Nodes) -> None:
    service, watcher = Shaky(100, MoleculerServerError("broken")), Watcher()
    await nodes.add("near", service)
    breaker = BreakerConfig(is_enabled=True, requests_min=1, half_open_s=0.05)
    far = await nodes.add("far", watcher, breaker=breaker)
    with pytest.raises(RequestTimeoutError):
        await far.call("shaky.wait", timeout_s=0.01)
    await eventually(lambda: len(watcher.heard) == 2, "it is half open")
    trial = asyncio.ensure_future(far.call("shaky.wait"))
    await service.gate.reached()
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    await eventually(lambda: len(watcher.heard) == 3, "it may be tried again")
    assert [it for it, _ in watcher.heard] == ["opened", "half-opened", "half-opened"]


async def test_a_node_in_a_new_life_is_not_blamed_for_the_former(nodes: Nodes) -> None:
    far = await nodes.add(
        "far", breaker=BreakerConfig(is_enabled=True, requests_min=1, half_open_s=60)
    )
    raw = await nodes.raw("raw")
    raw.introduce(raw_service("odd", "act"))
    await far.wait_for_services("odd", timeout_s=30)
    with pytest.raises(RequestTimeoutError):
        await far.call("odd.act", timeout_s=0.01)
    with pytest.raises(ServiceNotAvailableError):
        await far.call("odd.act")
    told = {"instanceID": "another life", "seq": 1, "services": [raw_service("odd", "act")]}
    raw.send(Kind.INFO, None, **told)
    node = far.registry.node("raw")
    assert node is not None
    await eventually(lambda: node.instance_id == "another life", "the new life is known")
    call = asyncio.ensure_future(far.call("odd.act"))
    request = await raw.next(Kind.REQUEST, 2)
    raw.send(Kind.RESPONSE, "far", id=request["id"], success=True, data="alive")
    assert await call == "alive"


# Bulkheads.


class Narrow(Service):
    name = "narrow"

    def __init__(self) -> None:
        self.gate = Gate()
        self.most = 0
        self.handled = 0

    @action(bulkhead=NARROW)
    async def act(self, ctx: Context) -> str:
        await self._pass()
        return "done"

    @action(bulkhead=NARROW)
    def at_once(self, ctx: Context) -> str:
        return "done"

    @event("narrow", bulkhead=NARROW)
    async def on_narrow(self, ctx: Context) -> None:
        await self._pass()
        self.handled += 1

    async def _pass(self) -> None:
        self.most = max(self.most, self.gate.waiting + 1)
        await self.gate.passed()


@pytest.mark.parametrize("at", [0, 1])
async def test_so_many_run_so_many_wait_and_the_rest_is_refused(nodes: Nodes, at: int) -> None:
    service = Narrow()
    broker = (await two(nodes, service))[at]
    calls = [asyncio.ensure_future(broker.call("narrow.act")) for _ in range(4)]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    refused = done.pop().exception()
    assert isinstance(refused, QueueIsFullError)
    assert refused.data == {"action": "narrow.act", "nodeID": "near"}
    assert await broker.call("narrow.at_once") == "done"
    service.gate.open()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [it for it in results if it is not refused] == ["done"] * 3
    assert service.most == 2


async def test_who_gives_up_waiting_lets_the_next_one_in(nodes: Nodes) -> None:
    service = Narrow()
    near, _ = await two(nodes, service)
    calls = [asyncio.ensure_future(near.call("narrow.act")) for _ in range(2)]
    await service.gate.reached(2)
    with pytest.raises(RequestTimeoutError):
        await near.call("narrow.act", timeout_s=0.01)
    calls.append(asyncio.ensure_future(near.call("narrow.act")))
    service.gate.open()
    assert await asyncio.gather(*calls) == ["done"] * 3


async def test_events_have_bulkheads_too(nodes: Nodes) -> None:
    service = Narrow()
    near, far = await two(nodes, service)
    for _ in range(5):
        await far.emit("narrow")
    await service.gate.reached(2)
    await eventually(lambda: near.statistics()["eventsFailed"] == 2, "two are refused")
    service.gate.open()
    await eventually(lambda: service.handled == 3, "three are handled")
    assert service.most == 2


# Fallbacks.


async def test_a_fallback_is_a_value_or_a_function(nodes: Nodes) -> None:
    service = Shaky(100)

    def from_error(ctx: Context, error: BaseException) -> str:
        return f"{ctx.action}: {error}"

    async def later(ctx: Context, error: BaseException) -> str:
        await asyncio.sleep(0)
        return from_error(ctx, error)

    for broker in await two(nodes, service):
        assert await broker.call("shaky.act", fallback=5) == 5
        assert await broker.call("shaky.act", fallback=[]) == []
        assert await broker.call("shaky.act", fallback=from_error) == "shaky.act: again"
        assert await broker.call("shaky.act", fallback=later) == "shaky.act: again"
        assert await broker.call("nobody.has", fallback="this") == "this"
        with pytest.raises(MoleculerRetryableError):
            await broker.call("shaky.act", fallback=None)
        with pytest.raises(ServiceNotFoundError):
            await broker.call("nobody.has")
    service.failures = 0
    assert await broker.call("shaky.act", fallback=5) == "near"


async def test_an_action_has_a_fallback_for_callers_at_its_node(nodes: Nodes) -> None:
    def instead(ctx: Context, error: BaseException) -> str:
        return "instead"

    class Careful(Service):
        name = "careful"

        @action(fallback=instead)
        async def act(self, ctx: Context) -> str:
            raise MoleculerClientError("no")

    near, far = await two(nodes, Careful())
    assert await near.call("careful.act") == "instead"
    assert await near.call("careful.act", fallback="mine") == "mine"
    with pytest.raises(MoleculerClientError):
        await far.call("careful.act")


async def test_a_fallback_may_fail_and_follow_a_time_out(nodes: Nodes) -> None:
    def broken(ctx: Context, error: BaseException) -> str:
        raise KeyError("fallback")

    for broker in await two(nodes, Shaky(100)):
        with pytest.raises(KeyError, match="fallback"):
            await broker.call("shaky.act", fallback=broken)
        assert await broker.call("shaky.wait", timeout_s=0.01, fallback="late") == "late"
