"""Processes that are killed while they read and write real places lose and double nothing."""

from __future__ import annotations

import csv
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.contract.user_databases import database, execute, insert
from tests.support.deadlines import DEADLINE_S
from tests.support.tiers import by_tier

__all__ = ["database"]

SEGMENTS = 300
KILLS = by_tier(test=2, nightly=6)

# Says when it has begun, so that a kill comes while it is at work.
PROGRAM = """
import asyncio, sys
from postroad.durable import SqliteStore
from postroad.pipeline import LocalRunner, job_from_json, make_input, make_output

async def main():
    job = job_from_json(sys.argv[1])
    tasks = {task.name: task for task in job.catalog}
    inputs = {"in": make_input(tasks["in"])}
    outputs = {"out": make_output(tasks["out"])}
    runner = LocalRunner(job, inputs, outputs, SqliteStore(sys.argv[2]))
    print("begun", flush=True)
    await runner.run()

asyncio.run(main())
"""


def job_of(inputs: tuple[str, dict[str, Any]], outputs: tuple[str, dict[str, Any]]) -> str:
    (reads, from_), (writes, to) = inputs, outputs
    job = {
        "name": "job",
        "workflow": [["in", "out"]],
        "catalog": [
            {"name": "in", "type": "input", "connector": reads, "options": from_, "batch_size": 10},
            {"name": "out", "type": "output", "connector": writes, "options": to},
        ],
    }
    return json.dumps(job)


def run_and_kill(job: str, store: Path) -> None:
    """Run a job, kill it now and then, and at last let it end."""
    chance = random.Random(7)
    statuses: list[int] = []
    command = [sys.executable, "-c", PROGRAM, job, str(store)]
    for kill in range(KILLS + 1):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            if kill < KILLS:
                time.sleep(chance.uniform(0.0, 0.25))
                process.send_signal(signal.SIGKILL)
            statuses.append(process.wait(DEADLINE_S))
    assert set(statuses) == {0, -signal.SIGKILL}
    assert statuses[-1] == 0


@pytest.mark.slow
def test_from_table_to_table(database: str, tmp_path: Path) -> None:
    execute(database, "CREATE TABLE numbers (n BIGINT PRIMARY KEY)")
    execute(database, "CREATE TABLE written (postroad_id BIGINT PRIMARY KEY, n BIGINT)")
    # With gaps, so that ranges are made and merged.
    numbers = [n + n // 7 for n in range(SEGMENTS)]
    insert(database, "INSERT INTO numbers VALUES (?)", [(n,) for n in numbers])
    reads = {"database": database, "table": "numbers", "key": "n", "reader": "job"}
    job = job_of(
        ("sql", reads | {"split_segments": 4}), ("sql", {"database": database, "table": "written"})
    )
    run_and_kill(job, tmp_path / "store.db")
    assert execute(database, "SELECT n FROM written ORDER BY n") == [(n,) for n in numbers]


@pytest.mark.slow
def test_from_values_to_parquet(tmp_path: Path) -> None:
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("n", "text"), *((n, f"line\n{n}") for n in range(SEGMENTS))])
    reads = {"path": str(tmp_path / "in.csv"), "columns": {"n": "int"}, "split_bytes": 60}
    writes = {"path": str(tmp_path / "out"), "schema": {"n": "int64", "text": "string"}}
    run_and_kill(job_of(("csv", reads), ("parquet", writes)), tmp_path / "store.db")
    tables = [pyarrow.parquet.read_table(it) for it in (tmp_path / "out").glob("*.parquet")]
    rows = sorted((row["n"], row["text"]) for it in tables for row in it.to_pylist())
    assert rows == [(n, f"line\n{n}") for n in range(SEGMENTS)]
    assert list((tmp_path / "out" / "_staging").iterdir()) == []
