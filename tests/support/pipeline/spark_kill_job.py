"""A node that runs two jobs on a Spark cluster.

Started as `python -m tests.support.pipeline.spark_kill_job PLACE MASTER PEER`.

`booking` reads the queue `payments` of this node, beta, and posts to the queue `booked` of the node
alpha, which is at PEER. `summing` reads the files of lines in `in`, writes what it makes of each to
`aside` as Parquet and, after a shuffle, sums to `sums` as lines. They share a session of the
cluster at MASTER, and keep their accounts in the store of the mail; PLACE is the directory of all.

Prints the address of the node, then "settled JOB" for each batch and "ended JOB", and does what
the lines it reads say, until its input ends:

arm JOB POINT COUNT       kill this process when a batch of the job comes to the point that often
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from postroad import MessagingService, run
from postroad.durable import Mail, MailConfig, SqliteStore, StaticDirectory
from postroad.pipeline import Job, JobBuilder, QueueInput, QueueOutput, RetryPolicy
from postroad.pipeline.connectors import JsonLinesOutput, ParquetOutput
from postroad.pipeline.connectors.connector import InputConnector, OutputConnector
from postroad.pipeline.coordinator.batch_result import BatchResult, CommitResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.spark import SparkConfig, start_spark, stop_spark
from postroad.pipeline.spark.coordinator_server import CoordinatorServer
from postroad.pipeline.spark.runner import SparkRunner
from tests.support.pipeline.spark_kill_functions import GrowingLines
from tests.support.servers.spark import QUICK_JAVA
from tests.support.source_tree import ROOT

CLUSTER = "payments"
ALPHA, BETA = "alpha", "beta"
PAYMENTS, BOOKED = "payments", "booked"
BOOKING, SUMMING = "booking", "summing"
CONFIG = MailConfig(bridge_first_s=0.02, bridge_max_s=0.1)

STAGED = "staged"
"""Everything is staged, nothing is settled."""
COMMITTED = "committed"
"""It is settled; what was staged in files is not published."""
SETTLED = "settled"
"""All that is done, and Spark does not know."""
EMITTED = "emitted"
"""What windows emitted is staged, and not settled."""
POINTS = (STAGED, COMMITTED, SETTLED, EMITTED)

RANGE = 5_000
FUNCTIONS = "tests.support.pipeline.spark_kill_functions:"
RETRY = RetryPolicy(attempts=4, first_s=0.02, max_s=0.1)


def booking() -> Job:
    return (
        JobBuilder(BOOKING)
        .input("in", connector="queue", retry=RETRY, batch_size=4_000, pending_timeout_s=5)
        .function("book", FUNCTIONS + "book")
        .function("check", FUNCTIONS + "check")
        .output("out", connector="queue")
        .build()
    )


def summing() -> Job:
    return (
        JobBuilder(SUMMING)
        .input("in", connector="jsonl", retry=RETRY, batch_size=4_000, pending_timeout_s=5)
        .function("spread", FUNCTIONS + "spread")
        .output("aside", connector="parquet", after="spread")
        .function("sum", FUNCTIONS + "refuse_poison", group_by="part", after="spread")
        .output("sums", connector="jsonl", after="sum")
        .window(
            "sum",
            task="sum",
            type="fixed",
            aggregation="sum",
            key="n",
            time_key="n",
            range_s=RANGE,
        )
        .trigger("sum", on="drained")
        .build()
    )


class DoomedDesk(JobCoordinator):
    """Kills this process where a crash would hurt most."""

    _point = ""
    _left = 0

    def arm(self, point: str, count: int) -> None:
        self._point, self._left = point, count

    def _reach(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    async def commit_batch(self, run: str, batch: int, outcome: BatchResult) -> CommitResult:
        self._reach(STAGED)
        if any(it.task in self._program.windowed_tasks for it in outcome.deliveries):
            self._reach(EMITTED)
        settled = await super().commit_batch(run, batch, outcome)
        self._reach(SETTLED)
        say(f"settled {self._job}")
        return settled

    def _count(self, outcome: BatchResult) -> None:
        self._reach(COMMITTED)
        super()._count(outcome)


class DoomedRunner(SparkRunner):
    """A runner with such a desk."""

    def arm_desk(self, point: str, count: int) -> None:
        assert isinstance(self.coordinator, DoomedDesk)
        self.coordinator.arm(point, count)

    def doom(self) -> DoomedRunner:
        self.coordinator = DoomedDesk(self._program, self._store, self._inputs, self._outputs)
        self._host = CoordinatorServer(self._program, self.coordinator)
        return self


def settings(master: str, place: Path) -> SparkConfig:
    return SparkConfig(
        master=master,
        driver_memory="512m",
        executor_memory="512m",
        python_path=(str(ROOT), str(ROOT / "src")),
        java_options=QUICK_JAVA,
        conf={
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": QUICK_JAVA,
            "spark.local.dir": str(place),
        },
    )


class Node:
    """Runs the jobs, and obeys."""

    def __init__(self, mail: Mail, place: Path, master: str) -> None:
        self._mail = mail
        self._place = place
        self._settings = settings(master, place)
        self._runners: dict[str, DoomedRunner] = {}
        self._armed: list[tuple[str, str, int]] = []

    async def run(self) -> None:
        session = await asyncio.to_thread(start_spark, self._settings)
        try:
            async with asyncio.TaskGroup() as jobs:
                for job, inputs, outputs in (self._booking(), self._summing()):
                    checkpoint = self._place / f"{job.name}.spark"
                    runner = DoomedRunner(
                        *(job, inputs, outputs, self._mail.store, checkpoint, self._settings),
                        session=session,
                    ).doom()
                    self._runners[job.name] = runner
                    jobs.create_task(self._run(job.name, runner))
                for armed in self._armed:
                    self.arm(*armed)
        finally:
            await asyncio.to_thread(stop_spark, session)

    async def _run(self, name: str, runner: SparkRunner) -> None:
        await runner.run()
        say(f"ended {name}")

    def _booking(self) -> tuple[Job, dict[str, InputConnector], dict[str, OutputConnector]]:
        source = QueueInput(self._mail, PAYMENTS, split_segments=500)
        return booking(), {"in": source}, {"out": QueueOutput(self._mail, ALPHA, BOOKED)}

    def _summing(self) -> tuple[Job, dict[str, InputConnector], dict[str, OutputConnector]]:
        aside = ParquetOutput(str(self._place / "aside"), {"n": "int64", "part": "int64"})
        sums = JsonLinesOutput(str(self._place / "sums"))
        source = GrowingLines(str(self._place / "in"))
        return summing(), {"in": source}, {"aside": aside, "sums": sums}

    def arm(self, name: str, point: str, count: int) -> None:
        """Kill this process at a point; also if the job is not there yet."""
        if name in self._runners:
            self._runners[name].arm_desk(point, count)
        else:
            self._armed.append((name, point, count))


async def work(place: Path, master: str, alpha: str) -> None:
    peers = StaticDirectory({ALPHA: alpha})
    async with (
        MessagingService(CLUSTER, BETA) as service,
        Mail(service, SqliteStore(place / "beta.db"), directory=peers, config=CONFIG) as mail,
    ):
        node = Node(mail, place, master)
        running = asyncio.create_task(node.run())
        obeying = asyncio.create_task(obey(node))
        say(str(service.address))
        await asyncio.wait((running, obeying), return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        try:
            await running
        except asyncio.CancelledError:
            return


async def obey(node: Node) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        _, job, point, count = line.split()
        node.arm(job, point, int(count))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    run(work(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
