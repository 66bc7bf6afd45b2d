"""The program of the clearing house: its job, on Spark or not, and what comes of it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from examples.clearing.job import JOB_FILE
from examples.clearing.payments import Payment
from postroad.durable import Message, Transaction
from postroad.node import Node, consumes, current_node
from postroad.pipeline import LocalRunner, TaskType, load_job, make_input, make_output
from postroad.pipeline.coordinator.progress import ProgressSampler
from postroad.services import Context, Service, action

# Spark's JVM lives for seconds: to start is most of what it does.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
REPOSITORY = Path(__file__).resolve().parents[2]
PLACE, USES_SPARK = "CLEARING_PLACE", "CLEARING_ON_SPARK"
"""What the story tells by the environment."""

ALERTS, TOTALS = TABLES = ("alerts", "totals")
_COLUMNS = "account TEXT, number INTEGER, cents INTEGER"


@consumes("alerts")
async def note_alert(message: Message, tx: Transaction) -> None:
    """Note a large payment."""
    payment = msgspec.json.decode(message.body, type=Payment)
    row = (payment.account, payment.number, payment.cents)
    await tx.execute(f"INSERT INTO {ALERTS} VALUES (?, ?, ?)", row)


@consumes("totals")
async def note_total(message: Message, tx: Transaction) -> None:
    """Note what an account has paid so far; the newest counts."""
    found: dict[str, Any] = msgspec.json.decode(message.body)
    row = (found["group"], 0, found["value"])
    await tx.execute(f"INSERT INTO {TOTALS} VALUES (?, ?, ?)", row)


class Clearing:
    """The job, and how it stands."""

    def __init__(self, node: Node) -> None:
        self._runner = _make_runner(node)
        self._meter: ProgressSampler | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._runner.run()

    async def look(self) -> dict[str, int]:
        """Since this process began: acknowledged, pending, replayed and dead payments."""
        desk = self._runner.coordinator
        if not desk.is_open:
            return {}
        if self._meter is None:
            self._meter = ProgressSampler("clearing", os.getpid(), desk)
        now = await self._meter.look()
        return {
            "acked": now.acked,
            "pending": now.pending,
            "replayed": now.replayed,
            "dead": now.dead,
        }


def _make_runner(node: Node) -> Any:
    job, mail = load_job(JOB_FILE), node.mail
    inputs = {it.name: make_input(it, mail) for it in job.catalog if it.type is TaskType.INPUT}
    outputs = {it.name: make_output(it, mail) for it in job.catalog if it.type is TaskType.OUTPUT}
    if not os.environ.get(USES_SPARK):
        return LocalRunner(job, inputs, outputs, mail.store)
    from postroad.pipeline.spark import SparkConfig, SparkRunner

    place = Path(os.environ[PLACE])
    _part_with_errors(place / "spark.log")
    # Spark's sockets get names without a directory: there is a limit to how long these may be.
    os.chdir(place)
    settings = SparkConfig(
        app_name="postroad-clearing",
        driver_memory="512m",
        python_path=(str(REPOSITORY),),
        java_options=f'{JAVA_OPTIONS} "-Djava.io.tmpdir={place}"',
        conf={"spark.local.dir": str(place), "spark.python.unix.domain.socket.dir": "."},
    )
    return SparkRunner(job, inputs, outputs, mail.store, place / "checkpoint", settings)


def _part_with_errors(path: Path) -> None:
    """Have what Spark writes go to a file: a JVM whose driver was killed has much to say."""
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)


class House(Service):
    """What others may ask of the clearing house."""

    name = "house"
    clearing: Clearing | None = None

    @action
    async def books(self, ctx: Context) -> dict[str, int]:
        """How many rows there are, and how the job stands."""
        counts = {} if self.clearing is None else await self.clearing.look()
        async with current_node().mail.transaction() as tx:
            ((counts[ALERTS],),) = await tx.execute(f"SELECT count(*) FROM {ALERTS}")
        return counts


house = House()


@asynccontextmanager
async def lifespan(node: Node) -> AsyncIterator[None]:
    """Have the job run while the node does."""
    async with node.mail.transaction() as tx:
        for table in TABLES:
            await tx.execute(f"CREATE TABLE IF NOT EXISTS {table} ({_COLUMNS})")
    clearing = house.clearing = Clearing(node)
    running = asyncio.create_task(clearing.run())
    yield
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
