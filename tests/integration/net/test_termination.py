"""Programs that `postroad.run` runs end properly, however they are told to."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from postroad import run

PROGRAM = """
import asyncio
from postroad import run
from postroad.net import MessagingService

async def main() -> None:
    async with MessagingService("demo", "alpha"):
        print("ready", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("goodbye", flush=True)

run(main())
"""


@pytest.mark.parametrize(
    ("number", "exit_codes"), [(signal.SIGTERM, (143,)), (signal.SIGINT, (130, -signal.SIGINT))]
)
def test_a_signal_cancels_the_program(
    number: signal.Signals, exit_codes: tuple[int, ...], tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        output, errors = child.communicate(timeout=120)
    assert output == "goodbye\n"
    assert child.returncode in exit_codes
    if number == signal.SIGTERM:
        assert errors == ""


def test_a_program_in_another_thread_leaves_signals_alone() -> None:
    results: list[int] = []

    async def main() -> int:
        return 7

    thread = threading.Thread(target=lambda: results.append(run(main())))
    thread.start()
    thread.join(timeout=120)
    assert results == [7]
