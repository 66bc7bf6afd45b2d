"""`postroad node start` as a process: it runs, it ends in good order, it says what is wrong."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sqlite3
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from postroad.cli import main
from tests.support.cli.commands import Command
from tests.support.deadlines import DEADLINE_S
from tests.support.node.configs import AT_ONCE_FLAGS

pytestmark = pytest.mark.timeout(600)

APP = """
from postroad.durable import Message, Transaction
from postroad.node import Node, consumer
from contextlib import asynccontextmanager

@asynccontextmanager
async def lifespan(node):
    async with node.queues.transaction() as tx:
        await tx.execute("CREATE TABLE IF NOT EXISTS heard (body TEXT)")
    await node.queues.send("orders", b"tea")
    yield
    print("lifespan ends", flush=True)

@consumer("orders")
async def take(message: Message, tx: Transaction) -> None:
    await tx.execute("INSERT INTO heard VALUES (?)", (message.body.decode(),))
    print("heard", message.body.decode(), flush=True)
"""
START = ("node", "start", "--set=admin.bind=127.0.0.1:0", *AT_ONCE_FLAGS)
SLOW_STEP = """
import asyncio
from contextlib import asynccontextmanager
from postroad.flows import flow

async def work():
    print("works", flush=True)
    await asyncio.sleep(1000)

@flow
async def wait(ctx):
    await ctx.step(work)

@asynccontextmanager
async def lifespan(node):
    await node.flows.start_flow(wait)
    yield
"""


CLOCK = """
import asyncio
from contextlib import asynccontextmanager

async def tick(node):
    while True:
        await node.queues.send("ticks", b"", to="nobody")
        await asyncio.sleep(0.05)

@asynccontextmanager
async def lifespan(node):
    task = asyncio.create_task(tick(node))
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_runs_until_a_signal(directory: Path, number: signal.Signals) -> None:
    with Command(directory, *START, "--app", "app.py", "--name", "alpha") as node:
        node.wait_for(r"alpha of cluster postroad runs at 127\.0\.0\.1:\d+; the dashboard is at")
        node.wait_for("heard tea")
        assert node.stop(number) == 0
        assert "lifespan ends" in node.output
        assert "Traceback" not in node.output
    rows = sqlite3.connect(directory / ".postroad" / "alpha.db").execute("SELECT * FROM heard")
    assert rows.fetchall() == [("tea",)]


def test_a_file_the_environment_and_flags(directory: Path) -> None:
    (directory / "postroad.toml").write_text(
        '[node]\nname = "a"\ncluster = "b"\napp = "app.py"\n[log]\nformat = "json"\n'
    )
    with Command(directory, *START, "--name", "c", POSTROAD_NODE_CLUSTER="d") as node:
        node.wait_for(r'"logger":"postroad\.node\.node","message":"c runs at [^"]* cluster \'d\'"')
        node.wait_for("heard tea")
        assert node.stop() == 0
        lines = [it for it in node.output.splitlines() if it not in ("heard tea", "lifespan ends")]
        assert all(json.loads(it)["level"] for it in lines)


def test_it_ends_with_its_input(directory: Path) -> None:
    reading, writing = os.pipe()
    arguments = (*START, "--app", "app.py", "--until-eof")
    with (
        open(reading, "rb") as stdin,
        open(writing, "wb") as other_end,
        Command(directory, *arguments, stdin=stdin) as node,
    ):
        node.wait_for("heard tea")
        node.wait_for("runs at")
        other_end.close()
        assert node.end() == 0
        assert "lifespan ends" in node.output


Failure = Callable[..., str]


@pytest.fixture
def failure(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Failure]:
    """Has a node not start, in this process, which is then as before; what the user is told."""
    monkeypatch.chdir(directory)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    kept = (root.handlers[:], root.level, uvicorn.level)

    def fail(*arguments: str) -> str:
        sys.modules.pop("app", None)
        status = main.run([*START, *arguments])
        output = "".join(capfd.readouterr())
        assert status in (1, 2), output
        assert "runs at" not in output
        assert "lifespan ends" not in output
        if "--debug" in arguments:
            return output
        assert "Traceback" not in output
        (message,) = [line for line in output.splitlines() if line.startswith("postroad: ")]
        return message

    yield fail
    root.handlers[:], root.level, uvicorn.level = kept
    logging.captureWarnings(False)
    sys.modules.pop("app", None)


