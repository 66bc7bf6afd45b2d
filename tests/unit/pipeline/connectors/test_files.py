"""Files by how their names end, and media by their names in jobs."""

from __future__ import annotations

import glob
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from postroad.core.errors import ConfigError
from postroad.durable import MemoryStore
from postroad.pipeline import (
    JsonLinesInput,
    JsonLinesOutput,
    LocalRunner,
    MemoryInput,
    Task,
    TaskType,
    make_input,
    make_output,
    new_job,
)
from postroad.pipeline.connectors import (
    CsvInput,
    ParquetInput,
    ParquetOutput,
    SqlInput,
    SqlOutput,
    files_input,
)
from postroad.pipeline.connectors.files.catalog import FileSet
from postroad.pipeline.connectors.options import ClientTlsFiles
from postroad.pipeline.coordinator import committer
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.committer import writer_id, writer_id_prefix


def test_the_format() -> None:
    for path, options, expected in (
        ("in/*.jsonl", {}, JsonLinesInput),
        ("in.ndjson", {}, JsonLinesInput),
        ("in.CSV", {}, CsvInput),
        ("in.tsv", {}, CsvInput),
        ("in/*.parquet", {"split_segments": 5}, ParquetInput),
        ("in.txt", {"format": "csv", "delimiter": ";"}, CsvInput),
        ("in.csv", {"format": "jsonl"}, JsonLinesInput),
    ):
        task = Task(
            name="in", type=TaskType.INPUT, connector="files", options={"path": path} | options
        )
        assert type(make_input(task)) is expected, (path, options, expected)


def test_a_format_that_is_not_known() -> None:
    for options in ({"path": "in.txt"}, {"path": "in.csv", "format": "excel"}):
        with pytest.raises(ConfigError, match="'format'"):
            files_input(**options)


def test_options_of_another_format() -> None:
    options = {"path": "in.jsonl", "delimiter": ";"}
    task = Task(name="in", type=TaskType.INPUT, connector="files", options=options)
    with pytest.raises(ConfigError, match=r"options of 'in' do not suit 'files'.*delimiter"):
        make_input(task)


async def test_values_with_tabs_between(tmp_path: Any) -> None:
    (tmp_path / "in.tsv").write_text("a\tb\n1,5\t2\n")
    connector = files_input(str(tmp_path / "in.tsv"))
    (only,) = await connector.plan_splits(None, 10)
    ((_, _, raws),) = connector.read(only.position)
    assert [connector.decode(it) for it in raws] == [{"a": "1,5", "b": "2"}]


def test_media_of_jobs() -> None:
    table = {"database": "x.db", "table": "t"}
    task = Task(
        name="in", type=TaskType.INPUT, connector="sql", options=table | {"key": "k", "reader": "r"}
    )
    assert type(make_input(task)) is SqlInput
    task = Task(name="out", type=TaskType.OUTPUT, connector="sql", options=table)
    assert type(make_output(task)) is SqlOutput
    task = Task(name="out", type=TaskType.OUTPUT, connector="parquet", options={"path": "out"})
    assert type(make_output(task)) is ParquetOutput


@pytest.mark.parametrize(
    "pattern",
    [
        "in/*.jsonl",
        "./in/*.jsonl",
        "in/../in/a.jsonl",
        "../home/in/*",
        "**/*.jsonl",
        "*.jsonl",
        "no/*",
    ],
)
@pytest.mark.parametrize("is_absolute", [False, True])
def test_names_of_files_are_as_the_pattern_has_them(
    pattern: str, is_absolute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "in").mkdir(parents=True)
    for name in ("in/b.jsonl", "in/a.jsonl", "c.jsonl"):
        (home / name).write_text(name)
    monkeypatch.chdir(home)
    pattern = f"{home}/{pattern}" if is_absolute else pattern
    files, expected = FileSet(pattern), sorted(glob.glob(pattern, recursive=True))
    monkeypatch.chdir(tmp_path)
    assert files.names() == expected
    texts = [Path(files.locate(it)).read_text() for it in expected]
    assert [Path(it).name for it in texts] == [Path(it).name for it in expected]


