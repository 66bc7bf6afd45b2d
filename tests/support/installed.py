"""Building the package, and environments that it is installed in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.support.deadlines import DEADLINE_S
from tests.support.servers.process import ServerProcess
from tests.support.source_tree import ROOT

LIMIT_S = 240
_INDEX = re.compile(r"\bindex-url='(.+)'")


def run(
    *command: str | Path, cwd: Path, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever its status."""
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def succeed(*command: str | Path, cwd: Path, environ: dict[str, str] | None = None) -> str:
    """What a command prints, which must succeed."""
    done = run(*command, cwd=cwd, environ=environ)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def build(source: Path, target: Path, *options: str) -> None:
    """Run `python -m build`, as `make dist` does."""
    command = ("build", "--no-isolation", *options, "--outdir", str(target), str(source))
    succeed(sys.executable, "-m", *command, cwd=ROOT)


@cache
def _index() -> dict[str, str]:
    """Where pip looks for packages, for uv."""
    listed = run(sys.executable, "-m", "pip", "config", "list", cwd=ROOT).stdout
    urls = _INDEX.findall(listed.replace("extra-index-url", ""))
    return {"UV_DEFAULT_INDEX": urls[-1]} if urls else {}


class Environment:
    """A virtual environment of some Python, and a place outside of the source tree to use it in."""

    def __init__(self, python: str, place: Path) -> None:
        self.place = place
        self._bin = place / "env" / "bin"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("POSTROAD_", "PYTEST_", "PYTHON", "UV_"))
        }
        self._environ = inherited | {"PATH": os.pathsep.join((str(self._bin), os.defpath))}
        self._uv("venv", "--no-project", "--python", python, str(place / "env"))

    def install(self, *requirements: str) -> None:
        self._uv("pip", "install", "--python", str(self._bin / "python"), *requirements)

    def _uv(self, *arguments: str) -> None:
        succeed(
            *(sys.executable, "-m", "uv", "--quiet", "--no-config", *arguments),
            cwd=self.place,
            environ=os.environ | _index(),
        )

    def directory(self, name: str) -> Path:
        path = self.place / name
        path.mkdir(exist_ok=True)
        return path

    def attempt(self, cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment."""
        return run(self._bin / command[0], *command[1:], cwd=cwd, environ=self._environ)

    def succeed(self, cwd: Path, *command: str) -> str:
        """What a program of the environment prints, which must succeed."""
        return succeed(self._bin / command[0], *command[1:], cwd=cwd, environ=self._environ)

    def eventually(self, cwd: Path, shown: str, *command: str) -> None:
        """Run a program until the words that it prints fit the regular expression."""
        ends_at = time.monotonic() + DEADLINE_S
        while not re.fullmatch(shown, " ".join(self.succeed(cwd, *command).split())):
            assert time.monotonic() < ends_at, f"{command} never printed {shown!r}"

    @contextmanager
    def running(self, cwd: Path, shown: str, *command: str) -> Iterator[Path]:
        """Have a program run from when it has printed something on; a file has all it prints.

        Ctrl-C ends it at last, and it must say that it succeeded.
        """
        log = cwd / "printed.txt"
        with log.open("wb") as output:
            process = ServerProcess(
                [str(self._bin / command[0]), *command[1:]],
                cwd=cwd,
                env=self._environ,
                stdout=output,
                stderr=output,
            )
        try:
            ends_at = time.monotonic() + DEADLINE_S
            while shown not in log.read_text():
                is_late = time.monotonic() > ends_at or process.status is not None
                assert not is_late, f"{command}: {log.read_text()}"
                time.sleep(0.02)
            yield log
        finally:
            process.stop(signal.SIGINT)
        assert process.status == 0, log.read_text()
