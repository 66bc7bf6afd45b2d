"""What a worker of Spark checks before it runs a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline import new_job
from postroad.pipeline.spark.checkpoint import Checkpoint
from postroad.pipeline.spark.coordinator_client import CoordinatorEndpoint
from postroad.pipeline.spark.worker_context import WorkerContext


class Told:
    """A coordinator that is told of errors."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def report_fatal_error(self, reason: str) -> None:
        self.reasons.append(reason)


def make_context() -> WorkerContext:
    job = new_job("shared").input("in", connector="memory").output("out", connector="memory")
    endpoint = CoordinatorEndpoint("127.0.0.1:1", "token")
    return WorkerContext(job.build(), {}, {}, endpoint, "run", 4 << 30)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_machine_that_does_not_see_where_spark_writes_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """What it writes would be lost, and nobody would know."""
    told = Told()
    monkeypatch.setattr(WorkerContext, "coordinator", told)
    context = make_context()
    context.shared_file = Checkpoint(f"{scheme}{tmp_path}/elsewhere").marker
    with pytest.raises(ConfigError, match=r"does not see .*/elsewhere/postroad\.json"):
        context.program  # noqa: B018 - it is made when it is asked for
    (reason,) = told.reasons
    assert "directory that all machines share" in reason


def test_checkpoint_of_no_disk_is_seen_by_spark_alone() -> None:
    assert Checkpoint("hdfs://host/path").marker is None


def test_worker_that_sees_it_runs_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of a worker, which ends with its memory; these tests go on.
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.open("shared", "store")
    context = make_context()
    context.shared_file = checkpoint.marker
    assert context.program.job.name == "shared"
