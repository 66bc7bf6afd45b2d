"""The examples, run the way a reader of the README runs them."""

import subprocess
import sys

import pytest

from tests.source_tree import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DEADLINE_S = 50.0


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
