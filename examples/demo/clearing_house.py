"""The node that clears payments: it runs the job in `clearing.toml` on Spark.

The job takes payments out of a queue of this node and posts what comes of them to the other one, in
the commits of its own account. So this process can be killed at any time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from postroad import MessagingService
from postroad.durable import Mail, SqliteStore, StaticDirectory
from postroad.pipeline import Job, Meter, TaskType, make_input, make_output, read_job
from postroad.pipeline.spark import SparkRunner, SparkSettings

from .clearing import JOB_FILE
from .payments import CONFIG
from .pipe import Orders, tell
from .processes import REPOSITORY
from .records import Clearing, Command, JobReport, Ready

REPORT_EVERY_S = 0.1
# For a JVM that lives for seconds: to start is most of what it does.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


async def clear_payments(service: MessagingService, task: Clearing, orders: Orders) -> None:
    """Run the job until told to stop."""
    # Spark's sockets get names without a directory: there is a limit to how long these may be.
    os.chdir(task.place)
    _part_with_errors(Path("spark.log"))
    peers = StaticDirectory({task.peer: task.address})
    async with Mail(service, SqliteStore(task.store), directory=peers, config=CONFIG) as mail:
        runner = _make_runner(read_job(JOB_FILE), mail, Path(task.place))
        tell(Ready(address=str(service.address)))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(runner.run())
            reporting = group.create_task(_report(runner))
            await orders.wait_for(Command.STOP)
            reporting.cancel()
            running.cancel()


def _part_with_errors(path: Path) -> None:
    """Have what Spark writes go to a file: a JVM whose driver was killed has much to say."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)


def _make_runner(job: Job, mail: Mail, place: Path) -> SparkRunner:
    tasks = {kind: [it for it in job.catalog if it.type is kind] for kind in TaskType}
    settings = SparkSettings(
        app_name="postroad-demo",
        driver_memory="512m",
        python_path=(str(REPOSITORY),),
        java_options=f'{JAVA_OPTIONS} "-Djava.io.tmpdir={place}"',
        conf={"spark.local.dir": str(place), "spark.python.unix.domain.socket.dir": "."},
    )
    return SparkRunner(
        job,
        {it.name: make_input(it, mail) for it in tasks[TaskType.INPUT]},
        {it.name: make_output(it, mail) for it in tasks[TaskType.OUTPUT]},
        mail.store,
        place / "checkpoint",
        settings,
    )


async def _report(runner: SparkRunner) -> None:
    meter = Meter("clearing", os.getpid(), runner.desk)
    while True:
        if runner.desk.is_open:
            now = await meter.look()
            tell(JobReport(now.acked, now.pending, now.replayed, now.dead))
        await asyncio.sleep(REPORT_EVERY_S)
