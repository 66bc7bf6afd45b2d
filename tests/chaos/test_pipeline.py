"""Jobs on hosts of a Spark cluster, while everything they run on is killed again and again.

Executors, workers, the master, drivers with their coordinators, their JVMs and the node that owns
the queues die at random, and executors pause; at night hosts are also cut off. Whatever dies, each
segment is acknowledged or a dead letter, each output is there once, and sums over windows are
exact.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeAlias

import pytest

from tests.chaos.doomed import COMMITTED, EMITTED, SETTLED, STAGED, WRITTEN
from tests.chaos.pipeline_hosts import CLEARING, COORDINATOR_PORT, RELAY, Jobs, Verdict
from tests.support.servers.spark_hosts import EXECUTOR as EXECUTOR_PROGRAM
from tests.support.servers.spark_hosts import WORKERS, SparkHosts, spark_hosts
from tests.support.source_tree import ROOT
from tests.support.tiers import by_tier

pytestmark = pytest.mark.timeout(1800)

Say: TypeAlias = Callable[[str], None]

CHAOS_SECONDS = os.environ.get("POSTROAD_CHAOS_SECONDS")
STORM_S = float(CHAOS_SECONDS or 600)
STILL_S = 300.0
"""So long no job may stand still; what starts anew on a quiet machine takes a sixth of it."""
DONE_S = 300.0
SAID_S = 60.0
"""Within which a job says that its master is gone."""

EXECUTOR, WORKER, MASTER, CUT = "executor", "worker", "master", "cut"
DRIVER, JVM, NODE, POINT, PAUSE = "driver", "JVM", "node", "point", "pause"
EVERY_DAY = (EXECUTOR, WORKER, MASTER, DRIVER, JVM, NODE, POINT, PAUSE)
KINDS = by_tier(test=EVERY_DAY, nightly=(*EVERY_DAY, CUT))
STRIKES = None if CHAOS_SECONDS else by_tier(test=len(EVERY_DAY), nightly=None)
"""How many there are at most: by day one of each kind, which takes a fraction of STORM_S."""
POINTS = ((CLEARING, STAGED), (CLEARING, WRITTEN), (CLEARING, SETTLED), (RELAY, COMMITTED))

STRANGER = """
import asyncio, socket, ssl, sys
from postroad.core.errors import MessagingError
from postroad.net import MessagingService
from postroad.pipeline.spark.coordinator_client import CLUSTER, SUBJECT, GetInitialOffset, encode
from postroad.wire import encode_preamble

def shake_hands(host, port):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), 30) as plain:
        with context.wrap_socket(plain) as secure:
            print(secure.version())
            try:
                secure.sendall(encode_preamble(CLUSTER))
                print("answered" if secure.recv(1) else "refused")
            except OSError:
                print("refused")

async def ask(address):
    async with MessagingService(CLUSTER, "stranger", secret="the token of another job") as service:
        try:
            await service.request(address, SUBJECT, encode(GetInitialOffset()), timeout=30)
        except MessagingError:
            print("refused")

