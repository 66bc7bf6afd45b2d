"""Tables of Delta Lake and Iceberg, by their own libraries: one commit a batch, nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import LocalRunner, MemoryInput, OutputConnector, Segment, new_job
from postroad.pipeline.connectors import Committable, UnwritableSegmentsError
from postroad.pipeline.connectors.files.lakehouse import DeltaOutput, IcebergOutput
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.committer import writer_id
from postroad.pipeline.coordinator.coordinator import JobCoordinator

JOB = new_job("job").input("in", connector="memory").output("out", connector="memory").build()


class LakehouseTable(Protocol):
    """A table as others see it."""

    def output(self) -> OutputConnector: ...

    def rows(self) -> list[Segment]: ...

    def commits(self) -> int: ...


class DeltaDirectory:
    def __init__(self, tmp_path: Path) -> None:
        self._path = str(tmp_path / "table")

    def output(self) -> OutputConnector:
        return DeltaOutput(self._path, {"n": "int64", "text": "string"})

    def _open(self) -> Any:
        deltalake = pytest.importorskip("deltalake")
        return deltalake.DeltaTable(self._path)

    def rows(self) -> list[Segment]:
        return self._open().to_pyarrow_table().to_pylist()  # type: ignore[no-any-return]

    def commits(self) -> int:
        return int(self._open().version())


class IcebergWarehouse:
    def __init__(self, tmp_path: Path) -> None:
        catalog = pytest.importorskip("pyiceberg.catalog")
        from pyiceberg.schema import Schema
        from pyiceberg.types import LongType, NestedField, StringType

        uri = f"sqlite:///{tmp_path}/catalog.db"
        self._properties = {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/house"}
        self._catalog = catalog.load_catalog("default", **self._properties)
        self._catalog.create_namespace("sales")
        fields = NestedField(1, "n", LongType()), NestedField(2, "text", StringType())
        self._catalog.create_table("sales.orders", Schema(*fields))

    def output(self) -> OutputConnector:
        return IcebergOutput("sales.orders", self._properties)

    def rows(self) -> list[Segment]:
        return self._catalog.load_table("sales.orders").scan().to_arrow().to_pylist()  # type: ignore[no-any-return]

    def commits(self) -> int:
        return len(self._catalog.load_table("sales.orders").snapshots())


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakehouseTable:
    pytest.importorskip("deltalake" if request.param == "delta" else "pyiceberg")
    return DeltaDirectory(tmp_path) if request.param == "delta" else IcebergWarehouse(tmp_path)


def stage(output: OutputConnector, part: str, segments: Sequence[Segment]) -> Committable:
    writer = output.create_writer(writer_id("job", part, "out"))
    writer.write(range(len(segments)), segments)
    staged = writer.prepare_commit()
    assert staged is not None
    return staged


def coordinator_of(store: MemoryStore, output: OutputConnector) -> JobCoordinator:
    runner = LocalRunner(JOB, {"in": MemoryInput([])}, {"out": output}, store)
    return runner.coordinator


async def test_parts_of_a_batch_are_one_commit_of_the_table(table: LakehouseTable) -> None:
    output, store = table.output(), MemoryStore()
    await store.open("job")
    coordinator = coordinator_of(store, output)
    await coordinator.open()
    before = table.commits()
    parts = [("out", stage(output, str(n), [{"n": n, "text": str(n)}])) for n in range(3)]
    await coordinator.commit_batch("run", 1, BatchResult([], staged=parts))
    assert table.commits() == before + 1
    assert sorted(row["n"] for row in table.rows()) == [0, 1, 2]
    await coordinator.close()
    await store.close()


async def test_crash_after_the_commit_of_the_table_appends_nothing_twice(
    table: LakehouseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, output = MemoryDisk(), table.output()
    store = MemoryStore(disk)
    await store.open("job")
    coordinator = coordinator_of(store, output)
    await coordinator.open()
    commit_together = output.commit_together

    async def crash(application: str, pending: Any) -> None:
        await commit_together(application, pending)
        raise OSError("the process dies here")

    monkeypatch.setattr(output, "commit_together", crash)
    parts = [("out", stage(output, str(n), [{"n": n}])) for n in range(2)]
    await coordinator.commit_batch("run", 1, BatchResult([], staged=parts))
    await coordinator.close()
    await store.close()

    again, store = table.output(), MemoryStore(disk)
    await store.open("job")
    coordinator = coordinator_of(store, again)
    await coordinator.open()
    assert (await coordinator.status()).unpublished == 0
    part = ("out", stage(again, "3", [{"n": 3}]))
    await coordinator.commit_batch("run", 2, BatchResult([], staged=[part]))
    assert sorted(row["n"] for row in table.rows()) == [0, 1, 3]
    await coordinator.close()
    await store.close()


async def test_job_of_another_store_is_another_application(table: LakehouseTable) -> None:
    for start in (0, 5):
        inputs = {"in": MemoryInput([{"n": n} for n in range(start, start + 5)])}
        await LocalRunner(JOB, inputs, {"out": table.output()}, MemoryStore()).run()
    assert sorted(row["n"] for row in table.rows()) == list(range(10))


async def test_segment_of_another_type_is_refused(table: LakehouseTable) -> None:
    output = table.output()
    await output.open("job+out+", [])
    writer = output.create_writer("job+out+1")
    with pytest.raises(UnwritableSegmentsError) as refused:
        writer.write([1, 2, 3], [{"n": 1}, {"n": "many"}, {"n": 2, "other": 1}])
    assert refused.value.reasons.keys() == {2, 3}
    writer.abort()


async def test_table_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    with pytest.raises(ConfigError, match="there is no Delta table"):
        await DeltaOutput(str(tmp_path)).open("job", [])


async def test_files_that_killed_attempts_staged_are_removed_while_the_job_runs(
    table: LakehouseTable,
) -> None:
    output = table.output()
    await output.open("job+out+", [])
    left, kept = stage(output, "1", [{"n": 1}]), stage(output, "2", [{"n": 2}])
    await output.remove_abandoned("job+out+", [kept], 0.0)
    await output.remove_abandoned("job+out+", [kept], float(1 << 40))
    with pytest.raises(OSError, match="is missing"):
        await output.commit_together("app", [(1, left)])
    await output.commit_together("app", [(2, kept)])
    assert [row["n"] for row in table.rows()] == [2]
