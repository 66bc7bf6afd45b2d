"""The choice by latency, with whole brokers."""

import pytest

from postroad.core.errors import ConfigError
from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.service import Service, action
from postroad.services.transporters import MemoryHub, MemoryTransporter
from tests.support.deadlines import eventually


class Near(Service):
    name = "near"

    @action(strategy="Latency")
    def where(self, ctx: Context) -> str:
        return self.broker.node_id


class Plain(Service):
    name = "plain"

    @action
    def where(self, ctx: Context) -> str:
        return self.broker.node_id


def make(name: str, hub: MemoryHub) -> Broker:
    return Broker(
        name,
        transporter=MemoryTransporter(hub),
        start_wait_s=0.01,
        announce_delay_s=0.0,
        latency_interval_s=0.005,
    )


async def test_hosts_are_pinged_while_there_is_a_choice() -> None:
    hub = MemoryHub()
    caller, one, two = (make(name, hub) for name in ("a", "b", "c"))
    one.add(Near(), Plain())
    two.add(Plain())
    async with caller, one, two:
        await caller.wait_for_services(["near", "plain"], timeout_s=30)
        engine = caller._running()
        pings = engine._latency_pings
        assert pings is not None
        assert not pings.is_running
        await two.launch(Near())
        await engine.changed(lambda: pings.is_running)
        hostname = engine.registry.local.hostname
        await eventually(lambda: engine._latencies.average(hostname) is not None, "measured")
        assert await caller.call("near.where") in ("b", "c")
        await two.remove("near")
        await eventually(lambda: not pings.is_running, "there is no choice any more")


def test_the_interval_must_make_sense() -> None:
    with pytest.raises(ConfigError, match="latency_interval_s"):
        Broker("a", latency_interval_s=0)
