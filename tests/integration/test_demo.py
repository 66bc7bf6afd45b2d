"""The demo and the examples, run the way a reader of the README runs them."""

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

from examples.demo.cells_act import SATELLITES
from examples.demo.cells_journal import Copied, Handled, read_journal
from examples.demo.services_act import BROKERS
from examples.demo.services_journal import Heard, Taken, read_services_journal
from tests.source_tree import ROOT

DEADLINE_S = 120.0
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(DEADLINE_S + 60)]

NODE = re.compile(
    r"(?P<name>alpha|beta|desk|gate|(?:core|sat|quotes)-\d) +process (?P<pid>\d+)"
    r" +(?P<host>[\d.]+):(?P<port>\d+)"
)
# Spark takes long to start, also on a machine with nothing else to do.
SPARK_DEADLINE_S = 480.0
SHORT = ("--seconds", "3", "--mail-seconds", "3", "--cells-seconds", "3")
FLOWS = ("--services-seconds", "3", "--flows-seconds", "3")
WITH_SPARK = (*SHORT, *FLOWS, "--clearing-seconds", "2")
QUICK = (*WITH_SPARK, "--no-spark")
WITHOUT_PACKAGE = """
import sys
sys.modules["pyspark"] = None
from examples.demo.__main__ import main
sys.exit(main())
"""


class Demo:
    """A demo under way, in a process group of its own and with a place for temporary files."""

    def __init__(self, directory: Path, *arguments: str, has_package: bool = True) -> None:
        self.directory = directory
        program = ("-m", "examples.demo") if has_package else ("-c", WITHOUT_PACKAGE)
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(directory)},
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

    def finish(self, timeout_s: float = DEADLINE_S) -> str:
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


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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


def test_the_demo_adds_up_without_spark(start_demo: StartDemo) -> None:
    demo = start_demo(*WITH_SPARK, has_package=False)
    output = demo.finish()

    assert demo.process.returncode == 0, output
    made, answered, failed = numbers(r"ok +made (N) = answered (N) \+ failed (N)", output)
    assert made == answered + failed
    assert answered > failed > 0
    assert "beta was killed" in output
    assert "ConnectionClosed" in output
    assert "answered after a retry" in output
    assert re.search(r"\n6\. Clearing on Spark\nLeft out: .*postroad\[spark\].*\n", output)
    assert output.endswith("\nIt all adds up.\n")
    assert "\x1b" not in output
    assert demo.is_cleaned_up()


