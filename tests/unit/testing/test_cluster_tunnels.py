"""Tunnels of unchanged services in the simulator: faults of the network and of processes."""

import asyncio
from collections.abc import Iterator

import pytest

from postroad import Limits, MessagingService
from postroad.core.errors import MessagingError
from postroad.testing import SimCluster, SimNode
from tests.support.tiers import by_tier
from tests.support.wire.tunnel_ends import Recorder, Recorders

LIMITS = Limits(heartbeat_interval_s=1.0, heartbeat_timeout_s=3.0, write_buffer_bytes_max=64 * 1024)


class Town:
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
        async with MessagingService("town", node.name, bind, limits=LIMITS) as service:
            service.introduce(node.name, None)
            service.accept_tunnels(self.users[node.name])
            self.services[node.name] = service
            await asyncio.Event().wait()

    def open(self) -> tuple[Recorder, Recorder]:
        """A new tunnel: the satellite's user and the core's."""
        opening = self.services["satellite"].open_tunnel("core:7000", self.users["satellite"])
        self.sim.run(opening, self.satellite)
        self.sim.run_for(0.1)
        return self.users["satellite"].last, self.users["core"].last

    def post(self, node: SimNode, user: Recorder, *payloads: bytes) -> None:
        async def all_of_them() -> None:
            for payload in payloads:
                user.tunnel.post("news", payload)

        self.sim.run(all_of_them(), node)


@pytest.fixture
def town() -> Iterator[Town]:
    with SimCluster(seed=7) as sim:
        yield Town(sim)


def test_messages_both_ways(town: Town) -> None:
    near, far = town.open()
    payloads = [b"small", bytes(range(256)) * 8_000, b"last"]
    town.post(town.satellite, near, *payloads)
    town.post(town.core, far, *payloads)
    town.sim.run_for(5.0)
    assert near.payloads == far.payloads == payloads
    assert near.tunnel.round_trip_s is not None and near.tunnel.round_trip_s > 0
    assert far.tunnel.round_trip_s is not None and far.tunnel.round_trip_s > 0


def test_a_short_partition_loses_nothing_and_a_long_one_is_noticed_by_both_ends(town: Town) -> None:
    near, far = town.open()
    town.sim.network.partition({"core"}, {"satellite"})
    town.post(town.satellite, near, b"late")
    town.sim.run_for(1.5)
    town.sim.network.heal()
    town.sim.run_for(2.0)
    assert far.payloads == [b"late"]
    assert near.reasons == far.reasons == []

    near, far = town.open()
    town.sim.network.partition({"core"}, {"satellite"})
    town.post(town.satellite, near, b"lost")
    started = town.sim.now
    town.sim.run_for(2.0)
    assert near.reasons == far.reasons == []
    town.sim.run_for(2.5)
    for user in (near, far):
        assert len(user.reasons) == 1
        assert "PeerSilent" in user.reasons[0]
    assert town.sim.now - started < 5
    town.sim.network.heal()
    near, far = town.open()
    town.post(town.satellite, near, b"found")
    town.sim.run_for(1.0)
    assert far.payloads == [b"found"]


def test_a_killed_peer_and_one_without_power(town: Town) -> None:
    near, _ = town.open()
    town.core.kill()
    town.sim.run_for(1.0)
    assert len(near.reasons) == 1
    town.core.start()
    town.sim.run_for(0.1)
    near, _ = town.open()
    town.core.lose_power()
    town.sim.run_for(4.0)
    assert len(near.reasons) == 1 and "PeerSilent" in near.reasons[0]
    with pytest.raises(MessagingError):
        town.open()


def test_a_paused_peer_is_given_up(town: Town) -> None:
    near, far = town.open()
    town.core.pause()
    town.sim.run_for(4.0)
    assert len(near.reasons) == 1 and "PeerSilent" in near.reasons[0]
    town.core.resume()
    town.sim.run_for(1.0)
    assert len(far.reasons) == 1


@pytest.mark.parametrize("seed", range(by_tier(test=4, nightly=50, quick=1)))
def test_streams_both_ways_keep_their_order(seed: int) -> None:
    with SimCluster(seed=seed) as sim:
        town = Town(sim)
        users = town.open()
        wanted = 2_000
        sent = [0, 0]

        def pump(index: int) -> None:
            tunnel = users[index].tunnel
            while tunnel.can_send and sent[index] < wanted:
                size = sim.rng.choice((0, 10, 500, 80_000 if sent[index] % 100 == 0 else 20))
                tunnel.post("flood", sent[index].to_bytes(4, "big") + bytes(size))
                sent[index] += 1

        async def begin(index: int) -> None:
            users[index].on_writable = lambda: pump(index)
            pump(index)

        for index, node in enumerate((town.satellite, town.core)):
            sim.run(begin(index), node)
        sim.run_for(60.0)
        expected = [number.to_bytes(4, "big") for number in range(wanted)]
        for user in users:
            assert [payload[:4] for payload in user.payloads] == expected
            assert user.reasons == []
