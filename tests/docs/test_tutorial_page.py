"""The tutorial, followed from top to bottom; what it shows is what is printed."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.timeout(600)

TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
# What is tested is installed already.
INSTALLS = "python3 -m venv"
# What runs in a terminal of its own, and whether it replaces what ran there before.
RUNS = ("postroad dev", "postroad node start")
STARTED = "runs at 127.0.0.1:…"
# What changes by itself a moment later may be asked for again.
READS = (
    "postroad call shop.sold",
    "postroad cluster ls",
    "postroad flow history",
    "postroad flow show",
    "postroad call shop.order item=cake",
)
LIMIT_S = 120
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def matches(shown: str, printed: str) -> bool:
    """Whether all lines are as shown; `…` is anything, and how wide columns are is not compared."""
    lines = [" ".join(it.split()) for it in shown.splitlines()]
    pattern = r"\s*".join(".*".join(map(re.escape, it.split("…"))) for it in lines)
    return re.fullmatch(pattern, " ".join(printed.split()), re.DOTALL) is not None


def copy(master: int, screen: bytearray) -> None:
    """Keep what is shown at a terminal, until no program is at it."""
    try:
        while data := os.read(master, 65_536):
            screen += data
    except OSError:
        pass  # How the system tells the end.
    finally:
        os.close(master)


class Reader:
    """Has a terminal for each program that runs, and one more in which they are used."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._terminals: dict[str, subprocess.Popen[bytes]] = {}
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
            runs = next((it for it in RUNS if text.startswith(it)), None)
            if runs:
                self._leave_running(runs, text, wanted or STARTED)
            else:
                self._run_to_its_end(text, wanted)
            followed.append(text)
        return followed

    @staticmethod
    def _without_changes(text: str) -> str:
        """Before the reader has made the program say thank you."""
        return text.replace(", thank you", "")

    def _leave_running(self, terminal: str, command: str, shown: str) -> None:
        self._kill(terminal)
        master, slave = pty.openpty()
        self._terminals[terminal] = subprocess.Popen(
            shlex.split(command),
            cwd=self.place,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        screen = bytearray()
        threading.Thread(target=copy, args=(master, screen), daemon=True).start()
        deadline = time.monotonic() + LIMIT_S
        while not matches(f"…\n{shown}…", text := COLOURS.sub("", screen.decode())):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)

    def _kill(self, terminal: str) -> None:
        """As hard as one likes: the program, and the process that watches it."""
        process = self._terminals.get(terminal)
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill(self) -> None:
        """Whatever is left."""
        for terminal in self._terminals:
            self._kill(terminal)

    def _run_to_its_end(self, commands: str, shown: str | None) -> None:
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

    def end(self) -> list[int]:
        """What the programs have ended with."""
        return [it.wait(LIMIT_S) for it in self._terminals.values()]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.kill()


def test_the_tutorial(reader: Reader) -> None:
    followed = reader.read()
    assert len(followed) > 15
    assert followed[-1] == "postroad node stop --yes\n"
    assert reader.end() == [0, 0]


def test_what_is_shown_is_compared() -> None:
    assert matches("a  b\n…\nend", "a b\none\n  two\nend\n")
    assert matches("id: …\n", "id:   7\n")
    assert not matches("id: …\n", "name: 7\n")
    assert not matches("2\n", "3\n")
    assert not matches("a\n", "a\nb\n")
