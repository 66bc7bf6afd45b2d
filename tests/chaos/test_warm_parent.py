"""Processes from the warm parent are like those that an interpreter begins."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.support.deadlines import eventually
from tests.support.source_tree import ROOT
from tests.support.warm_parent import Process, spawn

MODULE = "tests.chaos.test_warm_parent"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SPAWN_AND_HANG = f"""
import asyncio
from tests.support.warm_parent import spawn

async def main():
    process = await spawn("{MODULE}", "hang")
    print(int(await process.stdout.readline()), flush=True)
    await process.wait()

asyncio.run(main())
"""


def main() -> None:
    """What the processes of these tests do, as their first argument says."""
    match sys.argv[1]:
        case "describe":
            print_line(
                {
                    "args": sys.argv[1:],
                    "cwd": os.getcwd(),
                    "environment": [os.environ.get("WARM"), "HOME" in os.environ],
                    "input": sys.stdin.readline(),
                    "signals": [repr(signal.getsignal(number)) for number in SIGNALS],
                    "threads": threading.active_count(),
                    "files": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
                }
            )
        case "hang":
            print_line(os.getpid())
            signal.pause()
        case "exit":
            # Not flushed, as an interpreter does that when it ends.
            sys.stdout.write("bye\n")
            sys.exit(int(sys.argv[2]))
        case "fail":
            sys.stderr.close()
            raise ValueError("as told")


def print_line(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


async def read_line(process: Process) -> str:
    return (await process.stdout.readline()).decode().strip()


@pytest.mark.parametrize("is_cold", [False, True], ids=["warm", "cold"])
async def test_process_is_described_like_one_of_its_own(tmp_path: Path, is_cold: bool) -> None:
    process = await spawn(MODULE, "describe", 7, cwd=tmp_path, env={"WARM": "yes"}, is_cold=is_cold)
    process.stdin.write(b"hello\n")
    description = json.loads(await read_line(process))
    assert await process.wait() == process.returncode == 0
    process.close()
    interrupted, terminated = description.pop("signals")
    assert "default_int_handler" in interrupted and "SIG_DFL" in terminated
    assert description == {
        "args": ["describe", "7"],
        "cwd": str(tmp_path),
        "environment": ["yes", "HOME" in os.environ],
        "input": "hello\n",
        "threads": 1,
        "files": [0, 1, 2],
    }


async def test_exit_status_is_known() -> None:
    for arguments, output, status in (
        (["exit", 0], "bye", 0),
        (["exit", 3], "bye", 3),
        (["fail"], "", 1),
    ):
        process = await spawn(MODULE, *arguments)
        assert await read_line(process) == output, arguments
        assert await process.wait() == status, arguments
        process.close()
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = await spawn(MODULE, "hang")
        assert int(await read_line(process)) == process.pid
        assert process.returncode is None
        process.send_signal(number)
        assert await process.wait() == -number
        process.close()


async def test_processes_end_when_the_tests_are_killed() -> None:
    tests = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SPAWN_AND_HANG, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert tests.stdout is not None
    child = int(await tests.stdout.readline())
    parent = find_parent(child)
    assert is_there(child) and is_there(parent)
    tests.kill()
    await tests.wait()
    await eventually(lambda: not is_there(child) and not is_there(parent), "they are gone")


def find_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


if __name__ == "__main__":
    main()
