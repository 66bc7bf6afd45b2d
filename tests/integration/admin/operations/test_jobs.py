"""Operations on jobs of pipelines, which run in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroad.admin.errors import NotFound
from postroad.admin.pipeline_runs import find_progress, stop_job, submit_job
from postroad.core.errors import ConfigError
from tests.support.pipeline.clearing_job import JOB, SLOW

from .operating import Operator, operated

DEAD = """
def parse(segment):
    raise ValueError(segment["amount"])
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clearing_functions.py").write_text(SLOW)
    (tmp_path / "payments").mkdir()
    write_segments(tmp_path, 2_000)
    path = tmp_path / "clearing.toml"
    path.write_text(JOB.replace("retry =", "batch_size = 50\nretry ="))
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)


def write_segments(directory: Path, count: int) -> None:
    lines = "\n".join(json.dumps({"amount": str(n)}) for n in range(count))
    (directory / "payments" / "a.jsonl").write_text(lines)


@pytest.fixture
async def operator(tmp_path: Path, job: Path) -> AsyncIterator[Operator]:
    async with operated(tmp_path, pipeline={"jobs": [{"path": str(job), "start": False}]}) as it:
        yield it
    if find_progress(job) is not None:
        stop_job(job)


async def test_a_job_that_never_ran(operator: Operator, job: Path) -> None:
    (found,) = await operator.do("job.ls")
    assert (found.name, found.path, found.state) == ("clearing", str(job), "stopped")
    assert (found.progress, found.problem) == (None, None)
    # Looking does not make it look as if it had run.
    assert not job.with_name("clearing.db").exists()
    graph = await operator.do("job.explain", job="clearing")
    assert graph.mermaid.startswith("flowchart LR")
    assert {it.type for it in graph.tasks} == {"input", "function", "output"}
    assert {it.source for it in graph.edges} <= {it.name for it in graph.tasks}
    with pytest.raises(NotFound, match="no job 'cleering'; did you mean 'clearing'"):
        await operator.do("job.show", job="cleering")
    with pytest.raises(ConfigError, match="does not run"):
        await operator.do("job.stop", job="clearing")
    nodes = {it.id for it in (await operator.do("cluster.map")).nodes}
    assert "pipeline:clearing" in nodes
    (hit,) = await operator.do("search.find", text="clearing")
    assert (hit.kind, hit.noun) == ("job", "job")


async def test_a_job_is_submitted_watched_and_stopped(operator: Operator) -> None:
    assert (await operator.do("job.submit", job="clearing")).state == "running"
    started = await operator.until(lambda it: it.progress, "job.show", job="clearing")
    assert started.state == "running"
    assert started.progress.pid != os.getpid()
    await operator.until(lambda it: it.jobs == 1, "node.overview")
    with pytest.raises(ConfigError, match="runs already"):
        await operator.do("job.submit", job="clearing")
    stopped = await operator.do("job.stop", job="clearing")
    assert (stopped.state, stopped.progress) == ("stopped", None)
    await operator.until(lambda it: it.jobs == 0, "node.overview")


async def test_a_job_whose_process_was_killed_has_failed(operator: Operator) -> None:
    await operator.do("job.submit", job="clearing", restart=False)
    started = await operator.until(lambda it: it.progress, "job.show", job="clearing")
    os.kill(started.progress.pid, signal.SIGKILL)
    found = await operator.until(lambda it: it.state != "running", "job.show", job="clearing")
    assert found.state == "failed"
    assert "signal 9" in found.problem
    overview = await operator.until(lambda it: it.troubles, "node.overview")
    assert [it.title for it in overview.troubles] == ["job clearing has failed"]
    assert overview.jobs == 0


async def test_dead_segments_are_replayed_and_dropped(operator: Operator, job: Path) -> None:
    write(job.with_name("clearing_functions.py"), DEAD)
    write_segments(job.parent, 3)
    await operator.do("job.submit", job="clearing")
    await operator.until(lambda it: it.dead == 3, "job.show", job="clearing")
    dead = await operator.do("job.dead-letters", job="clearing")
    assert sorted(it.segment["amount"] for it in dead) == ["0", "1", "2"]
    assert all("ValueError" in it.error for it in dead)
    assert len(await operator.do("job.dead-letters", job="clearing", limit=1)) == 1
    assert (await operator.do("job.count", job="clearing")).count == 3
    assert (await operator.do("job.count", job="clearing", id=dead[0].id)).count == 1
    overview = await operator.until(lambda it: it.troubles, "node.overview")
    assert overview.troubles[0].title == "3 dead segments of job clearing"
    assert (await operator.do("job.retry", job="clearing", id=dead[0].id)).count == 1
    assert (await operator.do("job.count", job="clearing", id=dead[0].id)).count == 0
    assert (await operator.do("job.drop", job="clearing")).count == 2
    with pytest.raises(ConfigError, match="16 hexadecimal digits"):
        await operator.do("job.drop", job="clearing", id="x")


async def test_jobs_beside_the_store_are_found_while_they_run(tmp_path: Path, job: Path) -> None:
    async with operated(tmp_path) as operator:
        assert await operator.do("job.ls") == []
        await asyncio.to_thread(submit_job, job, ())
        try:
            (found,) = await operator.until(len, "job.ls")
            assert (found.name, found.state) == ("clearing", "running")
            assert (await operator.do("job.show", job="clearing")).path == str(job)
        finally:
            await asyncio.to_thread(stop_job, job)
        assert await operator.until(lambda it: not it, "job.ls") == []


async def test_a_job_with_mistakes_says_so(tmp_path: Path, job: Path) -> None:
    write(job, "name = 'clearing'\n")
    async with operated(
        tmp_path,
        pipeline={"jobs": [{"path": it, "start": False} for it in (str(job), "missing.toml")]},
    ) as operator:
        first, second = await operator.do("job.ls")
        assert (first.name, first.state) == ("clearing", "stopped")
        assert first.problem
        assert (second.name, second.problem is not None) == ("missing", True)
        overview = await operator.do("node.overview")
        assert "job missing cannot be read" in [it.title for it in overview.troubles]
