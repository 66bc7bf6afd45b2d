"""Unchanged messaging services, unicasts and tunnels in the simulator."""

import asyncio
from collections.abc import Iterator

import pytest

from postroad.core import errors
from postroad.net import DatagramService, Limits, MessagingService, RawMessage
from postroad.testing import SimCluster, SimNode
from tests.support.tiers import by_tier
from tests.support.wire.tunnel_ends import Recorder, Recorders

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
        self.unicasts: dict[str, DatagramService] = {}
        self.ticks: list[tuple[str, bytes]] = []
        self.nodes = [sim.add(name, self._serve) for name in names]
        for node in self.nodes:
            node.start()
        sim.run_for(0.1)

    async def _serve(self, node: SimNode) -> None:
        bind = f"{node.host}:7000"
        async with (
            MessagingService("town", node.name, bind, limits=LIMITS) as service,
            DatagramService("town", node.name, bind) as unicast,
        ):
            service.serve("echo", lambda message: message.payload)
            service.serve("slow", self._reply_slowly)
            unicast.subscribe("tick", lambda message: self._tick(node, message))
            self.services[node.name] = service
            self.unicasts[node.name] = unicast
            await asyncio.Event().wait()

    async def _reply_slowly(self, message: RawMessage) -> bytes:
        await asyncio.sleep(2.0)
        return message.payload

    def _tick(self, node: SimNode, message: RawMessage) -> None:
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
    with pytest.raises((errors.ConnectError, errors.ConnectionClosedError)):
        town.ask()
    beta.start()
    town.sim.run_for(0.1)
    assert town.ask() == b"hello"


def test_stop_of_peer_finishes_running_requests(town: Town) -> None:
    alpha, beta = town.nodes
    request = town.services["alpha"].request("beta:7000", "slow", b"late")
    task = town.sim.spawn(request, alpha)
    town.sim.run_for(0.5)
    beta.stop()
    town.sim.run_until(lambda: not beta.is_running, timeout=10.0, description="beta has stopped")
    assert task.result() == b"late"


def test_silent_peer_is_detected_by_heartbeats(town: Town) -> None:
    _, beta = town.nodes
    town.ask()
    beta.lose_power()
    town.sim.run_for(5.0)
    assert "PeerTimeoutError" in str(town.sim.log)
    assert town.services["alpha"].statistics().protocol_errors_by_kind == {"PeerTimeoutError": 1}


def test_outcome_of_a_request_in_a_partition_is_unknown(town: Town) -> None:
    town.ask()
    town.sim.network.partition({"alpha"}, {"beta"})
    with pytest.raises(errors.ReplyTimeoutError) as failure:
        town.ask(timeout=1.0)
    assert failure.value.outcome is errors.Outcome.UNKNOWN
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


@pytest.mark.parametrize(
    "seed", by_tier(test=[0, 1, 2, 3, 19], nightly=[*range(100)], quick=[0, 19])
)
def test_storm(seed: int) -> None:
    """Requests go right or fail as documented, whatever happens; after it all is well."""
    with SimCluster(seed) as sim:
        town = Town(sim, "alpha", "beta", "gamma")
        alpha, *others = town.nodes
        requested = answered = 0

        async def ask_on() -> None:
            nonlocal requested, answered
            for number in range(100):
                requested += 1
                payload = str(number).encode() * sim.rng.choice([1, 1_000, 100_000])
                target = sim.rng.choice(others).name
                try:
                    reply = await town.services["alpha"].request(
                        f"{target}:7000", "echo", payload, timeout=2.0
                    )
                except errors.MessagingError:
                    continue
                assert reply == payload
                answered += 1
                await asyncio.sleep(0.2)

        task = sim.spawn(ask_on(), alpha)
        while not task.done():
            disturb(sim, sim.rng.choice(others))
            sim.run_for(sim.rng.uniform(0.1, 3.0))
        assert (requested, answered > 0) == (100, True)


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
        sim.network.reset_connections("alpha", victim.name)
    else:
        sim.network.heal()


TUNNEL_LIMITS = Limits(
    heartbeat_interval_s=1.0, heartbeat_timeout_s=3.0, write_buffer_bytes_max=64 * 1024
)


class TunnelTown:
    """A core, and a satellite that has a tunnel to it."""

    def __init__(self, sim: SimCluster) -> None:
        self.sim = sim
        self.services: dict[str, MessagingService] = {}
        self.users = {"core": Recorders(), "satellite": Recorders()}
        self.core, self.satellite = (sim.add(name, self._serve) for name in self.users)
        self.core.start()
        self.satellite.start()
        sim.run_for(0.1)

    async def _serve(self, node: SimNode) -> None:
        bind = f"{node.host}:7000"
        async with MessagingService(
            "tunnel_town", node.name, bind, limits=TUNNEL_LIMITS
        ) as service:
            service.set_hello_role(node.name, None)
            service.tunnels.accept(self.users[node.name])
            self.services[node.name] = service
            await asyncio.Event().wait()

    def open(self) -> tuple[Recorder, Recorder]:
        """A new tunnel: the satellite's user and the core's."""
        opening = self.services["satellite"].tunnels.open("core:7000", self.users["satellite"])
        self.sim.run(opening, self.satellite)
        self.sim.run_for(0.1)
        return self.users["satellite"].last, self.users["core"].last

    def post(self, node: SimNode, user: Recorder, *payloads: bytes) -> None:
        async def all_of_them() -> None:
            for payload in payloads:
                user.tunnel.send_nowait("news", payload)

        self.sim.run(all_of_them(), node)


