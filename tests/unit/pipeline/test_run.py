"""`run`: one call for every job, with connectors made from the job alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import postroad.pipeline
from postroad.core.errors import ConfigError, StoreLockedError, UsageError
from postroad.durable import MemoryStore, SqliteStore
from postroad.pipeline import (
    Job,
    JobProgress,
    Local,
    MemoryInput,
    MemoryOutput,
    Segment,
    Spark,
    TaskCounts,
    new_job,
    run,
)
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.progress import ProgressSampler
from postroad.pipeline.spark import session
from postroad.pipeline.spark.config import configuration, local_master


def double(segment: Segment) -> Segment:
    return {"n": 2 * int(segment["n"])}


def memory_job() -> Job:
    return (
        new_job("doubling")
        .input("in", connector="memory", retry={"attempts": 2, "first_s": 0.001})
        .function("double", double)
        .output("out", connector="memory")
        .build()
    )


def file_job(directory: Path) -> Path:
    lines = "".join(json.dumps({"n": n}) + "\n" for n in ("1", "x", "3"))
    (directory / "in.jsonl").write_text(lines)
    path = directory / "doubling.json"
    job = (
        new_job("doubling")
        .input(
            "in",
            connector="jsonl",
            options={"path": str(directory / "in.jsonl")},
            retry={"attempts": 1},
        )
        .function("double", double)
        .output("out", connector="jsonl", options={"path": str(directory / "out")})
        .build()
    )
    path.write_text(postroad.pipeline.job_to_json(job))
    return path


def written(directory: Path) -> list[int]:
    lines = [
        it for path in (directory / "out").glob("*.jsonl") for it in path.read_text().splitlines()
    ]
    return sorted(json.loads(line)["n"] for line in lines)


async def test_job_in_memory_gives_its_counts_and_progress() -> None:
    out, seen = MemoryOutput(), list[JobProgress]()
    result = await run(
        memory_job(),
        inputs={"in": MemoryInput([{"n": "1"}, {"n": "x"}, {"n": "3"}])},
        outputs={"out": out},
        on_progress=seen.append,
    )
    assert out.segments == [{"n": 2}, {"n": 6}]
    assert (result.delivered, result.acked, result.failed, result.retried) == (3, 2, 2, 1)
    assert (result.dead, result.restarts, result.job) == (1, 0, "doubling")
    assert (seen[-1].acked, seen[-1].dead, seen[-1].spark_ui_url) == (2, 1, None)


async def test_file_needs_nothing_else_and_is_done_once(tmp_path: Path) -> None:
    path = file_job(tmp_path)
    first = await run(path, on=Local())
    assert (first.acked, first.dead) == (2, 1)
    assert written(tmp_path) == [2, 6]
    assert (tmp_path / "doubling.db").exists()
    again = await run(str(path))
    assert (again.acked, again.delivered, again.dead) == (0, 0, 1)
    assert written(tmp_path) == [2, 6]


async def test_store_may_be_a_path_or_an_open_store(tmp_path: Path) -> None:
    path = file_job(tmp_path)
    assert (await run(path, store=tmp_path / "elsewhere.db")).acked == 2
    assert not (tmp_path / "doubling.db").exists()
    store = SqliteStore(tmp_path / "elsewhere.db")
    await store.open("doubling")
    assert (await run(path, store=store)).delivered == 0
    # Whoever has opened it closes it.
    assert store.is_open
    await store.close()


async def test_second_run_of_a_job_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    path = file_job(tmp_path)
    first = SqliteStore(tmp_path / "doubling.db")
    await first.open("doubling")
    with pytest.raises(StoreLockedError, match=r"job 'doubling' runs already.* process \d+"):
        await run(path)
    await first.close()
    assert (await run(path)).acked == 2


async def test_wrong_names_of_connectors_and_settings_are_told() -> None:
    with pytest.raises(ConfigError, match=r"inputs has 'inn'.* expected one of in"):
        await run(memory_job(), inputs={"inn": MemoryInput([])})
    with pytest.raises(ConfigError, match="unknown connector 'memory'"):
        await run(memory_job())
    with pytest.raises(ConfigError, match=r"unknown setting.*driver_memry"):
        Spark(driver_memry="1g").config("x")
    with pytest.raises(ConfigError, match="partitions is 0"):
        Spark(partitions=0).config("x")
    with pytest.raises(ConfigError, match=r"nothing\.toml"):
        await run("nothing.toml")


def test_spark_settings_reach_its_configuration() -> None:
    on = Spark("local[1]", conf={"spark.x": "1"}, partitions=3, driver_memory="512m")
    config = on.config("doubling")
    assert (config.master, config.partitions, config.driver_memory) == ("local[1]", 3, "512m")
    assert (config.conf, config.app_name) == ({"spark.x": "1"}, "doubling")
    assert str(Path.cwd()) in config.python_path


def test_sparks_own_setting_says_where_checkpoints_are() -> None:
    conf = {"spark.sql.streaming.checkpointLocation": "hdfs://host/checkpoints/"}
    assert Spark(conf=conf).find_checkpoint("doubling") == "hdfs://host/checkpoints/doubling.spark"
    assert Spark(conf={"spark.x": "1"}).find_checkpoint("doubling") is None
    assert Spark().find_checkpoint("doubling") is None


def queue_job() -> Job:
    return (
        new_job("relay")
        .input("in", connector="queue", options={"queue": "orders", "until_empty": True})
        .function("double", double)
        .output("out", connector="queue", options={"peer": "alpha", "queue": "doubled"})
        .build()
    )


async def test_queues_without_any_node_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"needs to know their node.*postroad.toml.*node="):
        await run(queue_job())
    with pytest.raises(ConfigError, match="expected the path of a file, or a NodeConfig"):
        await run(queue_job(), config=3)


async def test_account_of_a_job_with_queues_is_in_the_store_of_the_node() -> None:
    class FakeNode:
        mail = None

    with pytest.raises(UsageError, match="leave out store="):
        await run(queue_job(), node=FakeNode(), store=MemoryStore())  # type: ignore[arg-type]


async def test_cancelled_run_leaves_a_store_that_goes_on(tmp_path: Path) -> None:
    path = file_job(tmp_path)
    running = asyncio.create_task(run(path))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await run(path)).dead == 1
    assert written(tmp_path) == [2, 6]


def pair_of(key: int, segments: list[Segment]) -> Segment:
    return {"key": key, "sum": sum(it["n"] for it in segments)}


def refuse_four(segment: Segment) -> Segment:
    if segment["n"] == 4:
        raise ValueError("four")
    return {"n": segment["n"], "key": segment["n"] % 3}


def counted(counts: dict[str, TaskCounts]) -> dict[str, tuple[int, int]]:
    assert all(it.seconds > 0 for it in counts.values())
    return {task: (it.processed, it.failed) for task, it in counts.items()}


async def test_each_task_is_counted_segment_by_segment() -> None:
    inputs = {"in": MemoryInput([{"n": "1"}, {"n": "x"}, {"n": "3"}])}
    result = await run(memory_job(), inputs=inputs, outputs={"out": MemoryOutput()})
    # The one that fails is tried twice.
    assert counted(result.tasks) == {"in": (4, 0), "double": (4, 2), "out": (2, 0)}


async def test_tasks_before_and_behind_a_shuffle_are_counted_once_each() -> None:
    job = (
        new_job("shuffled")
        .input("in", connector="memory", retry={"attempts": 1})
        .function("first", refuse_four)
        .function("second", double, group_by="key")
        .function("third", double, group_by="n")
        .output("out", connector="memory")
        .build()
    )
    inputs = {"in": MemoryInput([{"n": n} for n in range(10)])}
    result = await run(job, inputs=inputs, outputs={"out": MemoryOutput()})
    done = dict.fromkeys(("second", "third", "out"), (9, 0))
    assert counted(result.tasks) == {"in": (10, 0), "first": (10, 1), **done}


async def test_function_of_groups_counts_the_segments_of_its_groups() -> None:
    job = (
        new_job("groups")
        .input("in", connector="memory", retry={"attempts": 1})
        .function("first", refuse_four)
        .function("pairs", pair_of, kind="group", group_by="key")
        .output("out", connector="memory")
        .build()
    )
    inputs = {"in": MemoryInput([{"n": n} for n in range(10)])}
    result = await run(job, inputs=inputs, outputs={"out": MemoryOutput()})
    assert counted(result.tasks)["pairs"] == (9, 0)


async def test_task_counts_of_batches_add_up_to_rates_and_latency() -> None:
    job, store = memory_job(), MemoryStore()
    await store.open("doubling")
    source, target = MemoryInput([{"n": "1"}] * 5), MemoryOutput()
    coordinator = JobCoordinator(CompiledJob(job), store, {"in": source}, {"out": target})
    await coordinator.open()
    sampler = ProgressSampler("doubling", 1, coordinator)
    for number in (1, 2):
        deliveries = await coordinator.next_deliveries()
        counts = {"double": TaskCounts(processed=4, failed=1, seconds=2.0)}
        await coordinator.commit_batch("r", number, BatchResult(deliveries, tasks=counts))
    assert coordinator.counts.tasks == {"double": TaskCounts(8, 2, 4.0)}
    progress = (await sampler.look()).tasks["double"]
    assert (progress.processed, progress.failed, progress.latency_s) == (8, 2, 0.5)
    assert progress.per_s > 0
    # Rates are of what happened since the last look.
    assert (await sampler.look()).tasks["double"].per_s == 0
    await coordinator.close()
    await store.close()


def test_what_is_internal_is_not_exported() -> None:
    internal = {"JobCoordinator", "JobStore", "ProgressSampler", "StoredRoot", "read_job_status"}
    assert internal.isdisjoint(postroad.pipeline.__all__)
    assert {"run", "Local", "Spark", "JobResult", "JobCounters", "JobStatus", "JobProgress"} <= {
        *postroad.pipeline.__all__
    }


def test_what_spark_submit_was_told_counts_unless_the_program_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"spark.master": "spark://h:7077", "spark.app.name": "a.py", "spark.executor.cores": "2"}
    monkeypatch.setattr(session, "submitted_properties", lambda: dict(told))
    config = Spark().config("job")
    assert (config.master, config.app_name) == ("spark://h:7077", "a.py")
    properties = configuration(config)
    assert (properties["spark.master"], properties["spark.executor.cores"]) == (config.master, "2")
    config = Spark("local[1]", conf={"spark.executor.cores": "3"}, app_name="own").config("job")
    properties = configuration(config)
    assert (properties["spark.master"], properties["spark.executor.cores"]) == ("local[1]", "3")
    assert properties["spark.app.name"] == "own"


def test_without_spark_submit_a_job_has_its_name_and_all_cores() -> None:
    config = Spark().config("job")
    assert (config.master, config.app_name, config.conf) == (local_master(), "job", {})
