"""The demo, run the way a reader of the README runs it."""

import os
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.deadlines import DEADLINE_S
from tests.support.servers.spark import quick_environment
from tests.support.source_tree import ROOT
from tests.support.tiers import by_tier

DEMO_S = 3 * DEADLINE_S
# Spark takes long to start, also on a machine with nothing else to do.
SPARK_DEMO_S = 8 * DEADLINE_S

NODE = re.compile(
    r"(?P<name>(?:core-|bank-)\w|house) +process (?P<pid>\d+) +(?P<host>[\d.]+):(?P<port>\d+)"
)
SHORT = ("--seconds", "5")
WITHOUT_PACKAGE = """
import sys
sys.modules["pyspark"] = None
from examples.clearing.__main__ import main
sys.exit(main())
"""


class Demo:
    """A demo under way, in a process group of its own and with a place for temporary files."""

    def __init__(self, directory: Path, *arguments: str, has_package: bool = True) -> None:
        self.directory = directory
        program = ("-m", "examples.clearing") if has_package else ("-c", WITHOUT_PACKAGE)
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            cwd=ROOT,
            env={**os.environ, **quick_environment(), "TMPDIR": str(directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.output = ""

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        while text not in self.output:
            line = self.process.stdout.readline()
            assert line, f"ended without {text!r}:\n{self.output}"
            self.output += line

    def finish(self, timeout_s: float = DEMO_S) -> str:
        """The rest of the output; fails on anything in standard error."""
        output, errors = self.process.communicate(timeout=timeout_s)
        self.output += output
        assert errors == ""
        return self.output

    def is_cleaned_up(self) -> bool:
        return not list(self.directory.iterdir()) and self.are_nodes_gone()

    def are_nodes_gone(self) -> bool:
        """Whether nobody listens any more where the nodes did."""
        return not any(
            can_connect(node["host"], int(node["port"])) for node in NODE.finditer(self.output)
        )


def can_connect(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


StartDemo = Callable[..., Demo]


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[StartDemo]:
    demos: list[Demo] = []

    def start(*arguments: str, has_package: bool = True) -> Demo:
        demos.append(Demo(tmp_path, *arguments, has_package=has_package))
        return demos[-1]

    yield start
    for demo in demos:
        demo.process.kill()
        demo.process.communicate()


def numbers(pattern: str, output: str) -> list[int]:
    """The groups of a pattern in which N stands for a number; fails if it is not there."""
    match = re.search(pattern.replace("N", r"[\d,]+"), output)
    assert match, output
    return [int(text.replace(",", "")) for text in match.groups()]


def count_rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        ((count,),) = connection.execute(f"SELECT count(*) FROM {table}")
    return int(count)


def check_accounts(output: str) -> None:
    """What it says agrees with itself, and nothing is wrong."""
    calls, answered, failed, cut_off, wrong = numbers(
        r"ok +calls made (N) = answered (N) \+ failed (N) with an error"
        r" \+ cut off by a kill (N); wrong answers (N)\n",
        output,
    )
    assert (calls, wrong) == (answered + failed + cut_off, 0)
    begun, settled, refused, *wrong_flows = numbers(
        r"ok +flows: payments begun (N) = settled (N) \+ refused (N): lost (N), duplicates (N)\n",
        output,
    )
    assert (begun, wrong_flows) == (settled + refused, [0, 0])
    sent, cleared, dead, *wrong_mail = numbers(
        r"ok +mail and Spark: payments sent (N) = cleared (N) \+ dead (N): lost (N),"
        r" duplicates (N), replayed N\n",
        output,
    )
    assert (sent, settled, wrong_mail) == (cleared + dead, sent, [0, 0])
    for name in ("bank-b", "core-1", "house"):
        assert f"{name} was killed (SIGKILL)" in output
        assert f"{name} is back, with what its database holds" in output
    assert re.search(r"\nIt all adds up. \(\d+ s\)\n$", output)


def test_demo_without_spark_adds_up_after_kills(tmp_path: Path) -> None:
    directory = tmp_path / "kept" / "here"
    demo = Demo(tmp_path, *SHORT, "--directory", str(directory), has_package=False)
    output = demo.finish()

    assert demo.process.returncode == 0, output
    assert re.search(r"^The job runs without Spark: .*the extra 'spark'", output)
    check_accounts(output)
    assert "\x1b" not in output
    assert re.search(r"\nLook at them: http://127\.0\.0\.1:\d+/#token=\S+\n", output)
    begun = sum(count_rows(directory / f"bank-{bank}.db", "debits") for bank in "ab")
    assert numbers(r"payments begun (N)", output) == [begun]
    assert demo.are_nodes_gone()


@pytest.mark.timeout(SPARK_DEMO_S + 60)
def test_demo_clears_payments_once_although_spark_is_killed(start_demo: StartDemo) -> None:
    demo = start_demo(*SHORT)
    output = demo.finish(SPARK_DEMO_S)

    assert demo.process.returncode == 0, output
    assert "have it cleared on Spark" in output
    started = r"Spark has started: its job is at work; its UI is http://127\.0\.0\.1:\d+"
    assert len(re.findall(started, output)) == 2
    check_accounts(output)
    assert demo.is_cleaned_up()


# Before there is a node, what is between, and in the middle of a kill: that by day on a terminal.
MOMENTS = ["Look at them", "settled/s", "bank-b was killed", "core-1 is back", "no more"]


@pytest.mark.parametrize("moment", ["Postroad demo", *by_tier(test=MOMENTS[:1], nightly=MOMENTS)])
def test_ctrl_c_ends_the_demo_and_leaves_nothing(start_demo: StartDemo, moment: str) -> None:
    demo = start_demo(*SHORT, "--no-spark")
    demo.read_until(moment)
    # As a terminal does it: to the whole process group, and people press it more than once.
    os.killpg(demo.process.pid, signal.SIGINT)
    os.killpg(demo.process.pid, signal.SIGINT)
    output = demo.finish()

    assert demo.process.returncode == 128 + signal.SIGINT
    assert "Stopped by SIGINT; all processes and files are gone." in output
    assert demo.is_cleaned_up()
    for node in NODE.finditer(output):
        with pytest.raises(ProcessLookupError):
            os.kill(int(node["pid"]), 0)


def test_killed_demo_ends_its_nodes(start_demo: StartDemo) -> None:
    demo = start_demo(*SHORT, "--no-spark")
    demo.read_until("settled/s")
    assert not demo.are_nodes_gone()
    demo.process.kill()
    deadline_s = time.monotonic() + DEMO_S
    while not demo.are_nodes_gone():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_node_that_ends_by_itself_fails_the_demo(start_demo: StartDemo) -> None:
    demo = start_demo(*SHORT, "--no-spark")
    demo.read_until("settled/s")
    (match,) = [node for node in NODE.finditer(demo.output) if node["name"] == "bank-a"]
    os.kill(int(match["pid"]), signal.SIGKILL)
    _, errors = demo.process.communicate(timeout=DEMO_S)

    assert demo.process.returncode == 1
    assert errors.startswith("The demo failed: bank-a ended with status -9")
    assert "Traceback" not in errors


def test_reader_that_goes_away_ends_the_demo(tmp_path: Path) -> None:
    command = f"{sys.executable} -m examples.clearing --seconds 5 --no-spark | head -1"
    done = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=DEMO_S,
        check=False,
    )
    assert done.stdout == "Postroad demo: a clearing house\n1\n"
    assert done.stderr == ""
    assert not list(tmp_path.iterdir())


def test_table_on_a_terminal_is_redrawn_until_the_demo_is_terminated(tmp_path: Path) -> None:
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.clearing", *SHORT, "--no-spark"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm"},
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    output = b""
    try:
        while b"bank-b was killed" not in output:
            output += os.read(main, 65_536)
        process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + DEMO_S
        while process.poll() is None and time.monotonic() < deadline_s:
            try:
                output += os.read(main, 65_536)
            except OSError:  # The other side was closed.
                break
        assert process.wait(DEMO_S) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        os.close(main)
    assert not list(tmp_path.iterdir())
    assert output.count(b"\x1b[J") > 5
    assert output.rindex(b"\x1b[?25h") > output.rindex(b"\x1b[?25l")


def test_wrong_options_are_refused() -> None:
    for arguments, text in (
        (["--seconds", "1"], "1 is not within 5 and 3600"),
        (["--seconds", "many"], "'many' is not a number"),
        (["--directory", "."], ". is there already, and not an empty directory"),
    ):
        command = [sys.executable, "-m", "examples.clearing", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=DEMO_S, check=False
        )
        assert done.returncode == 2, arguments
        assert text in done.stderr
