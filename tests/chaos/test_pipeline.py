"""Jobs on a real Spark cluster, while everything they run on is killed again and again.

Every day an executor, a worker and a driver are killed; at night and under `make chaos` each kind
of kill comes, and more follow at random. Whatever dies, each segment
is acknowledged or a dead letter, each output is there once, and sums over windows are exact.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from postroad import MessagingService
from postroad.durable import Mail, SqliteStore, StaticDirectory
from tests.chaos.pipeline_processes import (
    BACKLOG,
    BACKLOG_QUICK,
    SPARK_DEADLINE_S,
    JobsNode,
    Load,
    Store,
    Verdict,
)
from tests.support.deadlines import eventually
from tests.support.pipeline.spark_kill_job import (
    ALPHA,
    BOOKING,
    CLUSTER,
    COMMITTED,
    CONFIG,
    EMITTED,
    SETTLED,
    STAGED,
    SUMMING,
)
from tests.support.servers.spark import SparkCluster, spark_cluster

pytestmark = pytest.mark.timeout(1800)

Say: TypeAlias = Callable[[str], None]

QUICK_S = 3.0
"""An everyday run is over when each kill has come once."""
WORKERS = 2


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Prints for whoever looks at a run, although what tests print is kept from them."""

    def print_line(text: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"\n{text}")
            sys.stdout.flush()

    return print_line


class Killer:
    """Kills what the jobs run on, and starts it again."""

    def __init__(
        self, cluster: SparkCluster, node: JobsNode, store: Store, chance: random.Random
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._store = store
        self._chance = chance
        self.kills: Counter[str] = Counter()

    def tell(self) -> Iterator[str]:
        kills = ", ".join(f"{name} {count}" for name, count in self.kills.items())
        batches = ", ".join(f"{job} {count}" for job, count in self._node.settled.items())
        yield f"kills: {kills}; restarts: {self._node.starts - 1}; batches: {batches}"

    def executor(self) -> None:
        self.kills["executor"] += self._cluster.kill_executors(self._chance.randrange(WORKERS))

    def worker(self) -> None:
        number = self._chance.randrange(WORKERS)
        self._cluster.kill_worker(number)
        self._cluster.start_worker(number)
        self.kills["worker"] += 1

    async def driver(self) -> None:
        await self._node.kill()
        self.kills["driver"] += 1
        await self._node.start()

    async def driver_at(self, job: str, point: str, count: int) -> None:
        """Have the driver die at a point."""
        self._node.arm(job, point, count)
        await self._node.dies()
        if point in (COMMITTED, SETTLED):
            assert self._store.settled_batch(job) == self._store.committed_batch(job) + 1
        self.kills[f"driver with {job} {point}"] += 1
        await self._node.start()


class Storm:
    """Kills at random."""

    def __init__(self, killer: Killer, node: JobsNode, chance: random.Random) -> None:
        self._killer = killer
        self._node = node
        self._chance = chance

    async def rage(self, seconds: float) -> None:
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            # How far things are when it strikes is part of what is random.
            await self._node.settles_more()
            await asyncio.sleep(self._chance.uniform(0.0, 1.0))
            await self._strike()

    async def _strike(self) -> None:
        match self._chance.randrange(6):
            case 0 | 1:
                self._killer.executor()
            case 2:
                self._killer.worker()
            case 3 | 4:
                await self._killer.driver()
            case 5:
                job = self._chance.choice((BOOKING, SUMMING))
                point = self._chance.choice((STAGED, COMMITTED, SETTLED))
                await self._killer.driver_at(job, point, self._chance.randrange(1, 4))


@asynccontextmanager
async def running_jobs(
    place: Path, cluster: SparkCluster, backlog: int
) -> AsyncIterator[tuple[JobsNode, Load]]:
    peers = StaticDirectory()
    async with (
        MessagingService(CLUSTER, ALPHA) as service,
        Mail(service, SqliteStore(place / "alpha.db"), directory=peers, config=CONFIG) as mail,
    ):
        node = JobsNode(place, cluster.master, mail, peers)
        load = Load(mail, place, backlog)
        try:
            await load.start()
            await node.start()
            yield node, load
        finally:
            await node.kill()


async def test_jobs_on_a_cluster_do_everything_once_whatever_is_killed(
    tmp_path: Path, chaos_seconds: float, seed: int, say: Say
) -> None:
    chance = random.Random(seed)
    is_quick = chaos_seconds <= QUICK_S
    backlog = BACKLOG_QUICK if is_quick else BACKLOG
    with spark_cluster(tmp_path) as cluster:
        async with running_jobs(tmp_path, cluster, backlog) as (node, load):
            store = Store(tmp_path)
            killer = Killer(cluster, node, store, chance)
            await kill_each_once(killer, node)
            if not is_quick:
                await kill_driver_elsewhere(killer, node, chance)
                await Storm(killer, node, chance).rage(chaos_seconds)
            await load.rest()
            if not is_quick:
                await killer.driver_at(SUMMING, EMITTED, 1)
            await until_done(node, store)
            await node.stop()
            verdict = Verdict(load, store)
            for line in (*killer.tell(), *verdict.tell()):
                say(line)
            verdict.check()


async def kill_each_once(killer: Killer, node: JobsNode) -> None:
    await node.settles_more()
    killer.executor()
    await node.settles_more()
    killer.worker()
    await node.settles_more()
    # All is done, and Spark does not know: the batch comes again.
    await killer.driver_at(SUMMING, SETTLED, 1)


async def kill_driver_elsewhere(killer: Killer, node: JobsNode, chance: random.Random) -> None:
    await killer.driver_at(BOOKING, STAGED, 1)
    await node.settles_more()
    await asyncio.sleep(chance.uniform(0.0, 0.5))
    await killer.driver()


async def until_done(node: JobsNode, store: Store) -> None:
    await eventually(lambda: SUMMING in node.ended, "sums are done", SPARK_DEADLINE_S)
    await eventually(lambda: not store.unfinished(), "everything is done", SPARK_DEADLINE_S)
