"""`postroad` commands that run until they are told to stop, with what they print."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.support.deadlines import DEADLINE_S
from tests.support.node.configs import AT_ONCE_FLAGS

# A program, and what has its dashboard disturb nobody and its node not wait for others.
APP = """
from postroad.services import Context, Service, action

class Greeter(Service):
    name = "greeter"

    @action
    async def hello(self, ctx: Context, name: str = "you") -> str:
        return f"hello {name}"
"""
QUIET = ("--set", "admin.bind=127.0.0.1:0", *AT_ONCE_FLAGS)
_LOOK_S = 0.02


class Command:
    """A command that runs; its output is a file, so that nothing is lost and nothing blocks."""

    def __init__(
        self, directory: Path, *arguments: str, stdin: IO[bytes] | None = None, **environ: str
    ) -> None:
        self.directory = directory
        self._log = (
            directory / f"{'-'.join(arguments[:2]).replace('/', '-')}.{time.monotonic_ns()}.log"
        )
        kept = {name: it for name, it in os.environ.items() if not name.startswith("POSTROAD_")}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "postroad", *arguments],
                cwd=directory,
                env={**kept, **environ},
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def output(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, pattern: str, count: int = 1) -> re.Match[str]:
        """The occurrence of a pattern in what is printed, the first or a later one."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            has_ended = self.process.poll() is not None
            found = [*re.finditer(pattern, self.output)]
            if len(found) >= count:
                return found[count - 1]
            if has_ended or time.monotonic() > deadline:
                raise AssertionError(f"no {pattern!r} in:\n{self.output}")
            time.sleep(_LOOK_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> int:
        """Wait for it; the exit code."""
        return self.process.wait(DEADLINE_S)


def run(directory: Path, *arguments: str, **environ: str) -> tuple[int, str]:
    """Run a command to its end; the exit code, and what it printed."""
    with Command(directory, *arguments, stdin=None, **environ) as command:
        return command.end(), command.output
