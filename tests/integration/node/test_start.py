"""`postroad node start` as a process: it runs, it ends in good order, it says what is wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
from pathlib import Path

import pytest

from tests.support.cli.commands import Command, run

pytestmark = pytest.mark.timeout(600)

APP = """
from postroad.durable import Message, Transaction
from postroad.node import Node, consumes
from contextlib import asynccontextmanager

@asynccontextmanager
async def lifespan(node):
    async with node.mail.transaction() as tx:
        await tx.execute("CREATE TABLE IF NOT EXISTS heard (body TEXT)")
    await node.mail.post(node.name, "orders", b"tea")
    yield
    print("lifespan ends", flush=True)

@consumes("orders")
async def take(message: Message, tx: Transaction) -> None:
    await tx.execute("INSERT INTO heard VALUES (?)", (message.body.decode(),))
    print("heard", message.body.decode(), flush=True)
"""
START = ("node", "start", "--set", "admin.bind=127.0.0.1:0")


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


def test_a_node_without_a_program(tmp_path: Path) -> None:
    with Command(tmp_path, *START) as node:
        node.wait_for("of cluster postroad runs at")
        assert node.stop() == 0


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


def failure(directory: Path, *arguments: str) -> str:
    status, output = run(directory, *START, *arguments)
    assert status in (1, 2), output
    assert "Traceback" not in output
    (told,) = [it for it in output.splitlines() if it.startswith("postroad: ")]
    return told


def test_a_taken_port(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        told = failure(directory, "--set", f"node.bind={taken}")
        assert told.startswith(f"postroad: cannot listen on {taken}: another process has that port")
        assert "--set node.bind=HOST:PORT" in told
        told = failure(directory, "--set", f"admin.bind={taken}")
        assert taken in told
        assert "admin.bind" in told
        # And before others know of the node, or its program has begun anything.
        _, output = run(directory, *START, "--app", "app.py", "--set", f"admin.bind={taken}")
        assert "runs at" not in output
        assert "lifespan ends" not in output


def test_a_store_that_another_process_has(directory: Path) -> None:
    with Command(directory, *START, "--name", "alpha") as node:
        node.wait_for("runs at")
        told = failure(directory, "--name", "alpha")
        assert f"is used by process {node.process.pid} as its node; stop that one first" in told


def test_certificates_that_cannot_be_used(directory: Path) -> None:
    tls = [f"--set=tls.{name}=none.pem" for name in ("certificate", "key", "trust")]
    assert "TLS certificate none.pem with key none.pem cannot be used" in failure(directory, *tls)


def test_a_directory_that_cannot_be_made(directory: Path) -> None:
    told = failure(directory, "--set", "node.data=app.py/data")
    assert told.startswith("postroad: app.py/data: Not a directory; node.data says where")


def test_a_wrong_configuration(directory: Path) -> None:
    assert "did you mean node.name?" in failure(directory, "--set", "node.names=a")
    (directory / "postroad.toml").write_text("[node]\nname = \n")
    assert "postroad.toml is not TOML" in failure(directory)


def test_a_program_with_a_mistake(directory: Path) -> None:
    (directory / "app.py").write_text("x = 1\ndef f(:\n")
    arguments = (*START, "--app", "app.py")
    assert failure(directory, "--app", "app.py") == (
        "postroad: app.py:2: SyntaxError: invalid syntax"
    )
    status, output = run(directory, *arguments, "--debug")
    assert status == 1
    assert "Traceback" in output


def test_a_program_whose_start_fails(directory: Path) -> None:
    fails = APP.replace("    yield\n", "    raise ValueError('no tea')\n    yield\n")
    (directory / "app.py").write_text(fails)
    told = failure(directory, "--app", "app.py")
    assert told == "postroad: app.py:11: ValueError: no tea (--debug shows more)"


def test_a_second_signal_ends_a_node_that_waits(directory: Path) -> None:
    slow = "    import asyncio; await asyncio.sleep(1000)\n"
    (directory / "app.py").write_text(APP + slow)
    with Command(directory, *START, "--app", "app.py", "--drain-s", "1000") as node:
        node.wait_for("heard tea")
        node.wait_for("runs at")
        node.process.send_signal(signal.SIGTERM)
        node.wait_for("stops; what runs may take 1000 s to end")
        assert node.stop(signal.SIGINT) == 0
        assert "stops at once" in node.output
