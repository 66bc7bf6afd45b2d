"""Files that arrive late, grow, shrink or are half written."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from postroad.core.errors import UsageError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import InputConnector, LocalRunner, MemoryOutput, new_job
from postroad.pipeline.connectors import CsvInput, JsonLinesInput, ParquetInput, Position
from postroad.pipeline.connectors.files.catalog import FileSet

JOB = new_job("files").input("in", connector="jsonl").output("out", connector="memory").build()
DAYS_S = 7 * 86_400


def write_lines(path: Path, numbers: Sequence[int]) -> None:
    path.write_text("".join(f'{{"n": {n}}}\n' for n in numbers))


def write_csv(path: Path, numbers: Sequence[int]) -> None:
    path.write_text("n\n" + "".join(f"{n}\n" for n in numbers))


def write_parquet(path: Path, numbers: Sequence[int]) -> None:
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path)


WAYS: dict[str, tuple[Callable[..., InputConnector], Callable[[Path, Sequence[int]], None]]] = {
    "jsonl": (JsonLinesInput, write_lines),
    "csv": (lambda path: CsvInput(path, columns={"n": "int"}), write_csv),
    "parquet": (ParquetInput, write_parquet),
}


async def run_job(connector: InputConnector, disk: MemoryDisk) -> list[int]:
    """The numbers that a run of the job gets, as another process would."""
    output = MemoryOutput()
    runner = LocalRunner(JOB, {"in": connector}, {"out": output}, MemoryStore(disk))
    await runner.run()
    assert (await dead(disk)) == 0
    return sorted(segment["n"] for segment in output.segments)


async def dead(disk: MemoryDisk) -> int:
    store = MemoryStore(disk)
    await store.open("files")
    try:
        return int((await store.read(count_dead))[0][0])
    finally:
        await store.close()


def count_dead(database: Any) -> Any:
    return database.execute("SELECT COUNT(*) FROM postroad_pipeline_roots WHERE state = 'dead'")


@pytest.mark.parametrize("way", WAYS)
async def test_file_that_arrives_later_with_a_smaller_name_is_read_once(
    way: str, tmp_path: Path
) -> None:
    make, write = WAYS[way]
    disk, pattern = MemoryDisk(), str(tmp_path / f"*.{way}")
    write(tmp_path / f"m.{way}", range(5))
    assert await run_job(make(pattern), disk) == list(range(5))
    write(tmp_path / f"a.{way}", range(5, 8))
    write(tmp_path / f"z.{way}", range(8, 10))
    assert await run_job(make(pattern), disk) == [5, 6, 7, 8, 9]
    assert await run_job(make(pattern), disk) == []


@pytest.mark.parametrize("way", WAYS)
async def test_file_with_a_smaller_name_is_found_while_the_job_runs(
    way: str, tmp_path: Path
) -> None:
    make, write = WAYS[way]
    connector = make(str(tmp_path / f"*.{way}"))
    write(tmp_path / f"m.{way}", range(5))
    splits = await connector.plan_splits(None, 100)
    write(tmp_path / f"a.{way}", range(5, 8))
    (late,) = await connector.plan_splits(splits[-1].next_position, 100)
    assert late.position["file"].endswith(f"a.{way}")


async def test_every_file_may_grow(tmp_path: Path) -> None:
    disk, pattern = MemoryDisk(), str(tmp_path / "*.jsonl")
    for name in "abc":
        write_lines(tmp_path / f"{name}.jsonl", [ord(name)])
    assert await run_job(JsonLinesInput(pattern), disk) == [97, 98, 99]
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"n": 1}\n')
    assert await run_job(JsonLinesInput(pattern), disk) == [1]


@pytest.mark.parametrize("way", WAYS)
async def test_file_that_changes_after_it_was_read_is_told_once(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, write = WAYS[way]
    path = tmp_path / f"a.{way}"
    connector = make(str(path))
    write(path, range(100))
    (split,) = await connector.plan_splits(None, 1000)
    position = (await connector.plan_splits(split.next_position, 1000)) or split.next_position
    write(path, range(1))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await connector.plan_splits(position, 1000) == []  # type: ignore[arg-type]
    assert [r.message for r in caplog.records if "became shorter after" in r.message] != []
    assert len(caplog.records) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_splits_that_were_not_recorded_are_planned_again(way: str, tmp_path: Path) -> None:
    make, write = WAYS[way]
    connector = make(str(tmp_path / f"*.{way}"))
    for name in "abcd":
        write(tmp_path / f"{name}.{way}", range(10))
    first = await connector.plan_splits(None, 15)
    assert await connector.plan_splits(None, 15) == first
    after = first[0].next_position
    second = await connector.plan_splits(after, 10)
    assert [it.position for it in await connector.plan_splits(after, 10)] == [
        it.position for it in second
    ]
    with pytest.raises(UsageError, match="is unknown to this input"):
        await make(str(tmp_path / f"*.{way}")).plan_splits(after, 10)


async def test_position_of_the_last_version_is_taken_over(tmp_path: Path) -> None:
    for name in "abc":
        write_lines(tmp_path / f"{name}.jsonl", range(3))
    connector = JsonLinesInput(str(tmp_path / "*.jsonl"))
    old: Position = {"file": str(tmp_path / "b.jsonl"), "start": 9}
    splits = await connector.plan_splits(old, 100)
    assert [(Path(it.position["file"]).name, it.position["start"]) for it in splits] == [
        ("b.jsonl", 9),
        ("c.jsonl", 0),
    ]
    restored = JsonLinesInput(str(tmp_path / "*.jsonl"))
    restored.restore({key: value for it in splits for key, value in it.state.items()})
    write_lines(tmp_path / "aa.jsonl", range(3))
    (late,) = await restored.plan_splits(splits[-1].next_position, 100)
    assert late.position["file"].endswith("aa.jsonl")


async def test_backlog_of_many_files_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(200):
        write_lines(tmp_path / f"{n:03}.jsonl", [n])
    listings = 0
    names = FileSet.names

    def count(self: FileSet) -> list[str]:
        nonlocal listings
        listings += 1
        return names(self)

    monkeypatch.setattr(FileSet, "names", count)
    connector, after, planned = JsonLinesInput(str(tmp_path / "*.jsonl")), None, 0
    while splits := await connector.plan_splits(after, 1):
        after = splits[-1].next_position
        planned += len(splits)
    assert planned == 200
    assert listings <= 3


# Half-written ends.


async def test_last_line_that_is_half_written_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": ')
    connector = JsonLinesInput(str(path), settle_s=DAYS_S)
    connector.is_bounded = False
    (split,) = await connector.plan_splits(None, 100)
    assert split.position["stop"] == 9
    assert await connector.plan_splits(split.next_position, 100) == []
    with path.open("a") as file:
        file.write("2}\n")
    (rest,) = await connector.plan_splits(split.next_position, 100)
    ((_, _, raws),) = connector.read(rest.position)
    assert raws == [b'{"n": 2}']


@pytest.mark.parametrize("text", ['n,t\n1,"a\n2', "n,t\n1", "n,"])
async def test_last_csv_record_that_is_half_written_waits_for_its_end(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    connector = CsvInput(str(path), settle_s=DAYS_S)
    connector.is_bounded = False
    assert await connector.plan_splits(None, 100) == []


@pytest.mark.parametrize("way", ["jsonl", "csv"])
async def test_bounded_input_reads_a_last_line_without_end_once_its_file_is_settled(
    way: str, tmp_path: Path
) -> None:
    make, write = WAYS[way]
    path = tmp_path / f"a.{way}"
    write(path, range(3))
    path.write_text(path.read_text().rstrip("\n"))
    connector = make(str(path))
    assert isinstance(connector, JsonLinesInput)
    connector._settle_s = 0.1
    assert await run_job(connector, MemoryDisk()) == [0, 1, 2]


async def test_old_file_without_a_last_line_end_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}')
    os.utime(path, (0, 0))
    (split,) = await JsonLinesInput(str(path), settle_s=60).plan_splits(None, 100)
    assert split.estimated_segments == 1
