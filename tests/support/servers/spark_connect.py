"""A real Spark Connect server on the loopback interface, from the pyspark wheel."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postroad.pipeline.spark import SparkConfig, configuration, find_java_home
from tests.support.servers.process import ServerProcess, free_port
from tests.support.servers.spark import POLL_S, QUICK_JAVA, START_S
from tests.support.servers.spark_classes import spark_home

_HOST = "127.0.0.1"
_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
# What `spark-submit` has its own options for.
_NOT_CONFIGURED = ("spark.app.name", "spark.master")


@contextmanager
def spark_connect(directory: Path) -> Iterator[str]:
    """A running server with the configuration of a session of ours; gives its URL."""
    settings = SparkConfig(driver_memory="512m", java_options=QUICK_JAVA)
    port = free_port()
    conf = configuration(settings) | {
        "spark.connect.grpc.binding.address": _HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(directory),
    }
    options = [f"--conf={name}={it}" for name, it in conf.items() if name not in _NOT_CONFIGURED]
    home = spark_home()
    command = [str(home / "bin" / "spark-submit"), "--class", _MAIN, "--master", settings.master]
    environment = os.environ | {
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": _HOST,
    }
    log = directory / "connect.log"
    with log.open("ab") as file:
        server = ServerProcess(
            [*command, *options, "spark-internal"],
            stdout=file,
            stderr=file,
            cwd=directory,
            env=environment,
        )
    try:
        _wait(server, port, log)
        yield f"sc://{_HOST}:{port}"
    finally:
        server.stop()


def _wait(server: ServerProcess, port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert server.status is None, f"the server ended:\n{log.read_text()[-2000:]}"
        assert time.monotonic() < deadline, f"no server within {START_S:g} s"
        try:
            socket.create_connection((_HOST, port), timeout=1).close()
            return
        except OSError:
            time.sleep(POLL_S)
