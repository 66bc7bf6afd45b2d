"""The examples of the page of services that take several processes, run the way the page says."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.docs.pages import ROOT, files_of
from tests.support.servers.nats import shared_nats
from tests.support.servers.process import free_port
from tests.support.services.javascript import find_program, installed_packages

PAGE = "services.md"
TEXT = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
SCRIPT = re.compile(r"^```js\n(// greeter\.js\n.*?)^```$", re.MULTILINE | re.DOTALL)
TOLD = re.compile(r"^```sh\n([^`]*)```\n\n```text\n([^`]*)```$", re.MULTILINE)
END_S = 60


@contextmanager
def running(command: list[str], directory: Path, **environment: str) -> Iterator[IO[str]]:
    """A program that runs until it is told to stop; gives what it prints."""
    process = subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        with process.stdout:
            yield process.stdout
    finally:
        process.terminate()
        process.wait(END_S)


def told_after(command: str) -> list[str]:
    """What the page says that some commands print."""
    text: str = next(text for commands, text in TOLD.findall(TEXT) if command in commands)
    return text.splitlines()


def write_files(directory: Path, old: str, new: str) -> None:
    for name, program in files_of(PAGE).items():
        (directory / name).write_text(program.replace(old, new))


@pytest.mark.parametrize("order", [("stock", "front"), ("front", "stock")])
def test_two_processes(tmp_path: Path, order: tuple[str, str]) -> None:
    write_files(tmp_path, "26502", str(free_port()))
    with ExitStack() as stack:
        outputs = {
            name: stack.enter_context(running([sys.executable, f"{name}_node.py"], tmp_path))
            for name in order
        }
        assert [outputs["front"].readline().rstrip()] == told_after("front_node.py")


@pytest.mark.timeout(600)
def test_a_node_in_javascript_and_one_in_python(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    port = str(shared_nats().port)
    assert pytestconfig.cache is not None
    modules = installed_packages(pytestconfig.cache)
    write_files(tmp_path, "4222", port)
    found = SCRIPT.search(TEXT)
    assert found is not None
    (tmp_path / "greeter.js").write_text(found[1].replace("4222", port))
    theirs = [find_program("node"), "greeter.js"]
    with (
        running(theirs, tmp_path, NODE_PATH=str(modules)) as javascript,
        running([sys.executable, "rates.py"], tmp_path) as python,
    ):
        lines = [it.readline().rstrip() for it in (python, javascript, javascript)]
    assert sorted(lines) == sorted(told_after("rates.py"))
