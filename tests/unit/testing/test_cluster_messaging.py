"""Unchanged messaging services and unicasts in the simulator."""

import asyncio
from collections.abc import Iterator

import pytest

from postroad import Limits, Message, MessagingService, Unicast
from postroad.core.errors import (
    ConnectFailed,
    ConnectionClosed,
    MessagingError,
    Outcome,
    RequestTimeout,
)
from postroad.testing import SimCluster, SimNode
from tests.support.tiers import by_tier

MIB = 1024 * 1024
LIMITS = Limits(
    frame_bytes_max=16 * MIB,
    heartbeat_interval_s=1.0,
    heartbeat_timeout_s=3.0,
    write_buffer_bytes_max=64 * 1024,
)


class Town:
    """Nodes that answer, and what they have."""

    def __init__(self, sim: SimCluster, *names: str) -> None:
        self.sim = sim
        self.services: dict[str, MessagingService] = {}
        self.unicasts: dict[str, Unicast] = {}
        self.ticks: list[tuple[str, bytes]] = []
        self.nodes = [sim.add(name, self._serve) for name in names]
        for node in self.nodes:
            node.start()
        sim.run_for(0.1)

    async def _serve(self, node: SimNode) -> None:
        bind = f"{node.host}:7000"
        async with (
            MessagingService("town", node.name, bind, limits=LIMITS) as service,
            Unicast("town", node.name, bind) as unicast,
        ):
            service.subscribe("echo", lambda message: message.payload)
            service.subscribe("slow", self._answer_slowly)
            unicast.subscribe("tick", lambda message: self._tick(node, message))
            self.services[node.name] = service
            self.unicasts[node.name] = unicast
            await asyncio.Event().wait()

    async def _answer_slowly(self, message: Message) -> bytes:
        await asyncio.sleep(2.0)
        return message.payload

    def _tick(self, node: SimNode, message: Message) -> None:
        self.ticks.append((node.name, message.payload))

    def ask(self, subject: str = "echo", payload: bytes = b"hello", timeout: float = 5.0) -> bytes:
        asker, answerer = self.nodes[:2]
        request = self.services[asker.name].request(
            f"{answerer.name}:7000", subject, payload, timeout=timeout
        )
        return self.sim.run(request, asker)


@pytest.fixture
def town() -> Iterator[Town]:
    with SimCluster(seed=11) as sim:
        yield Town(sim, "alpha", "beta")


def test_requests_and_datagrams_arrive_whatever_their_size(town: Town) -> None:
    started = town.sim.now
    assert town.ask() == b"hello"
    assert 0 < town.sim.now - started < 0.1

    alpha, _ = town.nodes
    town.sim.run(town.unicasts["alpha"].send("beta:7000", "tick", b"1"), alpha)
    town.sim.run_for(0.1)
    assert town.ticks == [("beta", b"1")]

    payload = bytes(range(256)) * (10 * MIB // 256)
    assert town.ask(payload=payload) == payload
    assert town.ask() == b"hello"


def test_peer_that_restarts_is_found_again(town: Town) -> None:
    _, beta = town.nodes
    town.ask()
    beta.kill()
    with pytest.raises((ConnectFailed, ConnectionClosed)):
        town.ask()
    beta.start()
    town.sim.run_for(0.1)
    assert town.ask() == b"hello"


def test_stopped_peer_finishes_what_it_began(town: Town) -> None:
    alpha, beta = town.nodes
    request = town.services["alpha"].request("beta:7000", "slow", b"late")
    task = town.sim.spawn(request, alpha)
    town.sim.run_for(0.5)
    beta.stop()
    town.sim.run_until(lambda: not beta.is_running, within=10.0, claim="beta has stopped")
    assert task.result() == b"late"


def test_silent_peer_is_detected_by_heartbeats(town: Town) -> None:
    _, beta = town.nodes
    town.ask()
    beta.lose_power()
    town.sim.run_for(5.0)
    assert "PeerSilent" in str(town.sim.log)
    assert town.services["alpha"].statistics().protocol_errors_by_kind == {"PeerSilent": 1}


def test_outcome_of_a_request_in_a_partition_is_unknown(town: Town) -> None:
    town.ask()
    town.sim.network.partition({"alpha"}, {"beta"})
    with pytest.raises(RequestTimeout) as told:
        town.ask(timeout=1.0)
    assert told.value.outcome is Outcome.UNKNOWN
    town.sim.network.heal()
    town.sim.run_for(1.0)
    assert town.ask() == b"hello"


def test_slow_reader_slows_the_sender(town: Town) -> None:
    alpha, _ = town.nodes
    town.sim.network.slow_reader("beta", 100_000)

    async def send_many() -> None:
        for _ in range(20):
            await town.services["alpha"].send("beta:7000", "echo", bytes(100_000), timeout=60.0)

    started = town.sim.now
    town.sim.run(send_many(), alpha)
    assert 5.0 < town.sim.now - started < 25.0


@pytest.mark.parametrize("seed", range(by_tier(test=5, nightly=100, quick=2)))
def test_storm(seed: int) -> None:
    """Requests go right or fail as documented, whatever happens; after it all is well."""
    with SimCluster(seed) as sim:
        town = Town(sim, "alpha", "beta", "gamma")
        alpha, *others = town.nodes
        asked = answered = 0

        async def ask_on() -> None:
            nonlocal asked, answered
            for number in range(100):
                asked += 1
                payload = str(number).encode() * sim.rng.choice([1, 1_000, 100_000])
                target = sim.rng.choice(others).name
                try:
                    reply = await town.services["alpha"].request(
                        f"{target}:7000", "echo", payload, timeout=2.0
                    )
                except MessagingError:
                    continue
                assert reply == payload
                answered += 1
                await asyncio.sleep(0.2)

        task = sim.spawn(ask_on(), alpha)
        while not task.done():
            disturb(sim, sim.rng.choice(others))
            sim.run_for(sim.rng.uniform(0.1, 3.0))
        assert (asked, answered > 0) == (100, True)


def disturb(sim: SimCluster, victim: SimNode) -> None:
    """Do something to a node, or take everything back."""
    kind = sim.rng.choice(["kill", "power", "pause", "partition", "reset", "calm"])
    if not victim.is_running:
        victim.start()
    elif kind == "kill":
        victim.kill()
    elif kind == "power":
        victim.lose_power()
    elif kind == "pause":
        victim.pause(sim.rng.uniform(0.0, 5.0))
    elif kind == "partition":
        sim.network.partition("alpha", victim.name, one_way=sim.rng.random() < 0.5)
    elif kind == "reset":
        sim.network.reset("alpha", victim.name)
    else:
        sim.network.heal()
