"""Jobs in processes of their own that kill themselves at a commit of their account.

Run as a program, it runs a job on an input that ends, and writes lines into a directory.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from postroad.core import fault_points as faults
from postroad.durable import SqliteStore
from postroad.pipeline import Job, LocalRunner, Task, TaskType
from postroad.pipeline.connectors import make_input, make_output
from tests.support.deadlines import DEADLINE_S


async def run_with_kills(directory: Path, connector: str, options: dict[str, Any]) -> list[int]:
    """Run a job that dies again and again, each time some commits later, until it is done.

    Returns:
        The numbers in its segments, as they are in its output.
    """
    command = [sys.executable, "-m", "tests.contract.killed_jobs"]
    given = json.dumps([str(directory), connector, options])
    ended = await asyncio.to_thread(
        subprocess.run, [*command, given], timeout=DEADLINE_S, check=True, stdout=subprocess.PIPE
    )
    assert int(ended.stdout) > 2, "it hardly died"
    return _numbers_in(directory / "out")


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
    directory: str, connector: str, options: dict[str, Any], point: str, commits: int
) -> None:
    source = Task(
        name="in", type=TaskType.INPUT, connector=connector, options=options, batch_size=7
    )
    target = Task(
        name="out", type=TaskType.OUTPUT, connector="jsonl", options={"path": f"{directory}/out"}
    )
    job = Job(name="job", workflow=[("in", "out")], catalog=[source, target])
    store = SqliteStore(Path(directory) / "store.db")
    inputs, outputs = {"in": make_input(source)}, {"out": make_output(target)}
    with faults.arm_fault_point(f"durable.commit.{point}", _Killer(commits)):
        await LocalRunner(job, inputs, outputs, store).run()


def _live(directory: str, connector: str, options: dict[str, Any], at: int) -> int:
    """One process, forked from this one, which has imported everything; what it ended with."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            # Opening takes some commits: the later ones are within the work.
            point = ("before", "after")[at % 2]
            asyncio.run(_run(directory, connector, options, point, 3 + at % 5))
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _main(directory: str, connector: str, options: dict[str, Any]) -> None:
    importlib.import_module({"jetstream": "nats", "redis_stream": "redis.asyncio"}[connector])
    for at in range(1, 100):
        ended = _live(directory, connector, options, at)
        if ended == 0:
            sys.stdout.write(str(at))
            return
        assert ended == -signal.SIGKILL
    raise AssertionError("it gets nowhere")


if __name__ == "__main__":
    _main(*json.loads(sys.argv[1]))
