"""The tutorial, followed from top to bottom; what it shows is what is printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
# What is tested is installed already.
INSTALLS = "python3 -m venv"
RUNS = "postroad dev\n"
# What changes by itself a moment later may be asked for again.
READS = ("postroad call shop.sold", "postroad flow history", "postroad call shop.order item=cake")
LIMIT_S = 60


def matches(shown: str, printed: str) -> bool:
    """Whether all lines are as shown; `…` is anything, and how wide columns are is not compared."""
    lines = [" ".join(it.split()) for it in shown.splitlines()]
    pattern = r"\s*".join(".*".join(map(re.escape, it.split("…"))) for it in lines)
    return re.fullmatch(pattern, " ".join(printed.split()), re.DOTALL) is not None


class Reader:
    """Has two terminals: in the first one the program runs, in the second one it is used."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._log = place / "dev.log"
        self._dev: subprocess.Popen[bytes] | None = None
        kept = {name: it for name, it in os.environ.items() if not name.startswith("POSTROAD_")}
        path = os.pathsep.join((str(Path(sys.executable).parent), kept["PATH"]))
        self._environ = {**kept, "PATH": path, "PYTEST_ADDOPTS": "-p no:asyncio"}

    def read(self) -> list[str]:
        """Follow the page; the blocks whose commands were run."""
        followed = []
        for (language, text), (next_language, shown) in zip(
            BLOCKS, [*BLOCKS[1:], ("", "")], strict=True
        ):
            if language == "python":
                files = [it.read_text() for it in self.place.glob("*.py")]
                is_there = [
                    self._without_changes(text) in self._without_changes(it) for it in files
                ]
                assert any(is_there), text
            if language != "sh" or text.startswith(INSTALLS):
                continue
            wanted = shown if next_language == "text" else None
            if text == RUNS:
                self._run_in_first_terminal(wanted or "")
            else:
                self._run_in_second_terminal(text, wanted)
            followed.append(text)
        return followed

    @staticmethod
    def _without_changes(text: str) -> str:
        """Before the reader has made the program say thank you."""
        return text.replace(", thank you", "")

    def _run_in_first_terminal(self, shown: str) -> None:
        self.kill()
        with self._log.open("wb") as log:
            self._dev = subprocess.Popen(
                ["postroad", "dev"],
                cwd=self.place,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + LIMIT_S
        while not matches(f"…\n{shown}…", self._log.read_text()):
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """As hard as one likes: the program, and the process that watches it."""
        if self._dev is not None and self._dev.poll() is None:
            os.killpg(self._dev.pid, signal.SIGKILL)
            self._dev.wait()

    def _run_in_second_terminal(self, commands: str, shown: str | None) -> None:
        deadline = time.monotonic() + LIMIT_S
        while True:
            status, printed = self._run(commands)
            is_right = status == 0 if shown is None else matches(shown, printed)
            if is_right:
                break
            may_wait = commands.startswith(READS) and time.monotonic() < deadline
            assert may_wait, f"{commands}printed, with status {status}:\n{printed}"
        if "\ncd " in f"\n{commands}":
            self.place = self.place / commands.split("cd ")[1].strip()

    def _run(self, commands: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", commands],
            cwd=self.place,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stdout or done.stderr

    def end(self) -> int:
        """What the program in the first terminal has ended with."""
        assert self._dev is not None
        return self._dev.wait(LIMIT_S)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.kill()


def test_the_tutorial(reader: Reader) -> None:
    followed = reader.read()
    assert len(followed) > 15
    assert followed[-1] == "postroad node stop --yes\n"
    assert reader.end() == 0


def test_what_is_shown_is_compared() -> None:
    assert matches("a  b\n…\nend", "a b\none\n  two\nend\n")
    assert matches("id: …\n", "id:   7\n")
    assert not matches("id: …\n", "name: 7\n")
    assert not matches("2\n", "3\n")
    assert not matches("a\n", "a\nb\n")
