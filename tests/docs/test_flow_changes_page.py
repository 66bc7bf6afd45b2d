"""What the page on changed flows tells of `postroad flow verify`, done as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from postroad.flows.verification import ReplayResult
from tests.docs.pages import ROOT, files_of

PAGE = (ROOT / "docs" / "flow-changes.md").read_text(encoding="utf-8")
STORY = re.compile(
    r"^```sh\n(python hotel\.py\n[^`]*)```\n\n```text\n((?:(?!```).*\n)*)```$", re.MULTILINE
)
ID = re.compile(r"\b[0-9a-f]{16}\b")


def test_the_commands_tell_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "hotel.py").write_text(files_of("flow-changes.md")["hotel.py"])
    story = STORY.search(PAGE)
    assert story is not None
    commands, expected = story.groups()
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["sh", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert ID.sub("(id)", done.stdout) == ID.sub("(id)", expected)
    assert done.returncode == 1


def test_every_result_is_explained() -> None:
    table = PAGE.partition("| result | meaning |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([^`]+)`", table, re.MULTILINE) == [it.value for it in ReplayResult]
