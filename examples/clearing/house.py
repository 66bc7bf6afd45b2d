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
from postroad.pipeline import JobProgress, Local, Spark, run
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

    def __init__(self) -> None:
        self._progress: JobProgress | None = None

    async def run(self, node: Node) -> None:
        """Until it is cancelled."""
        on = _on_spark() if os.environ.get(USES_SPARK) else Local()
        checkpoint = Path(os.environ.get(PLACE, ".")) / "checkpoint"
        await run(JOB_FILE, on=on, node=node, checkpoint=checkpoint, on_progress=self._note)

    def _note(self, progress: JobProgress) -> None:
        self._progress = progress

    def look(self) -> dict[str, int]:
        """Since this process began: acknowledged, pending, replayed and dead payments."""
        now = self._progress
        if now is None:
            return {}
        return {
            "acked": now.acked,
            "pending": now.pending,
            "replayed": now.replayed,
            "dead": now.dead,
        }


def _on_spark() -> Spark:
    place = Path(os.environ[PLACE])
    _part_with_errors(place / "spark.log")
    # Spark's sockets get names without a directory: there is a limit to how long these may be.
    os.chdir(place)
    return Spark(
        app_name="postroad-clearing",
        driver_memory="512m",
        python_path=(str(REPOSITORY),),
        java_options=f'{JAVA_OPTIONS} "-Djava.io.tmpdir={place}"',
        conf={"spark.local.dir": str(place), "spark.python.unix.domain.socket.dir": "."},
    )


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
        counts = {} if self.clearing is None else self.clearing.look()
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
    clearing = house.clearing = Clearing()
    running = asyncio.create_task(clearing.run(node))
    yield
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
