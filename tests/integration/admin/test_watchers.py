"""What is known of a process that starts a node again."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.admin.watchers import Watcher, find_watcher, leave_watcher
from tests.support.cases import each


def sleeping(*words: str) -> subprocess.Popen[bytes]:
    script = "import time; print('ready', flush=True); time.sleep(600)"
    command = [sys.executable, "-c", script, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    # What it is called is not known before it runs.
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with sleeping("postroad", "dev") as started:
        yield started
        started.kill()


def test_watcher_is_found_while_it_lives(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    data = tmp_path / "data"
    assert find_watcher(data) is None
    well = Watcher(pid=process.pid)
    watcher = Watcher(pid=process.pid, problem="app.py:1: SyntaxError: invalid syntax")
    for it in (well, watcher):
        leave_watcher(data, it)
        assert find_watcher(data) == it
    leave_watcher(data, Watcher(pid=1))
    assert find_watcher(data) == watcher, "the first one stays"
    process.kill()
    process.wait()
    assert find_watcher(data) is None


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_another_process_of_its_number_is_no_watcher(tmp_path: Path) -> None:
    with sleeping() as process:
        leave_watcher(tmp_path, Watcher(pid=process.pid))
        found = find_watcher(tmp_path)
        process.kill()
    assert found is None


@each(b"", b"{", b"[]", b'{"pid": 0}', b'{"pid": 99999999999999}')
def test_what_is_damaged_tells_of_nobody(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_bytes(content)
    assert find_watcher(tmp_path) is None


def test_directory_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    leave_watcher(file / "data", Watcher(pid=1))
    assert find_watcher(file / "data") is None
