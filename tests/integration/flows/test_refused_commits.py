"""What a step did cannot be committed: it has failed, like with any other error of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from postroad.core.errors import IdempotencyConflictError, UsageError
from postroad.durable import PostgresStore, Transaction
from postroad.flows import (
    INJECTED,
    FlowContext,
    FlowsConfig,
    FlowStatus,
    RetryPolicy,
    StoreConnection,
    flow,
)
from tests.support.flows.nodes import FlowNodes
from tests.support.servers.postgres import fresh_database

TABLES = (
    "CREATE TABLE parent (id BIGINT PRIMARY KEY)",
    "CREATE TABLE child (id BIGINT REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE tries (number BIGINT)",
)
SOON = RetryPolicy(max_attempts=3, initial_delay_s=0.001, max_delay_s=0.004)

tried: list[int] = []


@pytest.fixture(autouse=True)
def _count_anew() -> None:
    tried.clear()


@pytest.fixture(params=[False, True], ids=["live", "reloaded"])
async def on_postgres(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlowNodes]:
    """Nodes whose store checks foreign keys, unlike those in SQLite."""
    config = FlowsConfig(
        replay_every_time=request.param, retry_initial_delay_s=0.005, retry_max_delay_s=0.02
    )
    with fresh_database() as dsn:
        nodes = FlowNodes(tmp_path, config, lambda name: PostgresStore(dsn, name))
        try:
            yield nodes
        finally:
            await nodes.stop()


@pytest.fixture
async def on_sqlite(tmp_path: Path) -> AsyncIterator[FlowNodes]:
    """Nodes whose store has statements that undo all of a commit."""
    nodes = FlowNodes(tmp_path, FlowsConfig())
    try:
        yield nodes
    finally:
        await nodes.stop()


async def create(tx: Transaction = INJECTED) -> None:
    for statement in TABLES:
        await tx.execute(statement)


async def adopt(number: int, tx: Transaction = INJECTED) -> None:
    tried.append(number)
    await tx.execute(f"INSERT INTO child VALUES ({number})")


def adopt_plainly(number: int, connection: StoreConnection = INJECTED) -> None:
    tried.append(number)
    connection.execute(f"INSERT INTO child VALUES ({number})")


async def bear(number: int, tx: Transaction = INJECTED) -> None:
    await tx.execute(f"INSERT INTO parent VALUES ({number})")


@flow
async def adopt_in_steps(ctx: FlowContext) -> list[str]:
    await ctx.step(create)
    seen = []
    for function in (adopt, adopt_plainly):
        try:
            await ctx.step.with_options(retry=SOON)(function, 1)
        except psycopg.errors.ForeignKeyViolation as error:
            seen.append(type(error).__name__)
    await ctx.step(bear, 1)
    await ctx.step(adopt, 1)
    return seen


@flow
async def adopt_without_care(ctx: FlowContext) -> None:
    await ctx.step(create)
    await ctx.step(adopt, 1)


async def test_deferred_constraint_fails_a_step_after_its_attempts(on_postgres: FlowNodes) -> None:
    alpha = await on_postgres.start("alpha", adopt_in_steps)
    assert await alpha.run(adopt_in_steps) == ["ForeignKeyViolation"] * 2
    assert len(tried) == 2 * SOON.max_attempts + 1
    assert await alpha.rows("SELECT id FROM child") == [(1,)]


async def test_flow_that_broke_a_constraint_can_be_tried_again(on_postgres: FlowNodes) -> None:
    alpha, handle = await on_postgres.begin(adopt_without_care)
    view = await alpha.until(handle.id, FlowStatus.PARKED)
    assert "ForeignKeyViolation" in str(view.error)
    async with alpha.station.mail.transaction() as tx:
        await tx.execute("INSERT INTO parent VALUES (1)")
    await alpha.flows.admin.retry(handle.id)
    await alpha.result(handle.id)
    assert await alpha.rows("SELECT id FROM child") == [(1,)]


async def post_twice(tx: Transaction = INJECTED) -> None:
    tx.send("orders", b"one", to="alpha", idempotency_key="k")
    tx.send("orders", b"another", to="alpha", idempotency_key="k")


@flow
async def post_in_conflict(ctx: FlowContext) -> str:
    try:
        await ctx.step(post_twice)
    except IdempotencyConflictError as error:
        return type(error).__name__
    return "nothing"


async def test_idempotency_conflict_of_sends_fails_step(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", post_in_conflict)
    assert await alpha.run(post_in_conflict) == "IdempotencyConflictError"


async def undo_everything(tx: Transaction = INJECTED) -> None:
    await tx.execute("CREATE TABLE things (id INTEGER UNIQUE ON CONFLICT ROLLBACK)")
    await tx.execute("INSERT INTO things VALUES (1)")
    try:
        await tx.execute("INSERT INTO things VALUES (1)")
    except Exception:
        pass


@flow
async def undo_in_step(ctx: FlowContext) -> str:
    try:
        await ctx.step(undo_everything)
    except UsageError as error:
        return str(error)
    return "nothing"


async def test_statement_that_undoes_the_commit_fails_its_step(on_sqlite: FlowNodes) -> None:
    alpha = await on_sqlite.start("alpha", undo_in_step)
    assert "has rolled" in await alpha.run(undo_in_step)
