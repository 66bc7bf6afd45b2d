"""The plugin behind POSTROAD_REQUIRE_ALL=1, seen from a run of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

SKIPS = {
    "marked": "@pytest.mark.skip(reason='no such tool')\ndef test_it(): assert False",
    "called": "def test_it(): pytest.skip('no such tool')",
    "fixture": (
        "@pytest.fixture\ndef tool(): pytest.skip('no such tool')\n\ndef test_it(tool): pass"
    ),
    "module": "pytest.skip('no such tool', allow_module_level=True)",
    "import": "pytest.importorskip('no_such_tool', reason='no such tool')",
}


def run_pytest(directory: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    directory.joinpath("test_planted.py").write_text(f"import pytest\n\n{source}\n")
    directory.joinpath("pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    loader = "from tests.support.require_all import RequireAll\nimport pytest, sys\n"
    plugins = "[RequireAll()]" if "required" in arguments else "[]"
    options = ["-rA", *(it for it in arguments if it != "required")]
    return subprocess.run(
        [sys.executable, "-c", f"{loader}sys.exit(pytest.main({options}, plugins={plugins}))"],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", SKIPS)
def test_a_skip_is_a_failure_that_keeps_its_reason(tmp_path: Path, kind: str) -> None:
    finished = run_pytest(tmp_path, SKIPS[kind], "required")

    assert finished.returncode in (1, 2), finished.stdout
    assert "allows no skip" in finished.stdout
    assert "no such tool" in finished.stdout


def test_an_expected_failure_stays_one(tmp_path: Path) -> None:
    finished = run_pytest(tmp_path, "@pytest.mark.xfail\ndef test_it(): assert False", "required")

    assert finished.returncode == 0, finished.stdout


def test_without_the_plugin_a_skip_is_a_skip(tmp_path: Path) -> None:
    finished = run_pytest(tmp_path, SKIPS["marked"])

    assert finished.returncode == 0, finished.stdout


def test_a_run_whose_process_died_was_interrupted(tmp_path: Path) -> None:
    """Whoever runs again only what failed must not take the rest for passed."""
    source = "import os\ndef test_it(): os._exit(1)\n\ndef test_other(): assert False"
    processes = ["-p", "xdist.plugin", "-n", "1", "--max-worker-restart=0"]
    finished = run_pytest(tmp_path, source, "required", *processes)

    assert "test_it" in finished.stdout
    assert finished.returncode == pytest.ExitCode.INTERRUPTED, finished.stdout


def test_a_run_with_failures_is_a_whole_one(tmp_path: Path) -> None:
    processes = ["-p", "xdist.plugin", "-n", "1", "--max-worker-restart=0"]
    finished = run_pytest(tmp_path, "def test_it(): assert False", "required", *processes)

    assert finished.returncode == pytest.ExitCode.TESTS_FAILED, finished.stdout
