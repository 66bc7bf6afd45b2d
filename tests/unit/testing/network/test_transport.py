"""Random use and random faults of connections: what TCP promises holds in every order of events."""

import asyncio
from random import Random

import pytest

from postroad.testing import SimCluster, SimNode, require
from tests.support.tiers import by_tier

PORT = 7000
# The last ones come to resets and ends at moments that others do not come to.
SEEDS = by_tier(test=[*range(9), 12, 13, 45], nightly=[*range(200)], quick=[12, 13, 45])
STEPS = 120


class Side(asyncio.Protocol):
    """One end; checks at every call that the call may happen."""

    def __init__(self, rng: Random) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer: Side | None = None
        self.sent = bytearray()
        self.received = bytearray()
        self.is_made = self.is_lost = self.saw_eof = self.is_full = self.is_ended = False
        self.error: Exception | None = None
        self._rng = rng

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        require(not self.is_made, "made once")
        assert isinstance(transport, asyncio.Transport)
        self.is_made = True
        self.transport = transport
        transport.set_write_buffer_limits(high=self._rng.choice([0, 1_000, 100_000]))

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        require(len(data) > 0, "data is never empty")
        require(not self.is_lost and not self.saw_eof, "no data after the end")
        require(self.transport.is_reading(), "no data while paused")
        self.received += data

    def eof_received(self) -> bool:
        require(not self.is_lost and not self.saw_eof, "one end, before the loss")
        self.saw_eof = True
        return self._rng.random() < 0.5

    def pause_writing(self) -> None:
        require(not self.is_full, "paused once")
        self.is_full = True

    def resume_writing(self) -> None:
        require(self.is_full, "resumed after a pause")
        self.is_full = False

    def connection_lost(self, exc: Exception | None) -> None:
        require(self.is_made and not self.is_lost, "lost once")
        self.is_lost = True
        self.error = exc

    def act(self) -> None:
        """Do something that a user of the transport may do."""
        transport = self.transport
        if transport is None or self.is_lost:
            return
        kind = self._rng.choice(["write"] * 6 + ["pause", "resume"] * 2 + ["eof", "close", "abort"])
        if kind == "write" and not self.is_ended and not transport.is_closing():
            data = self._rng.randbytes(self._rng.choice([1, 100, 10_000, 400_000]))
            self.sent += data
            transport.write(data)
        elif kind == "pause":
            transport.pause_reading()
        elif kind == "resume":
            transport.resume_reading()
        elif self._rng.random() < 0.1:
            self.is_ended = True
            {"eof": transport.write_eof, "close": transport.close, "abort": transport.abort}.get(
                kind, transport.resume_reading
            )()


class Storm:
    """Two nodes, their connections, and what goes on."""

    def __init__(self, sim: SimCluster) -> None:
        self.sim = sim
        self.rng = sim.rng
        self.pairs: list[tuple[Side, Side]] = []
        self.accepted: list[Side] = []
        self.nodes = [sim.add(name, self._serve) for name in ("alpha", "beta")]
        for node in self.nodes:
            node.start()
        sim.run_for(0.1)

    async def _serve(self, node: SimNode) -> None:
        await asyncio.get_running_loop().create_server(self._accept, node.host, PORT)
        await asyncio.Event().wait()

    def _accept(self) -> Side:
        self.accepted.append(Side(self.rng))
        return self.accepted[-1]

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        _, near = await loop.create_connection(lambda: Side(self.rng), "beta", PORT)
        while not self.accepted:  # noqa: ASYNC110  # Accepted in another process.
            await asyncio.sleep(0.01)
        self.pairs.append((near, self.accepted.pop(0)))

    def connect(self) -> None:
        self.sim.run(self._dial(), self.nodes[0])

    def disturb(self) -> None:
        """Do something to the network, the nodes or the connections."""
        kind = self.rng.choice(["use"] * 12 + ["partition", "heal", "pause", "slow", "delay"])
        network = self.sim.network
        if kind == "use" and self.pairs:
            self._use(self.rng.choice(self.rng.choice(self.pairs)))
        elif kind == "partition":
            network.partition("alpha", "beta", one_way=self.rng.random() < 0.5)
        elif kind == "heal":
            network.heal()
        elif kind == "pause":
            self.rng.choice(self.nodes).pause(self.rng.uniform(0.0, 0.5))
        elif kind == "slow":
            network.slow_reader("beta", self.rng.choice([None, 1_000.0, 1_000_000.0]))
        else:
            network.set_conditions(
                delay_s=self.rng.choice([(0.0, 0.0), (0.0001, 0.001), (0.01, 0.2)])
            )

    def _use(self, side: Side) -> None:
        node = next(node for node in self.nodes if side in self._sides_of(node))
        self.sim.loop.call_soon(side.act, context=node.process.context.copy())

    def _sides_of(self, node: SimNode) -> list[Side]:
        return [pair[self.nodes.index(node)] for pair in self.pairs]

    def calm(self) -> None:
        """End all disturbance, and let everything arrive."""
        self.sim.network.heal()
        self.sim.network.reset_conditions()
        self.sim.network.slow_reader("beta", None)
        for node in self.nodes:
            node.resume()
            for side in self._sides_of(node):
                if side.transport is not None and not side.is_lost:
                    resume = side.transport.resume_reading
                    self.sim.loop.call_soon(resume, context=node.process.context.copy())
        self.sim.run_for(30.0)


def check_order(storm: Storm) -> None:
    for near, far in storm.pairs:
        for sender, receiver in ((near, far), (far, near)):
            require(sender.sent.startswith(receiver.received), "bytes arrive in order")


@pytest.mark.parametrize("seed", SEEDS)
def test_storm(seed: int) -> None:
    with SimCluster(seed) as sim:
        storm = Storm(sim)
        for _ in range(3):
            storm.connect()
        sim.call_every(1.0, lambda: check_order(storm))
        for _ in range(STEPS):
            storm.disturb()
            sim.run_for(sim.rng.uniform(0.0, 0.1))
        storm.calm()
        check_order(storm)
        for near, far in storm.pairs:
            if near.is_lost or far.is_lost:
                require((near.is_lost and far.is_lost) or near.saw_eof or far.saw_eof, "both hear")
            else:
                require(near.received == far.sent and far.received == near.sent, "all arrives")
                require(not near.is_full and not far.is_full, "writers go on")