@pytest.mark.timeout(SPARK_DEADLINE_S + 60)
def test_payments_are_cleared_once_although_spark_is_killed(start_demo: StartDemo) -> None:
    demo = start_demo(*WITH_SPARK)
    output = demo.finish(SPARK_DEADLINE_S)

    assert demo.process.returncode == 0, output
    assert "beta was killed (SIGKILL), and Spark's JVM went with it" in output
    posted, cleared, dead, *wrong = numbers(
        r"ok +payments posted (N) = cleared (N) \+ dead (N): lost (N), duplicates (N)\n", output
    )
    assert (posted, wrong) == (cleared + dead, [0, 0])
    assert numbers(r"ok +bad payments posted (N) = dead letters (N), each", output) == [dead, dead]
    (before,) = numbers(r"cleared before the kill +(N)", output)
    (after,) = numbers(r"cleared after the kill +(N)", output)
    assert before > 0 < after
    assert numbers(r"totals of (N) banks, kept in windows: [\d,.]+, wrong (N)", output) == [8, 0]
    assert "Refused: a payment of nothing" in output
    assert output.endswith("\nIt all adds up.\n")
    assert demo.is_cleaned_up()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demo that has ended well, with its files in a directory that was asked for."""
    directory = tmp_path_factory.mktemp("demo") / "kept" / "here"
    demo = Demo(directory.parent.parent, *QUICK, "--directory", str(directory))
    demo.directory = directory
    try:
        output = demo.finish()
        assert demo.process.returncode == 0, output
        assert demo.are_nodes_gone()
        yield demo
    finally:
        demo.process.kill()
        demo.process.communicate()


def test_no_mail_is_lost_or_handled_twice(kept: Demo) -> None:
    output, directory = kept.output, kept.directory
    assert "beta was killed (SIGKILL) in the middle of its work" in output
    assert "alpha was killed (SIGKILL) in the middle of its work" in output
    posted, *wrong = numbers(
        r"ok +payments posted (N) = handled N: lost (N), duplicates (N), out of order (N)\n", output
    )
    assert wrong == [0, 0, 0]
    assert numbers(r"ok +receipts posted (N) = handled (N): lost 0", output) == [posted, posted]
    assert numbers(r"ok +beta was away for [\d.]+ s: (N) payments posted", output) != [0]
    assert count_rows(directory / "alpha.db", "payments") == posted
    assert count_rows(directory / "beta.db", "bookings") == posted
    assert count_rows(directory / "alpha.db", "receipts") == posted


def test_cells_lose_nothing_but_with_a_killed_core(kept: Demo) -> None:
    output, directory = kept.output, kept.directory
    assert "core-1 was killed (SIGKILL) in the middle of traffic" in output
    assert "core-2 is told to stop, and says goodbye" in output
    made, answered, failed = numbers(r"ok +calls made (N) = answered (N) \+ failed (N);", output)
    assert made == answered + failed
    handled, replied, unanswered = numbers(
        r"ok +handled (N) = answered (N) \+ (N) of N attempts with unknown outcome; twice 0\n",
        output,
    )
    assert (replied, handled) == (answered, answered + unanswered)
    assert sum(numbers(r"handled by sat-1 +(N) [^\n]+\n +handled by sat-2 +(N)", output)) == handled
    published, copies, lost = numbers(
        r"ok +published (N) x 3 subscribers = copies (N) \+ (N) lost with the core; missing 0,"
        r" twice 0\n",
        output,
    )
    assert 3 * published == copies + lost
    met, *others = numbers(
        r"ok +attempts that met an error (N), for another reason than the kill (N)\n", output
    )
    assert met >= failed
    assert others == [0]
    assert numbers(r"ok +core-1 was away for .*, (N) calls answered meanwhile", output) != [0]
    assert numbers(r"ok +core-2 was away for .* in good order: N calls .*(N)\n", output) == [0]
    entries = [it for name in SATELLITES for it in read_journal(directory / f"{name}.journal")]
    assert sum(isinstance(it, Handled) for it in entries) == handled
    assert sum(isinstance(it, Copied) for it in entries) == copies


def test_services_lose_nothing_but_with_a_killed_node(kept: Demo) -> None:
    output, directory = kept.output, kept.directory
    assert "quotes-1 was killed (SIGKILL) in the middle of traffic" in output
    made, filled, failed = numbers(r"ok +orders made (N) = filled (N) \+ failed (N), each", output)
    assert made == filled + failed
    calls, came = numbers(r"ok +desk\.buy: calls (N) = came to the desk (N); twice 0\n", output)
    assert calls == came >= made
    priced, answered, unanswered = numbers(
        r"ok +quotes\.price: came to both nodes (N) = answered (N) \+ (N) of N that failed;", output
    )
    assert priced == answered + unanswered
    emitted, heard, lost = numbers(
        r"ok +events emitted (N) = heard by group quotes (N) \+ (N) lost with the node;", output
    )
    assert emitted == heard + lost
    assert numbers(r"ok +events emitted (N) = heard by group audit (N);", output) == [emitted] * 2
    assert numbers(r"ok +streams N = whole (N) \+ .* SHA-256 differs (N)\n", output)[1] == 0
    assert numbers(r"met an error N, for another reason than the kill (N)\n", output)[-1] == 0
    entries = {name: read_services_journal(directory / f"{name}.journal") for name in BROKERS}
    assert sum(isinstance(it, Heard) for it in entries["gate"]) == emitted
    assert sum(isinstance(it, Taken) for it in entries["desk"]) == came


def test_a_node_of_moleculer_is_met(kept: Demo) -> None:
    left_out = re.search(r"Left out: a node of Moleculer over NATS: (.*)", kept.output)
    if left_out is not None:
        pytest.skip(left_out[1])
    assert re.search(r"beside one of Moleculer [\d.]+ on Node.js [\d.]+, over NATS\n", kept.output)
    for names in ("Postroad called Moleculer", "Moleculer called Postroad"):
        called, right, emitted, heard = numbers(
            rf"ok +{names} (N) = right results (N); events emitted (N) = heard (N)\n", kept.output
        )
        assert (called, emitted) == (right, heard)


def test_banks_agree_on_every_payment_although_both_are_killed(kept: Demo) -> None:
    output, directory = kept.output, kept.directory
    assert "beta was killed (SIGKILL) in the middle of its payments" in output
    assert "alpha was killed (SIGKILL) in the middle of its payments" in output
    begun, settled, refused, *wrong = numbers(
        r"ok +payments begun (N) = settled (N) \+ refused (N): lost (N), duplicates (N)\n", output
    )
    assert (begun, wrong) == (settled + refused, [0, 0])
    assert settled > refused > 0
    assert numbers(
        r"ok +settled by one bank (N) = credited by the other (N): known to one only (N),"
        r" duplicates (N)\n",
        output,
    ) == [settled, settled, 0, 0]
    assert re.search(r"ok +taken [\d,.]+ = taken in [\d,.]+ \+ given back [\d,.]+\n", output)
    assert numbers(r"ok +flows (N) = 2 x N payments; .* parked (N)\n", output) == [2 * begun, 0]
    stores = [directory / f"{name}.bank.db" for name in ("alpha", "beta")]
    assert sum(count_rows(store, "debits") for store in stores) == begun
    assert sum(count_rows(store, "credits") for store in stores) == settled
    assert sum(sum_cents(store) for store in stores) == 0


def sum_cents(path: Path) -> int:
    """What a bank has more than before."""
    with closing(sqlite3.connect(path)) as connection:
        sums = [
            connection.execute(f"SELECT coalesce(sum(cents), 0) FROM {table}").fetchone()[0]
            for table in ("credits", "refunds", "debits")
        ]
    return int(sums[0] + sums[1] - sums[2])


def numbers(pattern: str, output: str) -> list[int]:
    """The groups of a pattern in which N stands for a number; fails if it is not there."""
    found = re.search(pattern.replace("N", r"[\d,]+"), output)
    assert found, output
    return [int(text.replace(",", "")) for text in found.groups()]


def count_rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        ((count,),) = connection.execute(f"SELECT count(*) FROM {table}")
    return int(count)


@pytest.mark.parametrize(
    "moment",
    [
        "Postroad demo",
        "answers/s",
        "beta was killed",
        "2. Durable mail",
        "payments/s",
        "alpha was killed",
        "3. Cells",
        "core-1 was killed",
        "core-2 is told to stop",
        "4. Services",
        "quotes-1 was killed",
        "quotes-1 listens",
        "prices from it",
        "5. Flows",
        "beta was killed (SIGKILL) in the middle of its payments",
        "alpha is back, and its flows",
        "acknowledged/s",
    ],
)
def test_ctrl_c_ends_it_cleanly(start_demo: StartDemo, moment: str) -> None:
    demo = start_demo(*WITH_SPARK)
    demo.read_until(moment)
    # As a terminal does it: to the whole process group, and people press it more than once.
    os.killpg(demo.process.pid, signal.SIGINT)
    os.killpg(demo.process.pid, signal.SIGINT)
    output = demo.finish()

    assert demo.process.returncode == 128 + signal.SIGINT
    assert "Stopped by SIGINT" in output
    assert demo.is_cleaned_up()
    for node in NODE.finditer(output):
        with pytest.raises(ProcessLookupError):
            os.kill(int(node["pid"]), 0)


def test_being_terminated_is_as_clean(start_demo: StartDemo) -> None:
    demo = start_demo()
    demo.read_until("answers/s")
    demo.process.terminate()
    demo.finish()
    assert demo.process.returncode == 128 + signal.SIGTERM
    assert demo.is_cleaned_up()


def test_nodes_do_not_outlive_a_killed_demo(start_demo: StartDemo) -> None:
    demo = start_demo()
    demo.read_until("answers/s")
    assert not demo.are_nodes_gone()
    demo.process.kill()
    wait_for(demo.are_nodes_gone)


def test_a_reader_that_goes_away_ends_it_quietly(start_demo: StartDemo) -> None:
    demo = start_demo()
    demo.read_until("answers/s")
    assert demo.process.stdout is not None
    demo.process.stdout.close()
    _, errors = demo.process.communicate(timeout=DEADLINE_S)
    assert (demo.process.returncode, errors) == (1, "")
    assert demo.is_cleaned_up()


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("answers/s", "alpha"),
        ("payments/s", "beta"),
        ("published/s", "core-2"),
        ("orders/s", "quotes-2"),
        ("begun/s", "alpha"),
    ],
)
def test_a_node_that_ends_by_itself_is_a_failure_with_a_reason(
    start_demo: StartDemo, heading: str, name: str
) -> None:
    demo = start_demo(*SHORT)
    demo.read_until(heading)
    pids = {node["name"]: int(node["pid"]) for node in NODE.finditer(demo.output)}
    os.kill(pids[name], signal.SIGKILL)
    _, errors = demo.process.communicate(timeout=DEADLINE_S)
    assert errors == f"The demo failed: {name} ended with status -9\n"
    assert demo.process.returncode == 1
    assert demo.is_cleaned_up()


@pytest.mark.parametrize("has_color", [True, False])
def test_on_a_terminal_the_table_is_redrawn(tmp_path: Path, has_color: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm"}
    environment["NO_COLOR"] = "" if has_color else "1"
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", *QUICK],
        cwd=ROOT,
        env=environment,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    output = read_terminal(ours)

    assert process.wait(DEADLINE_S) == 0, output
    assert output.count("answers/s") > 5
    assert output.count("payments/s") > 5
    assert output.count("published/s") > 5
    assert output.count("orders/s") > 5
    assert output.count("begun/s") > 5
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") == 5
    assert output.index("\x1b[?25l") < output.index("\x1b[?25h") < output.index("Reconciliation")
    assert ("\x1b[32m" in output) is has_color
    assert "It all adds up." in output


def read_terminal(descriptor: int) -> str:
    """Everything until the other side closes, which Linux reports as an error."""
    data = b""
    try:
        while piece := os.read(descriptor, 65_536):
            data += piece
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return data.decode()


def test_help_explains_the_demo() -> None:
    output = run_module("examples.demo", "--help")
    assert "SIGKILL" in output
    assert "reconciliation" in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--seconds", "1"),
        ("--callers", "none"),
        ("--seconds", "nan"),
        ("--mail-seconds", "0"),
        ("--cells-seconds", "2"),
        ("--services-seconds", "2"),
        ("--flows-seconds", "2"),
        ("--clearing-seconds", "1"),
        ("--directory", "examples"),
    ],
)
def test_bad_options_are_refused(arguments: tuple[str, str]) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "examples.demo", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert f"argument {arguments[0]}: " in process.stderr


def test_echo_example() -> None:
    assert run_module("examples.echo") == (
        "beta was asked by alpha: Is anybody there?\nalpha got the reply: Is anybody there?\n"
    )


def test_mail_example() -> None:
    assert run_module("examples.mail") == (
        "alpha posted an order, and nobody is there yet\n"
        "beta took an order from alpha: tea\n"
        "alpha got the reply: your tea\n"
    )


def test_cells_example() -> None:
    assert run_module("examples.cells") == (
        "the kitchen took an order of System@bar: tea\n"
        "the bar got the reply: your tea\n"
        "the board at the bar shows: tea is out\n"
    )


def test_services_example() -> None:
    assert run_module("examples.services") == (
        "the kitchen brews tea for Ada\n"
        "the bell rings: drink.ready, tea\n"
        "the guest has the ordered 1 x tea\n"
        "on the menu: ['tea', 'coffee']\n"
    )


def run_module(name: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", name, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    ).stdout
