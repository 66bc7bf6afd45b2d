"""Jobs in processes of their own that kill themselves at a commit of their account.

Run as a program, it runs a job on an input that ends, and writes lines into a directory.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from postroad.core import faults
from postroad.durable import SqliteStore
from postroad.pipeline import Job, LocalRunner, Task, TaskType
from postroad.pipeline.media import make_input, make_output

RUN_S = 60.0


async def run_with_kills(directory: Path, medium: str, options: dict[str, Any]) -> list[int]:
    """Run a job that dies again and again, each time some commits later, until it is done.

    Returns:
        The numbers in its segments, as they are in its output.
    """
    for at in range(1, 100):
        point = ("before", "after")[at % 2]
        # Opening takes some commits: the later ones are within the work.
        given = json.dumps([str(directory), medium, options, point, 3 + at % 5])
        ended = await asyncio.to_thread(_run_program, given)
        if ended == 0:
            return _numbers_in(directory / "out")
        assert ended == -signal.SIGKILL
    raise AssertionError("it gets nowhere")


def _run_program(given: str) -> int:
    command = [sys.executable, "-m", "tests.contract.killed_jobs", given]
    return subprocess.run(command, timeout=RUN_S, check=False).returncode


def _numbers_in(directory: Path) -> list[int]:
    lines = [line for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["n"] for line in lines)


class _Killer:
    """A fault point that ends this process when it was reached so often."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, units: object) -> None:
        """Be the fault point."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def _run(
    directory: str, medium: str, options: dict[str, Any], point: str, commits: int
) -> None:
    source = Task(name="in", type=TaskType.INPUT, medium=medium, options=options, batch_size=7)
    target = Task(
        name="out", type=TaskType.OUTPUT, medium="lines", options={"path": f"{directory}/out"}
    )
    job = Job(name="job", workflow=[("in", "out")], catalog=[source, target])
    store = SqliteStore(Path(directory) / "store.db")
    inputs, outputs = {"in": make_input(source)}, {"out": make_output(target)}
    with faults.armed(f"durable.commit.{point}", _Killer(commits)):
        await LocalRunner(job, inputs, outputs, store).run()


if __name__ == "__main__":
    asyncio.run(_run(*json.loads(sys.argv[1])))
