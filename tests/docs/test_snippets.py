"""Every Python example in the README and the documentation runs as it stands."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import printed, programs

PROGRAMS = programs()
PAGES_THAT_PRINT = ("services", "flows", "node", "README", "tracing")
PRINTED = {name: text for page in PAGES_THAT_PRINT for name, text in printed(page).items()}


@pytest.mark.parametrize(
    "page", ["README", "messaging", "membership", "discovery", "services", "flows"]
)
def test_examples_are_found(page: str) -> None:
    assert any(name.startswith(page) for name in PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    program = tmp_path / f"{name}.py"
    program.write_text(PROGRAMS[name])
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Some show how a flow is parked, which is logged.
    assert done.stderr == "" or done.stderr.partition("\n")[0].endswith("ends it"), done.stderr
    assert done.stdout == PRINTED.get(name, done.stdout)


@pytest.mark.parametrize(("page", "count"), [("README", 0), ("flows", 15), ("services", 10)])
def test_what_is_printed_is_compared(page: str, count: int) -> None:
    assert sum(name.startswith(page) for name in PRINTED) > count
