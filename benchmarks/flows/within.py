"""Transactions of a web process that write a row and start a flow, with a pool of SQLAlchemy.

Threads take connections of one pool on PostgreSQL, as a web framework's do. Nothing starts the
flows meanwhile, so that only what the caller pays is measured; except in one row, where a node in
another process starts them all.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from benchmarks.children import running
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.messaging.processes import run
from benchmarks.postgres import postgres_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.children import Announce
    from benchmarks.harness import Settings

THREADS = 8
# As many as DBOS; and nearly as many as with an outbox table that somebody writes by hand.
DBOS_GOAL, OUTBOX_GOAL = 1.0, 0.8
POSTROAD, BUSY = "postroad.within", "postroad.within, and a node that starts them"
DBOS, OUTBOX = "DBOS, enqueue_in_transaction", "a second row, by hand"
INSERT = "INSERT INTO orders (number) VALUES (:number)"


def section(settings: Settings) -> Section:
    """Transactions per second of one process."""
    case = f"a row and a flow in one transaction of a pool, {THREADS} threads"
    return Section(
        title="flows started within a user's transaction, PostgreSQL",
        unit="transactions/s",
        contenders=[
            Contender(name, partial(_measure, name, settings))
            for name in (POSTROAD, BUSY, DBOS, OUTBOX)
        ],
        comparisons=[
            Comparison(case, POSTROAD, DBOS, DBOS_GOAL),
            Comparison(case, POSTROAD, OUTBOX, OUTBOX_GOAL),
            Comparison(f"{case}, while a node starts the flows", BUSY, OUTBOX),
        ],
    )


def _measure(name: str, settings: Settings) -> float:
    """Take one sample on an empty database."""
    with postgres_server() as url:
        arguments = (name, url, settings.seconds, settings.warmup_s)
        with ExitStack() as stack:
            if name in (POSTROAD, BUSY):
                node = stack.enter_context(running(run_node, url, settings.loop))
                node.receive()
                if name == POSTROAD:
                    # It has made the tables.
                    node.stop()
            with running(run_web_process, *arguments) as child:
                return float(child.receive(60 + 3 * settings.seconds))


def run_node(announce: Announce, url: str, loop: str) -> None:
    """Body of the process of a node that starts the flows."""
    from postroad import App, FlowContext, Node, NodeConfig, flow
    from postroad.node.settings import NodeSettings, QueuesSettings

    @flow(name="accept")
    async def accept(ctx: FlowContext, number: int) -> None:
        """Be done at once."""

    async def work() -> None:
        config = NodeConfig(node=NodeSettings(name="shop"), queues=QueuesSettings(store=url))
        async with Node(config, App(flows=[accept])):
            announce("ready")
            await asyncio.Event().wait()

    run(work(), loop)


def run_web_process(
    announce: Announce, name: str, url: str, seconds: float, warmup_s: float
) -> None:
    """Body of the process that is measured."""
    import sqlalchemy

    url = url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url, pool_size=THREADS)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE orders (number INTEGER)"))
    begin = {POSTROAD: _postroad, BUSY: _postroad, DBOS: _dbos, OUTBOX: _by_hand}[name](url)
    numbers, committed, is_over = count(), count(), False

    def work() -> None:
        while not is_over:
            with engine.begin() as connection:
                number = next(numbers)
                connection.execute(sqlalchemy.text(INSERT), {"number": number})
                begin(connection, number)
            next(committed)

    with ThreadPoolExecutor(THREADS) as threads:
        workers = [threads.submit(work) for _ in range(THREADS)]
        sleep(warmup_s)
        before, start = next(committed), perf_counter()
        sleep(seconds)
        rate = (next(committed) - before - 1) / (perf_counter() - start)
        is_over = True
        for worker in workers:
            worker.result()
    announce(rate)


def _postroad(url: str) -> Callable[[Any, int], object]:
    from postroad import FlowContext, flow, within

    @flow(name="accept")
    async def accept(ctx: FlowContext, number: int) -> None:
        """The flow of the node."""

    return lambda connection, number: within.start_flow(connection, accept, number)


def _dbos(url: str) -> Callable[[Any, int], object]:
    from dbos import DBOS, DBOSClient, EnqueueOptions

    # It makes the tables.
    DBOS(config={"name": "benchmark", "system_database_url": url, "log_level": "ERROR"})
    DBOS.launch()
    client = DBOSClient(system_database_url=url)
    options: EnqueueOptions = {"queue_name": "orders", "workflow_name": "accept"}
    return lambda connection, number: client.enqueue_in_transaction(connection, options, number)


def _by_hand(url: str) -> Callable[[Any, int], object]:
    import sqlalchemy

    table = "CREATE TABLE outbox (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body BYTEA)"
    insert = sqlalchemy.text("INSERT INTO outbox (body) VALUES (:body)")
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(table))
    return lambda connection, number: connection.execute(insert, {"body": b"%d" % number})
