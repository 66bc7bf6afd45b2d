"""What a step or block did cannot be committed: it has failed, like with any other error of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from postroad.core.errors import IdempotencyConflictError, UsageError
from postroad.durable import PostgresStore, Transaction
from postroad.flows import Flow, FlowsConfig, Retry, Status, flow
from tests.support.flows.nodes import FlowNodes
from tests.support.servers.postgres import fresh_database

TABLES = (
    "CREATE TABLE parent (id BIGINT PRIMARY KEY)",
    "CREATE TABLE child (id BIGINT REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
    "CREATE TABLE tries (number BIGINT)",
)
SOON = Retry(attempts=3, first_s=0.001, max_s=0.004)

tried: list[int] = []


@pytest.fixture(autouse=True)
def _count_anew() -> None:
    tried.clear()


@pytest.fixture(params=[False, True], ids=["live", "reloaded"])
async def on_postgres(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FlowNodes]:
    """Nodes whose store checks foreign keys, unlike those in SQLite."""
    config = FlowsConfig(reload=request.param, retry_first_s=0.005, retry_max_s=0.02)
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


async def create(tx: Transaction) -> None:
    for statement in TABLES:
        await tx.execute(statement)


async def adopt(number: int, tx: Transaction) -> None:
    tried.append(number)
    await tx.execute(f"INSERT INTO child VALUES ({number})")


def adopt_plainly(number: int, connection: Any) -> None:
    tried.append(number)
    connection.execute(f"INSERT INTO child VALUES ({number})")


async def bear(number: int, tx: Transaction) -> None:
    await tx.execute(f"INSERT INTO parent VALUES ({number})")


@flow
async def adopt_in_steps(flow: Flow) -> list[str]:
    await flow.step(create)
    seen = []
    for function in (adopt, adopt_plainly):
        try:
            await flow.step(function, 1, retry=SOON)
        except psycopg.errors.ForeignKeyViolation as error:
            seen.append(type(error).__name__)
    await flow.step(bear, 1)
    await flow.step(adopt, 1)
    return seen


@flow
async def adopt_in_block(flow: Flow) -> list[str]:
    await flow.step(create)
    seen = []
    try:
        async with flow.transaction() as tx:
            await tx.execute("INSERT INTO tries VALUES (1)")
            await tx.execute("INSERT INTO child VALUES (1)")
    except psycopg.errors.ForeignKeyViolation as error:
        seen.append(type(error).__name__)
    async with flow.transaction() as tx:
        await tx.execute("INSERT INTO child VALUES (1)")
        await tx.execute("INSERT INTO parent VALUES (1)")
    await flow.signal("go", bool)
    return seen


@flow
async def adopt_without_care(flow: Flow, way: str) -> None:
    await flow.step(create)
    if way == "step":
        await flow.step(adopt, 1)
    else:
        async with flow.transaction() as tx:
            await tx.execute("INSERT INTO child VALUES (1)")


async def test_deferred_constraint_fails_a_step_after_its_attempts(on_postgres: FlowNodes) -> None:
    alpha = await on_postgres.start("alpha", adopt_in_steps)
    assert await alpha.run(adopt_in_steps) == ["ForeignKeyViolation"] * 2
    assert len(tried) == 2 * SOON.attempts + 1
    assert await alpha.rows("SELECT id FROM child") == [(1,)]


async def test_deferred_constraint_fails_a_block(on_postgres: FlowNodes) -> None:
    alpha, handle = await on_postgres.begin(adopt_in_block)
    await alpha.until_steps(handle.id, 3)
    await alpha.restart()
    await alpha.flows.signal(handle.id, "go", True)
    assert await alpha.result(handle.id) == ["ForeignKeyViolation"]
    assert await alpha.rows("SELECT id FROM child") == [(1,)]
    assert await alpha.rows("SELECT * FROM tries") == []


@pytest.mark.parametrize("where", ["step", "block"])
async def test_flow_that_broke_a_constraint_can_be_tried_again(
    on_postgres: FlowNodes, where: str
) -> None:
    alpha, handle = await on_postgres.begin(adopt_without_care, where)
    view = await alpha.until(handle.id, Status.PARKED)
    assert "ForeignKeyViolation" in str(view.error)
    async with alpha.station.mail.transaction() as tx:
        await tx.execute("INSERT INTO parent VALUES (1)")
    await alpha.flows.retry(handle.id)
    await alpha.result(handle.id)
    assert await alpha.rows("SELECT id FROM child") == [(1,)]


async def post_twice(tx: Transaction) -> None:
    tx.post("alpha", "orders", b"one", idempotency_key="k")
    tx.post("alpha", "orders", b"another", idempotency_key="k")


@flow
async def post_in_conflict(flow: Flow) -> str:
    try:
        await flow.step(post_twice)
    except IdempotencyConflictError as error:
        return type(error).__name__
    return "nothing"


async def test_conflict_of_posts_fails_a_step(nodes: FlowNodes) -> None:
    alpha = await nodes.start("alpha", post_in_conflict)
    assert await alpha.run(post_in_conflict) == "IdempotencyConflictError"


async def undo_everything(tx: Transaction) -> None:
    await tx.execute("CREATE TABLE things (id INTEGER UNIQUE ON CONFLICT ROLLBACK)")
    await tx.execute("INSERT INTO things VALUES (1)")
    try:
        await tx.execute("INSERT INTO things VALUES (1)")
    except Exception:
        pass


@flow
async def undo_in_block(flow: Flow) -> str:
    try:
        async with flow.transaction() as tx:
            await undo_everything(tx)  # type: ignore[arg-type]  # It has the same method.
    except UsageError as error:
        return str(error)
    return "nothing"


async def test_statement_that_undoes_the_commit_fails_its_block(on_sqlite: FlowNodes) -> None:
    alpha = await on_sqlite.start("alpha", undo_in_block)
    assert "has undone" in await alpha.run(undo_in_block)
