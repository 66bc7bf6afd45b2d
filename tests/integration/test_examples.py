"""The examples, run the way a reader of the README runs them."""

import re
import subprocess
import sys

import pytest

from tests.support.deadlines import DEADLINE_S
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.slow


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


def test_worker_example() -> None:
    assert run_module("examples.worker") == (
        "cat.png: resized at attempt 1\n"
        "huge.png: out of memory, it will be tried again\n"
        "huge.png: resized at attempt 2\n"
        "dead letter: notes.txt (Reject: notes.txt is not a picture)\n"
    )


def test_flow_example() -> None:
    assert run_module("examples.flow") == (
        "the node runs:\n"
        "  the code of the flow runs\n"
        "  booking: train to Paris\n"
        "the node is gone; it runs again:\n"
        "  the code of the flow runs\n"
        "  booking: room in Paris\n"
        "train to Paris booked, room in Paris booked, 120 paid\n"
    )


def test_pipeline_example() -> None:
    assert run_module("examples.pipeline") == (
        "report: [{'item': 'tea', 'count': 2, 'amount': 8},"
        " {'item': 'cake', 'count': 3, 'amount': 18}]\n"
        "large: [{'item': 'cake', 'count': 3, 'amount': 18}]\n"
        "3 sales = 2 acknowledged + 1 dead\n"
    )


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]", (ROOT / "examples" / "README.md").read_text(), re.M)
    files = [path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__"]
    assert sorted(listed) == sorted([*files, "clearing"])


def run_module(name: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", name, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    ).stdout
