"""Who gets a second chance, and who does not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_chance import refuse
from tests.support.source_tree import ROOT

FLAKY = """
from pathlib import Path

def test_flaky():
    mark = Path(__file__).with_name("mark")
    is_first = not mark.exists()
    mark.touch()
    assert not is_first
"""


@pytest.mark.parametrize(
    ("failed", "reason"),
    [
        ([], "nobody knows"),
        (["tests/unit/test_a.py::test_1"], None),
        ([f"tests/unit/test_a.py::test_{number}" for number in range(4)], "at most 3"),
        (["tests/chaos/test_mail.py::test_kills"], "nothing is lost"),
        (["tests/unit/test_a.py::test_1", "tests/contract/test_b.py::test_2"], "nothing is lost"),
        (["tests/unit/test_old.py::test_1"], "forgiven before, 2026"),
    ],
)
def test_second_chance_is_refused_for(failed: list[str], reason: str | None) -> None:
    refusal = refuse(failed, {"tests/unit/test_old.py::test_1": ["2026-01-01"]})
    assert (refusal is None) if reason is None else (reason in str(refusal))


@pytest.mark.slow
def test_test_that_fails_once_is_forgiven_once(tmp_path: Path) -> None:
    planted = ROOT / "tests" / f"test_planted_{os.getpid()}"
    planted.mkdir()
    try:
        (planted / "test_flaky.py").write_text(FLAKY)
        runs = []
        for _ in range(2):
            (planted / "mark").unlink(missing_ok=True)
            runs.append(
                subprocess.run(
                    [sys.executable, "-m", "tests.second_chance", str(planted), "-q"],
                    cwd=ROOT,
                    env=os.environ | {"XDG_STATE_HOME": str(tmp_path), "POSTROAD_TIER": "test"},
                    capture_output=True,
                    text=True,
                    check=False,
                )
            )
    finally:
        shutil.rmtree(planted)
    first, second = runs
    assert first.returncode == 0
    assert "Forgiven, and kept" in first.stdout
    assert second.returncode == 1
    assert "was forgiven before" in second.stdout
    (history,) = tmp_path.rglob("second-chances.json")
    assert len(json.loads(history.read_text())) == 1
