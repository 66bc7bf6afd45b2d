"""Runs each target in a process of its own and reads how it went."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

# One input may take this long; libFuzzer looks every second.
_INPUT_TIMEOUT_S = 10
# Far above what a decoder within its limits needs, far below what a length could announce.
_MEMORY_MIB_MAX = 512
# Starting up, and writing down a crash.
_GRACE_S = 60
_STOP_S = 3
_POLL_S = 0.1

_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")
_EXECUTIONS = re.compile(r"stat::number_of_executed_units: (\d+)")
_ARTIFACTS = ("crash-", "timeout-", "oom-", "leak-")


class Result(NamedTuple):
    """How one target fared. `crash` is an input that broke it, if any was found."""

    name: str
    executions: int
    edges: int
    features: int
    crash: bytes | None
    output: str
    is_finished: bool

    @property
    def verdict(self) -> str:
        """One word for the table."""
        if self.crash is not None:
            return "CRASH"
        return "ok" if self.is_finished else "FAILED"


class Fuzzer:
    """One target being fuzzed. Stop it in any case: it owns a process and a directory."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._scratch = TemporaryDirectory(prefix="fuzz-")
        self._artifacts = self._make_directory("artifacts")
        self._output = Path(self._scratch.name, "output")
        self._kill_at = time.monotonic() + seconds + _GRACE_S
        options = [
            f"-seed={os.environ.get('POSTROAD_SEED') or 0}",
            f"-max_total_time={max(1, round(seconds))}",
            f"-timeout={_INPUT_TIMEOUT_S}",
            f"-rss_limit_mb={_MEMORY_MIB_MAX}",
            f"-artifact_prefix={self._artifacts}/",
            "-print_final_stats=1",
        ]
        corpus = str(self._make_directory("corpus"))
        with self._output.open("wb") as output:
            # A session of its own: Ctrl-C reaches this process only, which then stops the child.
            self._child = subprocess.Popen(
                [sys.executable, "-m", "fuzz.child", name, corpus, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _make_directory(self, name: str) -> Path:
        path = Path(self._scratch.name, name)
        path.mkdir()
        return path

    def is_running(self) -> bool:
        """Whether there is no result yet; one that hangs is ended here."""
        if self._child.poll() is None and time.monotonic() > self._kill_at:
            self._child.kill()
            self._child.wait()
        return self._child.poll() is None

    def result(self) -> Result:
        """What was found, once it is no longer running."""
        output = self._output.read_text(errors="replace")
        return _read_result(
            self._name, self._child.returncode, output, _find_crash(self._artifacts)
        )

    def stop(self) -> None:
        """End the process and remove its directory."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self._scratch.cleanup()


def fuzz_all(names: Sequence[str], seconds: float, jobs: int) -> Iterator[Result]:
    """Fuzz the targets, so many at a time; results as they come."""
    waiting = list(reversed(names))
    running: list[Fuzzer] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Fuzzer(waiting.pop(), seconds))
            time.sleep(_POLL_S)
            for fuzzer in [fuzzer for fuzzer in running if not fuzzer.is_running()]:
                running.remove(fuzzer)
                result = fuzzer.result()
                fuzzer.stop()
                yield result
    finally:
        for fuzzer in running:
            fuzzer.stop()


def _find_crash(artifacts: Path) -> bytes | None:
    found = sorted(path for path in artifacts.iterdir() if path.name.startswith(_ARTIFACTS))
    return found[0].read_bytes() if found else None


def _read_result(name: str, status: int, output: str, crash: bytes | None) -> Result:
    coverage = _COVERAGE.findall(output)
    edges, features = map(int, coverage[-1]) if coverage else (0, 0)
    executions = _EXECUTIONS.search(output)
    return Result(
        name=name,
        executions=int(executions[1]) if executions else 0,
        edges=edges,
        features=features,
        crash=crash,
        output=output,
        is_finished=status == 0,
    )
