"""The program of the clearing house: what comes of its job, which the node runs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from examples.clearing.job import JOB_FILE
from examples.clearing.payments import Payment
from postroad.durable import Message, Transaction
from postroad.node import Node, consumer, current_node
from postroad.services import Context, Service, action

SPARK_PLACE = "CLEARING_SPARK_PLACE"
"""In the environment: where Spark has its files, if the job runs on it."""

ALERTS, TOTALS = TABLES = ("alerts", "totals")
_COLUMNS = "account TEXT, number INTEGER, cents INTEGER"


@consumer("alerts")
async def note_alert(message: Message, tx: Transaction) -> None:
    """Note a large payment."""
    payment = msgspec.json.decode(message.body, type=Payment)
    row = (payment.account, payment.number, payment.cents)
    await tx.execute(f"INSERT INTO {ALERTS} VALUES (?, ?, ?)", row)


@consumer("totals")
async def note_total(message: Message, tx: Transaction) -> None:
    """Note what an account has paid so far; the newest counts."""
    found: dict[str, Any] = msgspec.json.decode(message.body)
    row = (found["group"], 0, found["value"])
    await tx.execute(f"INSERT INTO {TOTALS} VALUES (?, ?, ?)", row)


def _stand() -> dict[str, int]:
    """Since this process began: acknowledged, pending, replayed and dead payments."""
    job = current_node().jobs.find(JOB_FILE)
    if job is None or (now := job.progress) is None:
        return {}
    return {
        "acked": now.acked,
        "pending": now.pending,
        "replayed": now.replayed,
        "dead": now.dead,
    }


def _prepare_for_spark(place: Path) -> None:
    _part_with_errors(place / "spark.log")
    # Spark's sockets get names without a directory: there is a limit to how long these may be.
    os.chdir(place)


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

    @action
    async def books(self, ctx: Context) -> dict[str, int]:
        """How many rows there are, and how the job stands."""
        counts = _stand()
        async with current_node().queues.transaction() as tx:
            ((counts[ALERTS],),) = await tx.execute(f"SELECT count(*) FROM {ALERTS}")
        return counts


house = House()


@asynccontextmanager
async def lifespan(node: Node) -> AsyncIterator[None]:
    """Have tables for what comes of the job, which the node runs."""
    async with node.queues.transaction() as tx:
        for table in TABLES:
            await tx.execute(f"CREATE TABLE IF NOT EXISTS {table} ({_COLUMNS})")
    if place := os.environ.get(SPARK_PLACE):
        _prepare_for_spark(Path(place))
    yield
