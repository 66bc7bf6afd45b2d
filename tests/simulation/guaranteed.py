"""Scenario `guaranteed`: domains with guaranteed queues, whose consumers come, go and die."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import NamedTuple

from postroad.cells import CellDomain, CellMessage, Role, StaticCoreDiscovery
from postroad.core import Limits
from postroad.core.errors import StoreUnavailableError
from postroad.durable import (
    DurableQueues,
    DurableQueuesConfig,
    MemoryDisk,
    MemoryStore,
    RetryPolicy,
    StaticPeerDirectory,
)
from postroad.net import MessagingService
from postroad.node import GuaranteedQueues
from postroad.testing import SimCluster, SimNode, Simulation, require

CORES = ("C1", "C2")
SENDERS = ("S1", "S2")
CONSUMERS = ("C2", "S2", "S3", "S4")
NAMES = ("C1", "C2", "S1", "S2", "S3", "S4")
QUEUE = "payments"
PORT = 7000
EACH = 40
"""Messages of one sender."""
BURST = 8
KEYS = 3
TROUBLES = 8
TROUBLE_S = 12.0
# With everybody well again; what waits for routes, bridges and retries has its longest pauses.
QUIET_S = 300.0
LIMITS = Limits(heartbeat_interval_s=1.0, heartbeat_timeout_s=4.0)
MAIL = DurableQueuesConfig(
    open_timeout_s=2.0, window_timeout_s=3.0, bridge_max_delay_s=2.0, handler_timeout_s=5.0
)
PATIENT = RetryPolicy(max_attempts=10_000, initial_delay_s=0.05, max_delay_s=1.0)
TABLE = "CREATE TABLE IF NOT EXISTS handled (number INTEGER PRIMARY KEY, token TEXT)"


class Host:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.node = world.sim.add(name, self._run)
        self.disk = MemoryDisk(Random(f"{world.sim.seed}/mail of {name}"))
        self.disk.sync_s = 0.002
        # Whether a cell here shall consume the queue.
        self.shall_consume = name in CONSUMERS
        self._rng = world.sim.simulation.rng_for(f"cells of {name}")
        # What it sends, and how much of that was taken.
        every = range(EACH) if name in SENDERS else ()
        self.numbers = world.sim.simulation.optional("messages", every)
        self._next = 0

    @property
    def is_done(self) -> bool:
        return self._next == len(self.numbers)

    @property
    def tokens(self) -> list[str]:
        tables = self.disk.execute("SELECT 1 FROM sqlite_master WHERE name = 'handled'")
        if not tables.fetchall():
            return []
        rows = self.disk.execute("SELECT token FROM handled ORDER BY number")
        return [token for (token,) in rows]

    # The process.

    async def _run(self, node: SimNode) -> None:
        role = Role.CORE if self.name in CORES else Role.SATELLITE
        directory = StaticPeerDirectory({name: f"{name}:{PORT}" for name in NAMES})
        locations = StaticCoreDiscovery({core: [f"{core}:{PORT}"] for core in CORES})
        async with (
            MessagingService("sim", self.name, f"{node.host}:{PORT}", limits=LIMITS) as service,
            CellDomain(service, role=role, core_discovery=locations) as domain,
            DurableQueues(
                service, MemoryStore(self.disk), directory=directory, config=MAIL
            ) as mail,
            GuaranteedQueues(domain, mail) as queues,
        ):
            async with mail.transaction() as tx:
                await tx.execute(TABLE)
            self._tend(domain)
            await queues.declare(QUEUE, retry=PATIENT, concurrency=2)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tend_always(domain))
                tasks.create_task(self._send(queues))

    async def _send(self, queues: GuaranteedQueues) -> None:
        while not self.is_done:
            number = self.numbers[self._next]
            if number % BURST == 0:
                # So that some always wait for their turn.
                await asyncio.sleep(self._rng.uniform(0.0, TROUBLES * TROUBLE_S * BURST / EACH))
            name = f"{self.name}-{number}"
            try:
                await queues.send(
                    QUEUE, name, key=f"{number % KEYS}", idempotency_key=name, timeout=1e6
                )
            except StoreUnavailableError:
                continue
            self._next += 1

    async def _tend_always(self, domain: CellDomain) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(0.1, 0.5))
            self._tend(domain)
            if not self.shall_consume and "till" in domain.cells:
                await domain.remove_cell("till", grace=self._rng.choice((0.0, 5.0)))

    def _tend(self, domain: CellDomain) -> None:
        if self.shall_consume and "till" not in domain.cells:
            domain.add_function("till", self._handle, consume=[QUEUE])

    async def _handle(self, message: CellMessage) -> None:
        await asyncio.sleep(self._rng.choice((0.0, 0.1, 2.0)))
        statement = "INSERT INTO handled (token) VALUES (?)"
        await message.transaction.execute(statement, (message.body,))
        if self._rng.random() < 0.1:
            raise ValueError("for once")

    # What befalls it.

    def kill(self, *, is_power: bool = False) -> None:
        if self.node.is_running:
            (self.node.lose_power if is_power else self.node.kill)()
            self.disk.crash()

    def start(self) -> None:
        if not self.node.is_running:
            self.disk.crash()
            self.node.start()


class Trouble(NamedTuple):
    """What happens to a host, or to what is between it and another, and for how long."""

    rest_s: float
    kind: str
    host: str
    other: str
    lasting_s: float


def draw_trouble(rng: Random) -> Trouble:
    host, other = rng.sample(NAMES, 2)
    return Trouble(
        rest_s=rng.uniform(0.0, TROUBLE_S),
        kind=rng.choice(("kill", "power", "pause", "partition", "move", "move", "move")),
        host=host,
        other=other,
        lasting_s=rng.uniform(0.0, TROUBLE_S),
    )


class World:
    def __init__(self, sim: SimCluster) -> None:
        self.sim = sim
        self._troubles = sim.simulation.optional(
            "troubles", [draw_trouble(sim.rng) for _ in range(TROUBLES)]
        )
        self.hosts = {name: Host(self, name) for name in NAMES}

    def run(self) -> None:
        for host in self.hosts.values():
            host.start()
        self.sim.call_every(1.0, self.check)
        for trouble in self._troubles:
            self.sim.run_for(trouble.rest_s)
            self._begin(trouble, self.hosts[trouble.host])
        self._heal()
        claim = "everything is handled"
        self.sim.run_until(self._is_over, timeout=QUIET_S, description=claim, poll_interval=0.25)
        self.sim.run_for(10.0)
        self.check()

    def _begin(self, trouble: Trouble, host: Host) -> None:
        self.sim.log.add("plan", trouble.kind, f"{host.name} for {trouble.lasting_s:.1f} s")
        match trouble.kind:
            case "kill" | "power":
                host.kill(is_power=trouble.kind == "power")
                self.sim.call_later(trouble.lasting_s, host.start)
            case "pause" if host.node.is_running:
                host.node.pause(trouble.lasting_s)
            case "partition":
                self.sim.network.partition(host.name, trouble.other)
                self.sim.call_later(trouble.lasting_s, self.sim.network.heal)
            case "move":
                host.shall_consume = not host.shall_consume

    def _heal(self) -> None:
        self.sim.network.heal()
        for host in self.hosts.values():
            host.node.resume()
            host.start()
            host.shall_consume |= host.name == "S3"

    def handled(self) -> Counter[str]:
        return Counter(token for host in self.hosts.values() for token in host.tokens)

    def check(self) -> None:
        twice = [token for token, count in self.handled().items() if count > 1]
        require(not twice, f"handled twice: {twice}")

    def _is_over(self) -> bool:
        hosts = self.hosts.values()
        count = sum(len(host.numbers) for host in hosts)
        return all(host.is_done for host in hosts) and len(self.handled()) == count


def run_guaranteed(simulation: Simulation) -> None:
    """Trouble, then healing, then every message was handled, once."""
    with SimCluster(simulation) as sim:
        World(sim).run()
