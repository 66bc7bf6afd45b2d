"""Nodes as processes, started by the command that people start them with, and their API."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from postroad.admin.client import Client, find_nodes
from tests.support.servers.process import end_with_us

REPOSITORY = Path(__file__).resolve().parents[2]
TOKEN, READ_TOKEN = "token-that-allows-everything", "token-that-allows-to-look"
CLUSTER = "market"
START_S = 90.0
# At 4 ms each they last for longer than any test looks.
NUMBERS, WRONG = 60_000, (3, 33)

JOB = """
name = "sums"
doc = "Adds numbers."
workflow = [["numbers", "add"], ["add", "sums"]]

[[catalog]]
name = "numbers"
type = "input"
connector = "jsonl"
options = { path = "numbers/*.jsonl" }
batch_size = 50
retry = { attempts = 2, first_s = 0.01 }

[[catalog]]
name = "add"
type = "function"
fn = "tests.browser.sums:add"

[[catalog]]
name = "sums"
type = "output"
connector = "jsonl"
options = { path = "added" }
"""


class RunningNode(NamedTuple):
    """A node that runs, and how it is reached."""

    name: str
    url: str
    process: asyncio.subprocess.Process

    async def call(self, operation: str, **params: Any) -> Any:
        """Have an operation done, without the browser."""

        def ask() -> Any:
            with Client(self.url, TOKEN) as client:
                return client.call(operation, params)

        return await asyncio.to_thread(ask)

    async def begin(self, flow: str, **arguments: Any) -> str:
        """Begin a flow; its id."""
        begun = await self.call("flow.begin", flow=flow, arguments=arguments)
        return str(begun["id"])

    async def flow_in(self, id: str, status: str) -> dict[str, Any]:
        """Wait until a flow is in a status."""
        while True:
            found: dict[str, Any] = await self.call("flow.show", id=id)
            if found["status"] == status:
                return found
            await asyncio.sleep(0.05)

    async def dead_of(self, count: int) -> None:
        """Wait until there are so many dead letters."""
        found = 0
        while found < count:
            found = (await self.call("dlq.count"))["count"]
            await asyncio.sleep(0.05)


@asynccontextmanager
async def running_node(
    name: str, directory: Path, settings: Mapping[str, str], token: str = TOKEN
) -> AsyncIterator[RunningNode]:
    """Run a node in a directory of its own; a setting that is empty is not made."""
    said = {
        "node.name": name,
        "node.cluster": CLUSTER,
        "node.app": str(Path(__file__).with_name("shop.py")),
        "node.data": ".",
        "admin.bind": "127.0.0.1:0",
        "admin.token": token,
        "admin.read_token": READ_TOKEN,
        "tracing.enabled": "true",
        **settings,
    }
    options = [word for key, value in said.items() if value for word in ("--set", f"{key}={value}")]
    with (directory / "node.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "postroad", "node", "start", "--drain-s", "0.1", *options),
            cwd=directory,
            env={**outside(), "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}"},
            stdout=log,
            stderr=log,
        )
    guard = end_with_us(process.pid)
    try:
        url = await _wait_for(process, directory, name, token)
        yield RunningNode(name, url, process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
        guard.kill()
        guard.communicate()


def outside() -> dict[str, str]:
    """The environment, without what is meant for the tests."""
    return {name: it for name, it in os.environ.items() if not name.startswith("POSTROAD_")}


async def _wait_for(
    process: asyncio.subprocess.Process, directory: Path, name: str, token: str
) -> str:
    """Where the node serves its API, as soon as it does."""
    async with asyncio.timeout(START_S):
        while process.returncode is None:
            for card in find_nodes(directory):
                if card.name == name and await _is_ready(card.url, token):
                    return card.url
            await asyncio.sleep(0.05)
    raise AssertionError(f"{name} did not start: {(directory / 'node.log').read_text()}")


async def _is_ready(url: str, token: str) -> bool:
    def ask() -> bool:
        with Client(url, token) as client:
            return bool(client.call("node.show", is_read=True)["state"] == "running")

    return await asyncio.to_thread(ask)


def write_job(directory: Path) -> Path:
    """A job with a few numbers that cannot be added."""
    (directory / "numbers").mkdir(parents=True)
    with (directory / "numbers" / "first.jsonl").open("w") as file:
        for number in range(NUMBERS):
            other = '"x"' if number in WRONG else number
            file.write(f'{{"a": {number}, "b": {other}}}\n')
    path = directory / "sums.toml"
    path.write_text(JOB)
    return path