shake_hands(*sys.argv[1].split(":"))
asyncio.run(ask(sys.argv[1]))
"""


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str]) -> Say:
    """Prints for whoever looks at a run, although what tests print is kept from them."""

    def print_line(text: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"\n{text}")
            sys.stdout.flush()

    return print_line


class Strike(NamedTuple):
    """What dies next."""

    kind: str
    pause_s: float
    """After something was settled."""
    number: int
    """Of the worker, the job or the point that is hit."""
    gone_s: float
    """How long what is not missed at once stays away."""

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


def plan(seed: int) -> Iterator[Strike]:
    """The same for the same seed: each kind once, in any order, and then whatever comes."""
    chance = random.Random(seed)
    first = [*KINDS]
    chance.shuffle(first)
    while True:
        kind = first.pop() if first else chance.choice(KINDS)
        yield Strike(kind, chance.uniform(0, 2), chance.randrange(1 << 10), chance.uniform(0, 10))


class Storm:
    """Kills what the jobs run on, and starts it again."""

    def __init__(self, cluster: SparkHosts, jobs: Jobs, say: Say) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._say = say
        self._began = time.monotonic()
        self.kills: Counter[str] = Counter()
        self.stillest_s = 0.0
        """How long a job stood still, at most."""
        now = time.monotonic()
        self._settled = dict.fromkeys(jobs.programs, 0)
        self._moved = dict.fromkeys(jobs.programs, now)

    def rage(self, seconds: float, strikes: Iterator[Strike]) -> None:
        deadline = self._began + seconds
        for strike in strikes:
            self.settle_more(deadline)
            self._wait(strike.pause_s)
            if time.monotonic() >= deadline:
                return
            self._say(f"{time.monotonic() - self._began:5.0f} s: {strike}")
            self._strike(strike)
            self.kills[strike.kind] += 1

    def settle_more(self, deadline: float = float("inf")) -> None:
        """Return when each job has settled one more batch, or when the storm is over."""
        before = self._settled.copy()
        self._watch_until(
            lambda: (
                all(self._settled[job] != before[job] for job in before)
                or time.monotonic() >= deadline
            ),
            "each job settles a batch",
        )

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._watch_until(lambda: time.monotonic() >= until, "time passes")

    def _watch_until(
        self, is_so: Callable[[], bool], what: str, *, are_jobs_alive: bool = True
    ) -> None:
        """Feed the jobs and see that they move, until a condition holds."""

        def look() -> bool:
            if are_jobs_alive:
                self._jobs.check_running()
            self._look()
            return is_so()

        self._cluster.wait(look, what, STORM_S + DONE_S)

    def _look(self) -> None:
        self._jobs.load.feed()
        now = time.monotonic()
        for job, program in self._jobs.programs.items():
            settled = self._jobs.settled(job)
            still_s = now - self._moved[job]
            self.stillest_s = max(self.stillest_s, still_s)
            assert still_s < STILL_S, f"{job} stands still:\n{program.last_words()}"
            if settled != self._settled[job]:
                self._settled[job], self._moved[job] = settled, now

    def _strike(self, strike: Strike) -> None:
        jobs, cluster, worker = self._jobs, self._cluster, strike.number % WORKERS
        match strike.kind:
            case "executor":
                cluster.kill_executors(worker)
            case "worker":
                cluster.kill_worker(worker)
                cluster.start_worker(worker)
            case "master":
                cluster.kill_master()
                # It may also be back before anybody misses it.
                is_missed = STRIKES is not None or strike.number % 2
                self._wait_until_said() if is_missed else self._wait(strike.gone_s)
                cluster.start_master()
            case "cut":
                hosts = [*cluster.network.hosts]
                name = hosts[strike.number % len(hosts)]
                cluster.network.cut(name)
                self._wait(5 * strike.gone_s)
                cluster.network.mend(name)
            case "pause":
                # Its tasks run a second time elsewhere; then it goes on with the first.
                cluster.network.hosts[f"worker-{worker}"].send(signal.SIGSTOP, EXECUTOR_PROGRAM)
                self._wait(strike.gone_s)
                cluster.network.hosts[f"worker-{worker}"].send(signal.SIGCONT, EXECUTOR_PROGRAM)
            case "driver":
                jobs.clearing.kill()
                jobs.clearing.start()
            case "JVM":
                [*jobs.programs.values()][strike.number % len(jobs.programs)].kill_jvm()
            case "node":
                jobs.node.kill()
                jobs.node.start()
            case "point":
                self.die_at(*POINTS[strike.number % len(POINTS)])

    def _wait_until_said(self) -> None:
        """Whoever runs a job is told within a minute that its master is gone."""
        job = self._jobs.clearing
        before, lost_s = len(job.read_log()), time.monotonic()
        self._watch_until(
            lambda: "does not answer" in job.read_log()[before:], "the job misses its master"
        )
        assert time.monotonic() - lost_s < SAID_S

    def die_at(self, job: str, point: str) -> None:
        """Have the process of a job die at a point of a batch."""
        program = self._jobs.programs[job]
        self._jobs.arm(job, point)
        self._watch_until(
            lambda: not self._jobs.is_armed and program.process.status is not None,
            f"{job} dies at {point}",
            are_jobs_alive=False,
        )
        program.kill()
        program.start()
        self._say(f"       died at {job} {point}")


def test_jobs_on_hosts_do_everything_once_whatever_is_killed(
    tmp_path: Path, seed: int, say: Say
) -> None:
    say(f"seed {seed}")
    with TemporaryDirectory(prefix="storm-") as scratch, spark_hosts(tmp_path) as cluster:
        jobs = Jobs(cluster, tmp_path, Path(scratch))
        try:
            jobs.start()
            storm = Storm(cluster, jobs, say)
            storm.settle_more()
            check_strangers(cluster)
            storm.rage(STORM_S, islice(plan(seed), STRIKES))
            kills = ", ".join(f"{name} {count}" for name, count in storm.kills.items())
            say(f"kills: {kills}; a job stood still for {storm.stillest_s:.0f} s at most")
            verdict = Verdict(tmp_path, jobs.load.count)
            end_all(cluster, jobs, verdict)
        finally:
            jobs.close()
        cluster.stop()
        cluster.wait(lambda: not cluster.network.list_processes(), "nothing is left running")
    verdict.check_clearing()
    verdict.check_relay()
    say(f"{jobs.load.count} lines and payments are done")


def check_strangers(cluster: SparkHosts) -> None:
    """The coordinator talks TLS, and to nobody without its certificate and token."""
    address = f"{cluster.driver.address}:{COORDINATOR_PORT}"
    stranger = cluster.network.hosts["worker-0"].run(
        [sys.executable, "-c", STRANGER, address], cwd=ROOT, timeout=DONE_S
    )
    assert stranger.stdout.splitlines() == ["TLSv1.3", "refused", "refused"], stranger.stderr


def end_all(cluster: SparkHosts, jobs: Jobs, verdict: Verdict) -> None:
    """Have both jobs do what is left, and end."""
    jobs.restart_to_end()
    if STRIKES is None:
        # Windows emit when there is nothing more.
        jobs.arm(CLEARING, EMITTED)
        cluster.wait(lambda: not jobs.is_armed, "windows emit", DONE_S)
        jobs.clearing.kill()
        jobs.clearing.start()
    cluster.wait(lambda: not verdict.unfinished(RELAY), "payments are done", DONE_S)
    jobs.node.kill()
    cluster.wait(lambda: jobs.clearing.process.status is not None, "lines are done", DONE_S)
    assert jobs.clearing.process.status == 4, jobs.clearing.last_words()
    assert verdict.unfinished(CLEARING) == {}
