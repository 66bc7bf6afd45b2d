"""`postroad job submit`, `show` and `stop`: a job in a process of its own."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from postroad.admin.pipeline_runs import find_progress
from postroad.cli import job as job_commands
from postroad.cli.main import run
from tests.support.deadlines import DEADLINE_S
from tests.support.pipeline.clearing_job import JOB, cleared

SEGMENTS = 120
# It would take 36 seconds, unless it is told to hurry.
FUNCTIONS = """
import pathlib, time

def parse(segment):
    if not pathlib.Path("hurry").exists():
        time.sleep(0.3)
    return {"amount": int(segment["amount"])}
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clearing_functions.py").write_text(FUNCTIONS)
    (tmp_path / "payments").mkdir()
    lines = "\n".join(json.dumps({"amount": str(n)}) for n in range(SEGMENTS))
    (tmp_path / "payments" / "a.jsonl").write_text(lines)
    path = tmp_path / "clearing.toml"
    path.write_text(JOB.replace("retry =", "batch_size = 2\nretry ="))
    yield path
    if find_progress(path) is not None:
        run(["job", "stop", str(path), "--yes"])


def hurry() -> None:
    Path("hurry").touch()


def wait_until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def read_metrics(text: str) -> dict[str, float]:
    """The values of the job, without those of its tasks."""
    values, about = {}, {}
    for line in text.splitlines():
        if line.startswith("#"):
            _, what, name, rest = line.split(" ", 3)
            about[name, what] = rest
            continue
        matched = re.fullmatch(r'(\w+)\{job="clearing"(,task="\w+")?\} ([0-9.e+-]+)', line)
        assert matched is not None, line
        name, task, value = matched.groups()
        assert about[name, "TYPE"] in ("counter", "gauge")
        assert about[name, "HELP"]
        if task is None:
            values[name] = float(value)
    return values


def test_job_is_submitted_watched_stopped_and_goes_on(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def metrics() -> dict[str, float]:
        capsys.readouterr()
        assert run(["job", "show", job.name, "--metrics"]) == 0
        return read_metrics(capsys.readouterr().out)

    assert run(["job", "submit", job.name]) == 0
    assert "writes to clearing.log" in capsys.readouterr().out
    assert run(["job", "submit", job.name]) == 1
    assert "runs already, as process" in capsys.readouterr().err
    progress = find_progress(job)
    assert progress is not None and progress.pid != os.getpid()
    assert run(["job", "show", job.name]) == 0
    assert f"process {progress.pid}: " in capsys.readouterr().out
    assert metrics()["postroad_pipeline_up"] == 1
    wait_until(lambda: 0 < metrics()["postroad_pipeline_delivered_total"] < SEGMENTS)
    wait_until(lambda: bool(cleared()))
    assert run(["job", "stop", job.name, "--dry-run"]) == 0
    assert f"Nothing is done. Process {progress.pid} stops;" in capsys.readouterr().out
    assert run(["job", "stop", job.name, "--yes"]) == 0
    assert capsys.readouterr().out == f"process {progress.pid} has stopped\n"
    assert 0 < len(cleared()) < SEGMENTS
    assert run(["job", "show", job.name, "--json"]) == 0
    standing = json.loads(capsys.readouterr().out)
    assert standing["dead"] == 0
    stopped = metrics()
    assert stopped["postroad_pipeline_up"] == 0
    assert stopped["postroad_pipeline_pending"] == standing["pending"]
    assert "postroad_pipeline_oldest_seconds" in stopped
    assert run(["job", "stop", job.name]) == 1
    assert "does not run" in capsys.readouterr().err
    hurry()
    assert run(["job", "submit", job.name]) == 0
    wait_until(lambda: find_progress(job) is None)
    assert cleared() == list(range(SEGMENTS))


def test_watching_ends_when_the_job_does_not_run(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        hurry()
        time.sleep(0.02)

    assert run(["job", "submit", job.name]) == 0
    progress = find_progress(job)
    assert progress is not None
    capsys.readouterr()
    monkeypatch.setattr(job_commands, "time", SimpleNamespace(sleep=sleep))
    assert run(["job", "show", job.name, "--watch"]) == 0
    *running, last = capsys.readouterr().out.splitlines()
    assert running
    assert all(line.startswith(f"process {progress.pid}: ") for line in running)
    assert last == "it does not run: 0 pending, 0 waiting, 0 dead, 0 unpublished"
    assert cleared() == list(range(SEGMENTS))
    assert run(["job", "show", job.name, "--watch", "--json"]) == 0
    (standing,) = capsys.readouterr().out.splitlines()
    assert json.loads(standing)["pending"] == 0


def test_job_that_does_not_start_says_why(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["job", "show", job.name]) == 1
    assert "Traceback" not in capsys.readouterr().err
    Path("clearing_functions.py").write_text("raise RuntimeError('broken')\n")
    assert run(["job", "submit", job.name]) == 1
    error = capsys.readouterr().err
    assert "did not start" in error
    assert "broken" in error


def test_job_that_is_soon_over_has_started_even_if_all_of_it_died(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("clearing_functions.py").write_text("def parse(segment): raise ValueError('no')\n")
    Path("payments/a.jsonl").write_text('{"amount": "1"}\n')
    assert run(["job", "submit", job.name]) == 0
    assert "did not start" not in capsys.readouterr().err
