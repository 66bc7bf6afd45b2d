"""Bridges as processes of their own, two of them at once, and peers that move or sleep."""

import asyncio

import pytest

from postroad.core import to_address
from postroad.durable import BridgeManager, MemoryStore
from postroad.durable.names import BRIDGE_SUFFIX
from postroad.net import MessagingService
from postroad.testing import SimCluster, SimNode
from tests.simulation.durable.pair import CONFIG, DELIVERY_S, Pair
from tests.simulation.durable.process import CLUSTER, PORT

HOUR_S = 3_600.0
# Longer than any connection lives without a sign of life.
SLEEP_S = 120.0


class BridgeProcess:
    """The bridges of alpha, on another host that reaches the same disk.

    That disk has a single connection, so nothing may happen on it but whole commits: alpha has no
    handlers and no transactions.
    """

    def __init__(self, pair: Pair, host: str) -> None:
        self._pair = pair
        self.node = pair.sim.add(host, self._run)
        self.manager: BridgeManager | None = None

    async def _run(self, node: SimNode) -> None:
        alpha = self._pair.alpha
        store = MemoryStore(alpha.disk)
        name, address = f"alpha{BRIDGE_SUFFIX}", f"{node.host}:{PORT}"
        async with MessagingService(CLUSTER, name, address) as service:
            await store.open("alpha", CONFIG, role="bridge")
            self.manager = BridgeManager(
                service, store, CONFIG, node="alpha", node_address=to_address(alpha.address)
            )
            async with self.manager:
                await asyncio.Event().wait()

    def kill(self) -> None:
        self.node.kill()
        del self._pair.alpha.disk.holders["bridge"]

    @property
    def is_fenced(self) -> bool:
        return self.manager is not None and self.manager.fenced.done()


def kill_alpha(pair: Pair) -> None:
    pair.alpha.node.kill()
    del pair.alpha.disk.holders["node"]


def test_bridge_process_carries_mail() -> None:
    with SimCluster(1) as sim:
        pair = Pair(sim, has_bridge=False)
        pair.post("a")
        BridgeProcess(pair, "carrier").node.start()
        pair.await_handled("a")
        pair.post("b", "c")
        pair.await_handled("a", "b", "c")


def test_bridge_dies_and_node_lives() -> None:
    with SimCluster(2) as sim:
        pair = Pair(sim, has_bridge=False)
        carrier = BridgeProcess(pair, "carrier")
        carrier.node.start()
        holders = pair.alpha.disk.holders
        sim.run_until(
            lambda: "bridge" in holders, timeout=DELIVERY_S, description="the bridge runs"
        )
        pair.post("a", "b")
        carrier.kill()
        pair.post("c")
        sim.run_for(DELIVERY_S)
        carrier.node.start()
        pair.await_handled("a", "b", "c")


def test_node_dies_and_bridge_lives() -> None:
    with SimCluster(3) as sim:
        pair = Pair(sim, has_bridge=False)
        BridgeProcess(pair, "carrier").node.start()
        pair.post("a")
        pair.await_handled("a")
        sim.network.partition("carrier", "beta")
        pair.post("b", "c")
        # The bridge has heard of them by then.
        sim.run_for(0.1)
        kill_alpha(pair)
        sim.network.heal()
        pair.await_handled("a", "b", "c")

        pair.alpha.start()
        sim.run_until(lambda: pair.alpha.is_ready, timeout=DELIVERY_S, description="alpha is back")
        pair.post("d")
        pair.await_handled("a", "b", "c", "d")


def test_second_bridge_fences_the_first() -> None:
    with SimCluster(4) as sim:
        pair = Pair(sim, has_bridge=False)
        first, second = BridgeProcess(pair, "first"), BridgeProcess(pair, "second")
        first.node.start()
        pair.post("a")
        pair.await_handled("a")
        first.node.pause()
        # As if the lock were on a host that cannot see the other one.
        del pair.alpha.disk.holders["bridge"]
        second.node.start()
        pair.post("b")
        pair.await_handled("a", "b")

        first.node.resume()
        pair.post("c", "d")
        pair.await_handled("a", "b", "c", "d")
        assert not second.is_fenced
        assert pair.outbox() == 0


def test_first_bridge_may_deliver_and_not_remove() -> None:
    with SimCluster(5) as sim:
        pair = Pair(sim, has_bridge=False)
        first, second = BridgeProcess(pair, "first"), BridgeProcess(pair, "second")
        first.node.start()
        pair.post("a")
        pair.await_handled("a")
        first.node.pause()
        pair.post("b")
        # Beta hears of the second one only after the first one has woken up.
        sim.network.partition("second", "beta")
        del pair.alpha.disk.holders["bridge"]
        second.node.start()
        sim.run_for(DELIVERY_S)
        first.node.resume()
        pair.await_handled("a", "b")
        assert first.is_fenced
        assert pair.outbox() == 1

        sim.network.heal()
        pair.post("c")
        pair.await_handled("a", "b", "c", within=30.0)
        assert not second.is_fenced
        assert pair.outbox() == 0


def test_peer_moves_with_messages_in_flight() -> None:
    with SimCluster(6) as sim:
        pair = Pair(sim)
        elsewhere = pair.add_beta("elsewhere", pair.beta.disk)
        pair.post("a")
        pair.await_handled("a")
        sim.network.set_conditions(delay_s=(0.2, 0.2))
        pair.post("b", "c", "d")
        sim.run_for(0.3)
        pair.beta.kill()
        pair.post("e")
        elsewhere.start()
        pair.introduce(elsewhere)
        sim.network.reset_conditions()
        pair.await_handled("a", "b", "c", "d", "e")


def test_peer_sleeps_longer_than_its_connections_live() -> None:
    with SimCluster(7) as sim:
        pair = Pair(sim)
        pair.post("a")
        pair.await_handled("a")
        sim.network.set_conditions(delay_s=(0.2, 0.2))
        pair.post("b", "c")
        sim.run_for(0.3)
        pair.beta.node.pause(SLEEP_S)
        pair.post("d")
        sim.network.reset_conditions()
        pair.await_handled("a", "b", "c", "d", within=SLEEP_S + 30.0)


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S])
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_clock_that_jumps_while_messages_wait(name: str, jump_s: float) -> None:
    with SimCluster(8) as sim:
        pair = Pair(sim)
        sim.network.partition("alpha", "beta")
        pair.post("a", "b")
        sim.nodes[name].jump_clock(jump_s)
        pair.post("c")
        sim.network.heal()
        pair.await_handled("a", "b", "c")


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S])
def test_delay_does_not_depend_on_whose_clock_is_wrong(jump_s: float) -> None:
    with SimCluster(9) as sim:
        pair = Pair(sim)
        pair.alpha.node.jump_clock(jump_s)
        pair.post("late", delay=20.0)
        sim.run_for(15.0)
        assert pair.handled() == []
        pair.await_handled("late", within=10.0)