def test_a_port_that_is_taken_is_named_before_anything_begins(failure: Failure) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        message = failure("--set", f"node.bind={taken}")
        expected = f"postroad: cannot listen on {taken}: another process has that port"
        assert message.startswith(expected)
        assert "--set node.bind=HOST:PORT" in message
        # Before others know of the node, or its program has begun anything.
        message = failure("--app", "app.py", "--set", f"admin.bind={taken}")
        assert taken in message
        assert "admin.bind" in message


def test_a_store_that_another_process_has_is_refused(directory: Path, failure: Failure) -> None:
    with Command(directory, *START, "--name", "alpha") as node:
        node.wait_for("of cluster postroad runs at")
        message = failure("--name", "alpha")
        assert f"is used by process {node.process.pid} as its node; stop that one first" in message
        assert node.stop() == 0


def test_node_whose_store_lost_commits_ends_as_a_failure(directory: Path) -> None:
    (directory / "app.py").write_text(CLOCK)
    with Command(directory, *START, "--app", "app.py", "--name", "alpha") as node:
        node.wait_for("alpha of cluster postroad runs")
        with closing(sqlite3.connect(directory / ".postroad" / "alpha.db")) as store:
            store.execute("UPDATE postroad_meta SET value = '0 x' WHERE name = 'commits.node'")
            store.commit()
        assert node.end() == 1
        assert "commits behind what this node committed" in node.output
        assert "start the node again" in node.output
        assert "Traceback" not in node.output


def test_a_configuration_that_cannot_be_used_is_told(directory: Path, failure: Failure) -> None:
    tls = [f"--set=tls.{name}=none.pem" for name in ("certificate", "key", "ca")]
    for arguments, words in (
        (tls, "TLS certificate none.pem with key none.pem cannot be used"),
        (["--set=node.data=app.py/data"], "postroad: app.py/data: Not a directory; node.data says"),
        (["--set=node.names=a"], "did you mean node.name?"),
    ):
        assert words in failure(*arguments), words
    (directory / "postroad.toml").write_text("[node]\nname = \n")
    assert "postroad.toml is not TOML" in failure()


def test_a_program_that_fails_is_told_with_its_line(directory: Path, failure: Failure) -> None:
    fails = APP.replace("    yield\n", "    raise ValueError('no tea')\n    yield\n")
    (directory / "app.py").write_text(fails)
    message = failure("--app", "app.py")
    assert message == "postroad: app.py:11: ValueError: no tea (--debug shows more)"
    (directory / "app.py").write_text("x = 1\ndef f(:\n")
    message = failure("--app", "app.py")
    assert message == "postroad: app.py:2: SyntaxError: invalid syntax"
    assert "Traceback" in failure("--app", "app.py", "--debug")


def test_a_second_signal_ends_a_node_that_waits(directory: Path) -> None:
    (directory / "app.py").write_text(SLOW_STEP)
    with Command(directory, *START, "--app", "app.py", "--drain-s", "1000") as node:
        node.wait_for("works")
        node.wait_for("of cluster postroad runs at")
        node.process.send_signal(signal.SIGTERM)
        node.wait_for("stops; what runs may take 1000 s to end")
        assert node.stop(signal.SIGINT) == 0
        assert "stops at once" in node.output


@pytest.mark.slow  # Two processes, twice.
def test_two_nodes_that_start_at_once_do_not_share_an_address(tmp_path: Path) -> None:
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as server:
            bind = f"127.0.0.1:{server.getsockname()[1]}"
        start = ("node", "start", f"--set=admin.bind={bind}", *AT_ONCE_FLAGS)
        with (
            Command(tmp_path, *start, "--name=one") as one,
            Command(tmp_path, *start, "--name=two") as two,
        ):
            codes: list[int | None] = [None, None]
            deadline = time.monotonic() + DEADLINE_S
            while codes == [None, None]:
                codes = [it.process.poll() for it in (one, two)]
                assert time.monotonic() < deadline, one.output + two.output
                time.sleep(0.02)
            loser, winner = (one, two) if codes[1] is None else (two, one)
            assert codes.count(None) == 1, one.output + two.output
            assert loser.end() == 1
            assert f"admin.bind '{bind}' cannot be used: Address already in use" in loser.output
            winner.wait_for(rf"is administered at http://{bind}")
            assert winner.stop() == 0
