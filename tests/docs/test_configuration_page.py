"""The page about configuration: what it shows is what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from postroad.node.reading import RESERVED_VARIABLES
from tests.docs.pages import ROOT, printed, programs

TEXT = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
LIMIT_S = 120


def block(language: str, start: str) -> str:
    """The example of a page that begins like this."""
    found = re.search(rf"^```{language}\n({re.escape(start)}.*?)^```$", TEXT, re.M | re.S)
    assert found is not None
    return found[1]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "postroad.toml").write_text(block("toml", "# postroad.toml\n"))
    (tmp_path / "app.py").write_text("")
    return tmp_path


def run(directory: Path, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: it for name, it in os.environ.items() if not name.startswith("POSTROAD_")}
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=directory,
        env={**kept, **environ},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_the_commands(directory: Path) -> None:
    commands = block("sh", "postroad config check")
    assert run(directory, "-m", "postroad", "config", "check").returncode == 0
    shown = "postroad config show --changed --origin"
    assert shown in commands
    done = run(directory, "-m", *shown.split())
    assert done.stdout == block("text", "node.cluster")


def test_the_mistakes(directory: Path) -> None:
    path = directory / "postroad.toml"
    path.write_text(path.read_text().replace("name =", "names ="))
    check = ("-m", "postroad", "config", "check")
    done = run(directory, *check, POSTROAD_QUEUES_TUNING_HANDLER_TIMEOUT_S="abc")
    assert done.returncode != 0
    assert done.stderr.startswith(block("text", "postroad: 2 settings are wrong:"))


def test_the_program(tmp_path: Path) -> None:
    ((name, told),) = printed("configuration").items()
    assert run(tmp_path, "-c", programs()[name]).stdout == told


def test_every_variable_that_is_no_setting_is_on_the_page() -> None:
    assert [it for it in RESERVED_VARIABLES if f"`{it}`" not in TEXT] == []
