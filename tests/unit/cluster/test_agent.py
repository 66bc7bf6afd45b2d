"""Use of a cluster agent before its start and after its stop, in the simulator."""

import asyncio
from collections.abc import Iterator

import pytest

from postroad.cluster import ClusterAgent, StaticDiscovery
from postroad.cluster.discovery.background import SeedsCallback
from postroad.core import Address
from postroad.core.errors import ConfigError
from postroad.net import MessagingService, RawMessage
from postroad.testing import SimCluster, SimNode

PORT = 7000


class Village:
    """Two nodes whose agents know each other, and what they hear."""

    def __init__(self, sim: SimCluster) -> None:
        self.sim = sim
        self.agents: dict[str, ClusterAgent] = {}
        self.received: list[bytes] = []
        self.nodes = {name: sim.add(name, self._live) for name in ("alpha", "beta")}

    async def _live(self, node: SimNode) -> None:
        async with MessagingService("village", node.name, f"{node.host}:{PORT}") as service:
            agent = ClusterAgent(
                service, StaticDiscovery([f"alpha:{PORT}"]), properties={"age": "1"}
            )
            agent.set_properties({"role": node.name, "age": None})
            agent.subscribe_datagrams("tick", self._hear)
            self.agents[node.name] = agent
            async with agent:
                await asyncio.Event().wait()

    def _hear(self, message: RawMessage) -> None:
        self.received.append(message.payload)

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()
        self.sim.run_for(3.0)

    def post(self, subject: str, payload: bytes) -> None:
        async def send() -> None:
            datagrams = self.agents["alpha"].datagram_service
            assert datagrams is not None
            await datagrams.send(f"beta:{PORT}", subject, payload)

        self.sim.run(send(), self.nodes["alpha"])
        self.sim.run_for(0.5)


@pytest.fixture
def village() -> Iterator[Village]:
    with SimCluster(seed=5) as sim:
        yield Village(sim)


def test_properties_and_datagram_subscriptions_before_start_are_used(village: Village) -> None:
    village.start()
    member = village.agents["alpha"].member("beta")
    assert member is not None
    assert dict(member.properties) == {"role": "beta"}
    assert member.version == 0, "others have seen no other"
    village.post("tick", b"1")
    assert village.received == [b"1"]
    late: list[RawMessage] = []
    village.agents["beta"].subscribe_datagrams("late", late.append)
    village.post("late", b"1")
    village.agents["beta"].unsubscribe_datagrams("late")
    village.agents["beta"].unsubscribe_datagrams("tick")
    village.post("late", b"2")
    village.post("tick", b"2")
    assert [message.payload for message in late] == [b"1"]
    assert village.received == [b"1"]


@pytest.mark.parametrize("changes", [{"a": 1}, {"a": "x" * 20_000}])
def test_invalid_properties_before_start_are_rejected(changes: dict[str, str | None]) -> None:
    agent = ClusterAgent(MessagingService("village", "alpha"), properties={"role": "x"})
    with pytest.raises(ConfigError, match=r"property|properties"):
        agent.set_properties(changes)
    assert agent._properties == {"role": "x"}


def test_agent_stop_cancels_its_tasks(village: Village) -> None:
    village.start()
    agent, node = village.agents["beta"], village.nodes["beta"]
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def run() -> None:
        agent.create_task(linger())
        assert await agent.create_task(asyncio.sleep(0.1, "done")) == "done"

    village.sim.run(run(), node)
    assert len(agent._tasks) == 1, "what is done is forgotten"
    village.sim.run(agent.stop(), node)
    village.sim.run_for(0.1)
    assert ended == ["cancelled"]
    assert agent._tasks == {}


def test_cancelled_start_leaves_the_cluster(village: Village) -> None:
    """It may be a member already, although discovery has not published all seeds."""
    village.start()
    alpha = village.agents["alpha"]
    starting: list[asyncio.Task[None]] = []

    class Slow(StaticDiscovery):
        async def start(self, name: str, address: Address, on_seeds: SeedsCallback) -> None:
            await super().start(name, address, on_seeds)
            await asyncio.Event().wait()

    async def live(node: SimNode) -> None:
        async with MessagingService("village", node.name, f"{node.host}:{PORT}") as service:
            starting.append(
                asyncio.create_task(ClusterAgent(service, Slow([f"alpha:{PORT}"])).start())
            )
            await asyncio.wait(starting)

    node = village.sim.add("gamma", live)
    node.start()
    village.sim.run_for(2.0)
    assert alpha.member("gamma") is not None

    async def cancel() -> None:
        starting[0].cancel()

    village.sim.run(cancel(), node)
    village.sim.run_for(2.0)
    assert alpha.member("gamma") is None
    assert starting[0].cancelled()
