"""Every Python example in the README and the documentation runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _programs() -> list[tuple[str, str]]:
    """Name and text of each example that is a whole program, which is one that imports."""
    found = []
    for page in PAGES:
        for number, block in enumerate(BLOCK.findall(page.read_text()), 1):
            if "import" in block:
                found.append((f"{page.stem}-{number}", block))
    return found


PROGRAMS = dict(_programs())


def test_examples_are_found() -> None:
    assert any(name.startswith("README") for name in PROGRAMS)
    assert any(name.startswith("messaging") for name in PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_runs(name: str, tmp_path: Path) -> None:
    program = tmp_path / f"{name}.py"
    program.write_text(PROGRAMS[name])
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
