"""Nothing stays of calls and events that are over."""

import asyncio
import gc
from typing import Any

from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.errors import MoleculerError
from postroad.services.service import Service, action, event
from tests.support.deadlines import eventually
from tests.support.services.nodes import Nodes

ROUNDS = 40
AT_ONCE = 25


class Worker(Service):
    name = "worker"

    @action
    def add(self, ctx: Context, a: int, b: int) -> int:
        return a + b

    @action
    async def later(self, ctx: Context) -> Any:
        await asyncio.sleep(0)
        return await ctx.call("worker.add", {"a": 1, "b": 2})

    @action
    async def fail(self, ctx: Context) -> None:
        raise MoleculerError("no")

    @action
    async def never(self, ctx: Context) -> None:
        await asyncio.Event().wait()

    @event("work")
    async def on_work(self, ctx: Context) -> None:
        await asyncio.sleep(0)


async def all_sorts(broker: Broker) -> None:
    calls = {
        "at once": ("worker.add", {"a": 1, "b": 2}),
        "later": ("worker.later", None),
        "failing": ("worker.fail", None),
        "unknown": ("worker.nix", None),
        "refused": ("worker.add", {"a": "x"}),
    }
    results = await broker.mcall(calls, settled=True)
    assert (results["at once"], results["later"]) == (3, 3)
    assert isinstance(await broker.call("worker.fail", fallback=MoleculerError), MoleculerError)
    given_up = asyncio.ensure_future(broker.call("worker.never", timeout_s=0.2))
    await asyncio.sleep(0)
    given_up.cancel()
    late = broker.call("worker.never", timeout_s=0.001)
    await asyncio.wait([given_up])
    assert isinstance((await asyncio.gather(late, return_exceptions=True))[0], MoleculerError)
    await broker.emit("work")


def contexts() -> int:
    gc.collect()
    return sum(isinstance(it, Context) for it in gc.get_objects())


async def test_nothing_stays(nodes: Nodes) -> None:
    near, far = await nodes.add("near", Worker()), await nodes.add("far")
    before = contexts()
    for _ in range(ROUNDS):
        at_once = [all_sorts(it) for it in (near, far) for _ in range(AT_ONCE)]
        await asyncio.gather(*at_once)

    def is_quiet() -> bool:
        counted = [it.statistics() for it in (near, far)]
        names = ("running", "eventsRunning", "pending", "serving")
        # Those whose caller gave up run on at their node until their time is over.
        return not any(it[name] for it in counted for name in names)

    await eventually(is_quiet, "all is over", 20)
    assert contexts() <= before
    assert near.statistics()["eventsFailed"] == 0
