"""The project that `postroad new` writes passes its own tests, and runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli.commands import QUIET, Command, run

pytestmark = pytest.mark.timeout(600)

PYTEST_S = 120


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("projects")
    status, output = run(directory, "new", "shop")
    assert status == 0, output
    return directory / "shop"


@pytest.mark.slow
def test_its_tests_pass(project: Path) -> None:
    quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=PYTEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_its_configuration_is_right(project: Path) -> None:
    status, output = run(project, "config", "check")
    assert status == 0, output
    assert output.startswith("Good: 4 of ")


def test_it_runs(project: Path) -> None:
    with Command(project, "dev", *QUIET) as dev:
        dev.wait_for("node shop-1 of cluster shop runs at")
        for line in (
            *("shop.order", "shop.sold", "shop.restock", "orders -> sell"),
            *("restock(item: str, count: int) -> str",),
        ):
            assert line in dev.output
        assert dev.stop() == 0


def test_its_pipeline_does_what_it_can(project: Path) -> None:
    status, output = run(project, "job", "run", "job.toml")
    assert (status, output.splitlines()[-1]) == (4, "2 acknowledged, 2 failures, 1 dead")
    lines = "".join(it.read_text() for it in (project / "report").glob("*.jsonl")).splitlines()
    sales = {it["item"]: it["amount"] for it in map(json.loads, lines)}
    assert sales == {"tea": 8, "cake": 6}
