"""The program and the script of the page for those without asyncio, run as it says."""

import re
import subprocess
import sys
import time
from pathlib import Path

from tests.docs.pages import ROOT, files_of
from tests.support.deadlines import DEADLINE_S
from tests.support.node.configs import AT_ONCE_FLAGS

PRINTED = re.compile(r"# script\.py\n[^`]*```\n\n```text\n([^`]*)```")


def test_script_prints_what_the_page_says(tmp_path: Path) -> None:
    for name, text in files_of("sync.md").items():
        (tmp_path / name).write_text(text)
    expected = PRINTED.search((ROOT / "docs" / "sync.md").read_text(encoding="utf-8"))
    assert expected is not None
    node = subprocess.Popen(
        [sys.executable, "-m", "postroad", "dev", "app.py", *AT_ONCE_FLAGS],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not list((tmp_path / ".postroad").glob("*.node.json")):
            assert node.poll() is None and time.monotonic() < deadline, "no node came up"
            time.sleep(0.05)
        done = subprocess.run(
            [sys.executable, "script.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert (done.stdout, done.returncode) == (expected[1], 0), done.stderr
    finally:
        node.terminate()
        output, _ = node.communicate(timeout=DEADLINE_S)
    assert "packed 2 tea" in output
