"""States of groups are the same in every kind of store; PostgreSQL is a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from postroad.durable import MemoryDisk, MemoryStore, PostgresStore, SqliteStore, Store
from postroad.pipeline import JobBuilder, LocalRunner, MemoryInput, MemoryOutput, Segment
from tests.support.servers.postgres import fresh_database

MakeStore = Callable[[], Store]


@contextmanager
def sqlite(path: Path) -> Iterator[MakeStore]:
    yield lambda: SqliteStore(path / "store.db")


@contextmanager
def memory(path: Path) -> Iterator[MakeStore]:
    disk = MemoryDisk()
    yield lambda: MemoryStore(disk)


@contextmanager
def postgres(path: Path) -> Iterator[MakeStore]:
    with fresh_database() as dsn:
        yield lambda: PostgresStore(dsn)


def count(key: int, segments: list[Segment], state: Any) -> tuple[Segment, Any]:
    seen = (state or 0) + len(segments)
    # It is forgotten at the sixth.
    return {"key": key, "seen": seen}, None if seen == 6 else seen


JOB = (
    JobBuilder("counts")
    .input("in", connector="memory")
    .function("count", count, kind="group", group_by="key", state=True)
    .output("out", connector="memory")
    .build()
)


@pytest.mark.parametrize("kind", [sqlite, memory, postgres])
async def test_states_go_on_from_run_to_run_and_are_forgotten(kind: Any, tmp_path: Path) -> None:
    segments = [{"key": n % 600} for n in range(3_600)]
    seen = []
    with kind(tmp_path) as make_store:
        for upto in (1_200, 2_400, 3_600):
            output = MemoryOutput()
            inputs = {"in": MemoryInput(segments[:upto], 10_000)}
            await LocalRunner(JOB, inputs, {"out": output}, make_store()).run()
            assert len(output.segments) == 600
            seen.append({it["seen"] for it in output.segments})
    assert seen == [{2}, {4}, {6}]