@pytest.fixture
def tunnel_town() -> Iterator[TunnelTown]:
    with SimCluster(seed=7) as sim:
        yield TunnelTown(sim)


def test_messages_both_ways(tunnel_town: TunnelTown) -> None:
    near, far = tunnel_town.open()
    payloads = [b"small", bytes(range(256)) * 8_000, b"last"]
    tunnel_town.post(tunnel_town.satellite, near, *payloads)
    tunnel_town.post(tunnel_town.core, far, *payloads)
    tunnel_town.sim.run_for(5.0)
    assert near.payloads == far.payloads == payloads
    assert near.tunnel.round_trip_s is not None and near.tunnel.round_trip_s > 0
    assert far.tunnel.round_trip_s is not None and far.tunnel.round_trip_s > 0


def test_a_short_partition_loses_nothing_and_a_long_one_is_noticed_by_both_ends(
    tunnel_town: TunnelTown,
) -> None:
    near, far = tunnel_town.open()
    tunnel_town.sim.network.partition({"core"}, {"satellite"})
    tunnel_town.post(tunnel_town.satellite, near, b"late")
    tunnel_town.sim.run_for(1.5)
    tunnel_town.sim.network.heal()
    tunnel_town.sim.run_for(2.0)
    assert far.payloads == [b"late"]
    assert near.reasons == far.reasons == []

    near, far = tunnel_town.open()
    tunnel_town.sim.network.partition({"core"}, {"satellite"})
    tunnel_town.post(tunnel_town.satellite, near, b"lost")
    started = tunnel_town.sim.now
    tunnel_town.sim.run_for(2.0)
    assert near.reasons == far.reasons == []
    tunnel_town.sim.run_for(2.5)
    for user in (near, far):
        assert len(user.reasons) == 1
        assert "PeerTimeoutError" in user.reasons[0]
    assert tunnel_town.sim.now - started < 5
    tunnel_town.sim.network.heal()
    near, far = tunnel_town.open()
    tunnel_town.post(tunnel_town.satellite, near, b"found")
    tunnel_town.sim.run_for(1.0)
    assert far.payloads == [b"found"]


def test_a_killed_peer_and_one_without_power(tunnel_town: TunnelTown) -> None:
    near, _ = tunnel_town.open()
    tunnel_town.core.kill()
    tunnel_town.sim.run_for(1.0)
    assert len(near.reasons) == 1
    tunnel_town.core.start()
    tunnel_town.sim.run_for(0.1)
    near, _ = tunnel_town.open()
    tunnel_town.core.lose_power()
    tunnel_town.sim.run_for(4.0)
    assert len(near.reasons) == 1 and "PeerTimeoutError" in near.reasons[0]
    with pytest.raises(errors.MessagingError):
        tunnel_town.open()


def test_tunnel_paused_peer_is_disconnected(tunnel_town: TunnelTown) -> None:
    near, far = tunnel_town.open()
    tunnel_town.core.pause()
    tunnel_town.sim.run_for(4.0)
    assert len(near.reasons) == 1 and "PeerTimeoutError" in near.reasons[0]
    tunnel_town.core.resume()
    tunnel_town.sim.run_for(1.0)
    assert len(far.reasons) == 1


@pytest.mark.parametrize("seed", by_tier(test=[0, 1, 2, 15], nightly=[*range(50)], quick=[15]))
def test_streams_both_ways_keep_their_order(seed: int) -> None:
    with SimCluster(seed=seed) as sim:
        tunnel_town = TunnelTown(sim)
        users = tunnel_town.open()
        count = 2_000
        sent = [0, 0]

        def pump(index: int) -> None:
            tunnel = users[index].tunnel
            while tunnel.can_send and sent[index] < count:
                size = sim.rng.choice((0, 10, 500, 80_000 if sent[index] % 100 == 0 else 20))
                tunnel.send_nowait("flood", sent[index].to_bytes(4, "big") + bytes(size))
                sent[index] += 1

        async def begin(index: int) -> None:
            users[index].on_room = lambda: pump(index)
            pump(index)

        for index, node in enumerate((tunnel_town.satellite, tunnel_town.core)):
            sim.run(begin(index), node)
        sim.run_for(60.0)
        expected = [number.to_bytes(4, "big") for number in range(count)]
        for user in users:
            assert [payload[:4] for payload in user.payloads] == expected
            assert user.reasons == []