def test_it_is_told_where_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"there is no file 'in/\*' in {tmp_path}"):
        FileSet("in/*").check()


def test_files_for_tls_are_those_of_the_process_that_named_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    tls = ClientTlsFiles("ca.pem", "/etc/cert.pem", "../key.pem")
    monkeypatch.chdir(tmp_path)
    tls = pickle.loads(pickle.dumps(tls))
    assert tls == ClientTlsFiles(f"{home}/ca.pem", "/etc/cert.pem", f"{tmp_path}/key.pem")
    assert not ClientTlsFiles().is_given


async def test_outputs_in_one_directory_leave_each_other_alone(tmp_path: Path) -> None:
    first, second = JsonLinesOutput(str(tmp_path)), JsonLinesOutput(str(tmp_path))
    stager = first.create_writer(writer_id("job", "part", "a"))
    stager.write([1], [{"n": 1}])
    staged = stager.prepare_commit()
    assert staged is not None
    # As after a crash, when what nobody wants is removed.
    await second.open(writer_id_prefix("job", "b"), [])
    await first.open(writer_id_prefix("job", "a"), [staged])
    await first.commit(staged)
    assert read_all(tmp_path) == [b'{"n":1}\n']


async def test_staged_files_of_killed_attempts_are_removed_while_the_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was staged before the last batch but one was settled belongs to nobody."""
    monkeypatch.setattr(committer, "_CLEANING_INTERVAL_S", 0.0)
    monkeypatch.setattr(committer, "_CLOCKS_DIFFER_S", 0.0)
    output, store = JsonLinesOutput(str(tmp_path)), MemoryStore()
    job = new_job("job").input("in", connector="memory").output("out", connector="memory").build()
    coordinator = LocalRunner(job, {"in": MemoryInput([])}, {"out": output}, store).coordinator
    await store.open("job")
    await coordinator.open()
    killed = tmp_path / "_staging" / writer_id("job", "killed.jsonl", "out")
    foreign = tmp_path / "_staging" / writer_id("other", "killed.jsonl", "out")
    for path in (killed, foreign):
        path.write_bytes(b"")
        os.utime(path, (1, 1))
    await coordinator.commit_batch("run", 1, BatchResult([]))
    assert killed.exists(), "it may belong to a batch that is not settled"
    running = tmp_path / "_staging" / writer_id("job", "running.jsonl", "out")
    running.write_bytes(b"")
    os.utime(running, (time.time() + 60, time.time() + 60))
    await coordinator.commit_batch("run", 2, BatchResult([]))
    assert not killed.exists()
    assert foreign.exists()
    assert running.exists()
    await coordinator.close()
    await store.close()


async def test_what_a_host_with_a_slow_clock_has_just_staged_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "_CLEANING_INTERVAL_S", 0.0)
    output, store = JsonLinesOutput(str(tmp_path)), MemoryStore()
    job = new_job("job").input("in", connector="memory").output("out", connector="memory").build()
    coordinator = LocalRunner(job, {"in": MemoryInput([])}, {"out": output}, store).coordinator
    await store.open("job")
    await coordinator.open()
    stager = output.create_writer(writer_id("job", "part", "out"))
    stager.write([1], [{"n": 1}])
    staged = stager.prepare_commit()
    assert staged is not None
    hour_ago = time.time() - 3_600
    os.utime(tmp_path / "_staging" / staged["file"], (hour_ago, hour_ago))
    for batch in (1, 2, 3):
        await coordinator.commit_batch("run", batch, BatchResult([]))
    await coordinator.commit_batch("run", 4, BatchResult([], staged=[("out", staged)]))
    assert read_all(tmp_path) == [b'{"n":1}\n']
    await coordinator.close()
    await store.close()


def read_all(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in directory.glob("*.jsonl")]
