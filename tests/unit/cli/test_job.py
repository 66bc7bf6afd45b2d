"""`postroad pipeline` on jobs in files."""

import asyncio
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from postroad.admin import pipeline_runs as runs
from postroad.admin.pipeline import count_dead
from postroad.cli.job_progress import ProgressDisplay
from postroad.cli.main import run
from postroad.core.errors import ConfigError
from postroad.durable import SqliteStore
from postroad.pipeline import JobProgress, TaskProgress
from tests.support.cases import each
from tests.support.pipeline.clearing_job import JOB, cleared

FUNCTIONS = """
def parse(segment):
    return {"amount": int(segment["amount"])}
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of a job, in the current directory; one of three payments is bad."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "clearing_functions", raising=False)
    (tmp_path / "clearing.toml").write_text(JOB)
    (tmp_path / "clearing_functions.py").write_text(FUNCTIONS)
    (tmp_path / "payments").mkdir()
    lines = [json.dumps({"amount": amount}) for amount in ("1", "two", "3")]
    (tmp_path / "payments" / "a.jsonl").write_text("\n".join(lines))
    return "clearing.toml"


def test_job_is_drawn_or_its_mistakes_are_told(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["job", "explain", job]) == 0
    assert "parse: function, clearing_functions:parse" in capsys.readouterr().out
    assert run(["job", "explain", job, "--mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart")
    Path(job).write_text(JOB.replace('"input"', '"inptu"').replace("fn =", "fm ="))
    assert run(["job", "explain", job]) == 1
    told = capsys.readouterr().err
    assert "'input'" in told
    assert "needs fn" in told
    assert "Traceback" not in told


def test_run_retry_and_run_again(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["job", "run", job]) == 4
    assert capsys.readouterr().out == "2 acknowledged, 2 failures, 1 dead\n"
    assert cleared() == [1, 3]
    assert run(["job", "dead-letters", job, "--json"]) == 0
    (dead,) = json.loads(capsys.readouterr().out)
    assert dead["segment"] == {"amount": "two"}
    assert (dead["failed_task"], dead["attempts"]) == ("parse", 2)
    assert dead["error"].startswith("ValueError: invalid literal")
    Path("clearing_functions.py").write_text("def parse(segment):\n    return {'amount': 2}\n")
    del sys.modules["clearing_functions"]
    assert run(["job", "retry", job, dead["id"]]) == 0
    assert run(["job", "run", job, "--json"]) == 0
    told, result = capsys.readouterr().out.splitlines()
    assert told == "1 segment to be retried"
    assert {"acked": 1, "failed": 0, "dead": 0}.items() <= json.loads(result).items()
    assert cleared() == [1, 2, 3]


def test_dead_segments_are_listed_and_dropped(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["job", "run", job])
    capsys.readouterr()
    assert run(["job", "dead-letters", job]) == 0
    shown = capsys.readouterr().out
    assert "parse: ValueError" in shown
    assert shown.endswith("    {'amount': 'two'}\n1 dead\n")
    assert run(["job", "drop", job, "0000000000000000"]) == 3
    assert capsys.readouterr().err == (
        "postroad: there is no dead segment 0000000000000000\n"
        f"Try: postroad job dead-letters {job}\n"
    )
    assert run(["job", "drop", job, "zz"]) == 1
    assert "16 hexadecimal digits" in capsys.readouterr().err
    assert run(["job", "drop", job, "--all", "--dry-run"]) == 0
    assert capsys.readouterr().out == (
        "Nothing is done. Dropped segments are gone for good. It touches 1 segment.\n"
    )
    assert run(["job", "retry", job, "--all", "--dry-run"]) == 0
    assert capsys.readouterr().out == "Nothing is done. 1 segment would be retried.\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    assert run(["job", "drop", job, "--all"]) == 1
    assert "It touches 1 segment.\nGo on? [y/N] Nothing is done.\n" in capsys.readouterr().err
    assert run(["job", "drop", job, "--all", "--yes"]) == 0
    assert capsys.readouterr().out == "1 segment dropped\n"


@each(["retry"], ["drop"], ["retry", "--all", "00"])
def test_one_or_all_must_be_chosen(
    arguments: list[str], job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments
    assert run(["job", command, job, *rest]) == 2
    assert "Give the id of one, or --all." in capsys.readouterr().err


@each(
    (
        '"jsonl"\noptions = { path = "cle',
        '"jsonll"\noptions = { path = "cle',
        "did you mean 'jsonl'?",
    ),
    ('path = "payments', 'pfad = "payments', "options of 'in' do not suit 'jsonl'"),
    ("payments/*", "nothing/*", "there is no file 'nothing/*.jsonl'"),
    ("functions:parse", "functions:pars", "did you mean 'parse'?"),
)
def test_what_does_not_fit_is_told_in_a_sentence(
    old: str, new: str, told: str, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in JOB
    Path(job).write_text(JOB.replace(old, new))
    assert run(["job", "run", job]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_operators_wait_for_each_other(job: str) -> None:
    assert run(["job", "run", job]) == 4

    async def count_beside_another() -> int:
        other = SqliteStore("clearing.db")
        await other.open(role="operator")
        counting = asyncio.create_task(count_dead(Path(job), None))
        await asyncio.sleep(0.2)
        assert not counting.done()
        await other.close()
        return await counting

    assert asyncio.run(count_beside_another()) == 1


SPARK_OPTIONS = (
    *("--master", "yarn", "--bind", "10.1.2.3:7000", "--partitions", "8"),
    *("--conf", "spark.executor.instances=20", "--conf", "spark.yarn.tags=a=b"),
    *("--packages", "org:one:1,org:two:2", "--packages", "org:three:3"),
    *("--jars", "a.jar", "--py-files", "b.zip,c.py"),
)


def test_options_of_spark_reach_the_runner(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[runs.Local | runs.Spark] = []

    async def run_job(path: Path, on: runs.Local | runs.Spark, show: object, **others: Any) -> None:
        places.append(on)
        raise ConfigError("no cluster here")

    monkeypatch.setattr(runs, "run_job", run_job)
    for name in ("a.jar", "b.zip", "c.py"):
        Path(name).touch()
    assert run(["job", "run", job, *SPARK_OPTIONS]) == 1

    (place,) = places
    assert isinstance(place, runs.Spark)
    assert place.bind == "10.1.2.3:7000"
    config = place.config("clearing")
    assert (config.master, config.partitions) == ("yarn", 8)
    assert config.conf == {"spark.executor.instances": "20", "spark.yarn.tags": "a=b"}
    assert config.packages == ("org:one:1", "org:two:2", "org:three:3")
    assert (config.jars, config.py_files) == (("a.jar",), ("b.zip", "c.py"))


def test_submit_hands_on_what_it_was_given(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def submit_job(path: Path, arguments: list[str]) -> tuple[int, Path]:
        given.append(arguments)
        return 1, path

    monkeypatch.setattr(runs, "submit_job", submit_job)
    assert run(["pipeline", "submit", job, "--store", "a.db", "--batch", *SPARK_OPTIONS]) == 0

    (arguments,) = given
    pairs = [SPARK_OPTIONS[at : at + 2] for at in range(0, len(SPARK_OPTIONS), 2)]
    assert sorted(arguments) == sorted(["--store", "a.db", "--batch", *SPARK_OPTIONS])
    assert all(arguments[arguments.index(value) - 1] == name for name, value in pairs)


@each(
    (["--spark", "--conf", "spark.ui"], "KEY=VALUE"),
    (["--spark", "--conf", "ui=1"], "begins with 'spark.'"),
    (["--bind", "10.1.2.3"], "give --spark or --master"),
    (["--spark", "--partitions", "0"], "partitions"),
    (["--spark", "--jars", "nowhere.jar"], "no file 'nowhere.jar'"),
    (["--master", "north:7077"], "spark://host:port"),
)
def test_wrong_options_of_spark_are_refused(
    options: list[str], text: str, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "run", job, *options]) in (1, 2)
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error


@each(
    (["dead"], "1 dead"),
    (["status"], "it does not run"),
    (["replay", "--all", "--dry-run"], "1 segment would be retried"),
)
def test_former_names_still_work_and_are_not_listed(
    words: list[str], told: str, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", "run", job]) == 4
    verb, *rest = words
    assert run(["pipeline", verb, job, *rest]) == 0
    assert told in capsys.readouterr().out
    assert run(["--help"]) == 0
    assert "pipeline" not in capsys.readouterr().out


def test_spark_options_without_spark_are_refused(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["job", "run", job, "--conf", "a=b"]) == 2
    assert "give --spark or --master too" in capsys.readouterr().err
    assert run(["job", "run", job, "--spark", "--conf", "a"]) == 2
    assert "not of the form KEY=VALUE" in capsys.readouterr().err


def test_progress_tells_rate_and_latency_of_each_task(capsys: pytest.CaptureFixture[str]) -> None:
    progress = JobProgress(
        *("clearing", 1, 0.0, 9, 8, 0, 0, 1, 0, 0, 0, 0, 0.0, 0.0, 8.0, 0.1),
        tasks={"parse": TaskProgress(processed=8, failed=0, per_s=1200.0, latency_s=0.0005)},
        late={"per_minute": 3},
    )
    display = ProgressDisplay()
    display.show(progress)
    assert ", 3 late; parse 1,200/s 0.50 ms" in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [False, True])
def test_address_of_the_spark_ui_is_shown_once(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    display = ProgressDisplay()
    for batches, url in enumerate((None, "http://127.0.0.1:4040", "http://127.0.0.1:4040")):
        numbers = ("clearing", 1, 0.0, 9, batches, 0, 0, batches, 0, 0, 0, 0, 0.0, 0.0, 8.0, 0.1)
        display.show(JobProgress(*numbers, spark_ui_url=url))
    lines = capsys.readouterr().err.replace("\r\x1b[K", "\n").splitlines()
    assert [it for it in lines if "4040" in it] == ["Spark UI: http://127.0.0.1:4040"]
    assert len([it for it in lines if "acknowledged" in it]) == 3


def test_job_named_and_no_file_is_one_of_a_node(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["job", "show", "clearing", "--data", "nowhere"]) == 3
    assert "no node" in capsys.readouterr().err
    assert run(["job", "show", "missing.toml"]) == 2
    assert "'missing.toml' does not exist" in capsys.readouterr().err
