"""The nodes of the story, each a `postroad node start`: configured, started, asked, killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from examples.clearing.house import SPARK_PLACE
from examples.clearing.job import JOB_FILE
from examples.clearing.payments import BANKS, HOUSE
from postroad import PostroadError
from postroad.admin import create_root, issue
from postroad.admin.client import Client

CORES = ("core-1", "core-2")
NODES = (*CORES, *BANKS, HOUSE)
CLUSTER = "clearing"
REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = {HOUSE: "house.py", **dict.fromkeys(BANKS, "bank.py")}

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 5.0
_LOOK_S = 0.1
_LOG_LINES = 15

# Short pauses for whoever is away, so that nobody need wait for its return.
CONFIG = """\
[node]
name = "{name}"
cluster = "{cluster}"
bind = "127.0.0.1:{port}"
data = "{data}"
{app}
[tls]
certificate = "{certs}/{name}.pem"
key = "{certs}/{name}.key"
ca = "{certs}/ca.pem"

[cluster]
seeds = [{seeds}]

[cells]
role = "{role}"

[queues.tuning]
bridge_initial_delay_s = 0.05
bridge_max_delay_s = 0.2

[admin]
bind = "127.0.0.1:{admin}"
remote = "change"

[log]
level = "warning"
{pipeline}"""
# Spark's JVM lives for seconds: to start is most of what it does.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


class DemoFailed(Exception):
    """The demo cannot go on; the text says why."""


class NodeProcess:
    """A node in a process of its own."""

    def __init__(self, name: str, directory: Path, port: int, admin_port: int) -> None:
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://127.0.0.1:{admin_port}"
        self.doing = "starts"
        self.killed_s = self.returned_s = 0.0
        """When it was killed, and when it was back: on the clock of `time.monotonic`."""
        self._directory = directory
        self._log = directory / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Of its process, if it has one."""
        return None if self._process is None else self._process.pid

    @property
    def token(self) -> str:
        """What opens its API; there once the node has been started."""
        return (self._directory / f"{self.name}.token").read_text().strip()

    async def start(self, environment: Mapping[str, str]) -> None:
        """Start it, and wait until it is ready."""
        config = self._directory / f"{self.name}.toml"
        command = ("-m", "postroad", "node", "start", "--until-eof", "--config", str(config))
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                # Its end is theirs: they do not outlive the story, whatever becomes of it.
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                env={**os.environ, "TMPDIR": str(self._directory), **environment},
                # Ctrl-C is for the story alone, which ends them; and so is what they started.
                start_new_session=True,
            )
        await self._wait_ready()
        self.doing = "runs"

    async def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                if (await self.ask("node.health"))["is_ready"]:
                    return
            except (PostroadError, FileNotFoundError):
                # It does not listen yet.
                await asyncio.sleep(_LOOK_S)
            self.check()
            if time.monotonic() > deadline_s:
                raise DemoFailed(
                    f"{self.name} was not ready in {START_TIMEOUT_S:g} s{self._tail()}"
                )

    def check(self) -> None:
        """Raise DemoFailed if it has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            status = self._process.returncode
            raise DemoFailed(f"{self.name} ended with status {status}{self._tail()}")

    async def ask(self, operation: str, params: Mapping[str, Any] | None = None) -> Any:
        """Have an operation done by its API."""
        return await asyncio.to_thread(self._ask, operation, dict(params or {}))

    def _ask(self, operation: str, params: dict[str, Any]) -> Any:
        with Client(self.url, self.token, timeout_s=ASK_TIMEOUT_S) as client:
            return client.call(operation, params)

    async def call(self, action: str) -> Any:
        """Call an action of its own services."""
        found = await self.ask("service.call", {"action": action, "node_id": self.name})
        return found["result"]

    async def kill(self) -> None:
        """End it without a warning, as a crash would."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        self.killed_s = time.monotonic()
        self._process = None
        self.doing = "killed"

    async def stop(self) -> None:
        """Let it finish what it is doing."""
        if self._process is None:
            return
        self.doing = "stops"
        self._process.send_signal(signal.SIGTERM)
        try:
            status = await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            raise DemoFailed(f"{self.name} did not stop in {STOP_TIMEOUT_S:g} s") from None
        self._process = None
        self.doing = "stopped"
        if status != 0:
            raise DemoFailed(f"{self.name} stopped with status {status}{self._tail()}")

    async def clear(self) -> None:
        """End it and all that it has started, at once."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await self._process.wait()

    def _tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "".join(f"\n  {line}" for line in lines[-_LOG_LINES:])

    def __str__(self) -> str:
        return f"  {self.name:<8} process {self.pid or '-':<8} {self.address:<16} {self.doing}"


class Stage:
    """All nodes, with their files in a directory."""

    def __init__(self, directory: Path, *, uses_spark: bool) -> None:
        self.directory = directory
        self._uses_spark = uses_spark
        ports = _free_ports(2 * len(NODES))
        self.nodes = {
            name: NodeProcess(name, directory, ports[2 * index], ports[2 * index + 1])
            for index, name in enumerate(NODES)
        }

    def prepare(self) -> None:
        """Make certificates, and write what each node is configured by."""
        create_root(self.directory)
        seeds = ", ".join(f'"{self.nodes[it].address}"' for it in CORES)
        for name, node in self.nodes.items():
            issue(self.directory, name)
            program = PROGRAMS.get(name)
            path = Path(__file__).with_name(program) if program else None
            text = CONFIG.format(
                name=name,
                cluster=CLUSTER,
                port=node.address.rpartition(":")[2],
                data=self.directory,
                app=f'app = "{path}"\n' if path else "",
                certs=self.directory,
                seeds=seeds,
                role="core" if name in CORES else "satellite",
                admin=node.url.rpartition(":")[2],
                pipeline=self._pipeline() if name == HOUSE else "",
            )
            (self.directory / f"{name}.toml").write_text(text)

    def _pipeline(self) -> str:
        """The job of the house, and how it runs."""
        job = f'path = "{JOB_FILE}"'
        if self._uses_spark:
            conf = {
                "spark.driver.memory": "512m",
                "spark.local.dir": str(self._spark_place),
                "spark.python.unix.domain.socket.dir": ".",
                # The house has another working directory by then.
                "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
            }
            entries = ", ".join(f"{json.dumps(key)} = {json.dumps(it)}" for key, it in conf.items())
            job += f', on = "spark", conf = {{ {entries} }}'
        return f"\n[pipeline]\njobs = [{{ {job} }}]\n"

    @property
    def _spark_place(self) -> Path:
        return self.directory / "spark"

    async def start(self, *names: str) -> None:
        """Start nodes, all at once."""
        environment = {}
        if self._uses_spark:
            self._spark_place.mkdir(exist_ok=True)
            environment = {
                SPARK_PLACE: str(self._spark_place),
                "SPARK_SUBMIT_OPTS": f'{JAVA_OPTIONS} "-Djava.io.tmpdir={self._spark_place}"',
            }
        await asyncio.gather(*(self.nodes[name].start(environment) for name in names))

    async def restart(self, name: str) -> None:
        """Start a node again that was killed."""
        self.nodes[name].doing = "starts again"
        await self.start(name)
        self.nodes[name].returned_s = time.monotonic()

    async def stop(self, names: Sequence[str] = tuple(reversed(NODES))) -> None:
        """Let nodes finish and end, one after the other."""
        for name in names:
            await self.nodes[name].stop()

    async def clear(self) -> None:
        """End whatever is left."""
        await asyncio.gather(*(node.clear() for node in self.nodes.values()))

    def check(self) -> None:
        """Raise DemoFailed if a node has ended by itself."""
        for node in self.nodes.values():
            node.check()

    def store(self, name: str) -> Path:
        """The database of a node."""
        return self.directory / f"{name}.db"


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for it in sockets:
            it.bind(("127.0.0.1", 0))
        return [it.getsockname()[1] for it in sockets]
