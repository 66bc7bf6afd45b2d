"""Spark from the pyspark wheel: a session that tests share, and a real standalone cluster."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from postroad.pipeline.spark import SparkConfig, find_java_home, start_spark, stop_spark
from tests.support.servers.process import ServerProcess, free_port, send_signal
from tests.support.servers.spark_classes import CLASSES, spark_home
from tests.support.source_tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_S = 90.0
POLL_S = 0.05

_HOST = "127.0.0.1"
_PACKAGE = "org.apache.spark.deploy"
_LOG_LINES = 20
_STATUS_S = 5

ANY_QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Options for a JVM that lives for seconds: to start is most of what it does."""
# Silent where the file is of no use: what a JVM prints is looked at.
_SHARE = f" -XX:SharedArchiveFile={CLASSES} -Xlog:disable -Xlog:all=error:stderr"
QUICK_JAVA = ANY_QUICK_JAVA + (_SHARE if CLASSES.exists() else "")
"""The same for the Java of this machine."""


def quick_environment() -> dict[str, str]:
    """Variables for a program that starts Spark as its users do."""
    options = shlex.quote(f"spark.driver.defaultJavaOptions={QUICK_JAVA}")
    return {
        "PYSPARK_SUBMIT_ARGS": f"--conf {options} pyspark-shell",
        "SPARK_HOME": str(spark_home()),
    }


class Surroundings(NamedTuple):
    """What a session could change in its process."""

    variables: dict[str, str]
    interrupt_handler: object


def look_around() -> Surroundings:
    variables = {name: os.environ[name] for name in os.environ.keys() - {"PYTEST_CURRENT_TEST"}}
    return Surroundings(variables, signal.getsignal(signal.SIGINT))


POSTGRES_JAR = Path("/usr/share/java/postgresql.jar")
"""Of Debian's package libpostgresql-jdbc-java."""


class SharedSession:
    """The session of all tests of a process that want no particular one: it takes long to start."""

    SETTINGS = SparkConfig(
        app_name="shared",
        driver_memory="512m",
        java_options=QUICK_JAVA,
        python_path=(str(ROOT),),
        jars=tuple(str(it) for it in (POSTGRES_JAR,) if it.exists()),
        # Nobody looks.
        conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
    )

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self.before = look_around()

    def get(self) -> SparkSession:
        if self._session is None:
            self.before = look_around()
            self._session = start_quickly(self.SETTINGS)
        return self._session

    def stop(self) -> None:
        """End it, if it runs; the process is as it was before."""
        if self._session is None:
            return
        gateway: Any = self._session.sparkContext._gateway
        stop_spark(self._session)
        self._session = None
        assert gateway.proc.poll() is not None
        assert look_around() == self.before


shared_session = SharedSession()


def start_quickly(settings: SparkConfig) -> SparkSession:
    """Start a session whose JVM finds the quick home."""
    before = os.environ.get("SPARK_HOME")
    os.environ["SPARK_HOME"] = str(spark_home())
    try:
        return start_spark(settings)
    finally:
        del os.environ["SPARK_HOME"]
        if before is not None:
            os.environ["SPARK_HOME"] = before


class SparkCluster:
    """A master and workers with a core or more, which can be killed one by one."""

    def __init__(self, directory: Path, *, workers: int = 2, cores: int = 1) -> None:
        """Keep logs and the working directories of the workers in `directory`."""
        self._directory = directory
        self._count = workers
        self._cores = cores
        self._port = free_port()
        self._web_port = free_port()
        self._home = spark_home()
        self._environment = os.environ | {
            "JAVA_HOME": str(find_java_home()),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_DIRS": str(directory),
            # Of the master: tests may kill as many executors as they like.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
        }
        self._processes: dict[str, ServerProcess] = {}

    @property
    def master(self) -> str:
        """The URL of the master."""
        return f"spark://{self._address('master')}:{self._port}"

    def start(self) -> None:
        """Start and return when the master knows all workers."""
        self.start_master()
        for number in range(self._count):
            self.start_worker(number)
        self.wait(lambda: self.alive_workers() == self._count, "the workers are up")

    def start_master(self) -> None:
        """Start a master that knows nothing of one before it, and return when it answers."""
        ports = ("--port", str(self._port), "--webui-port", str(self._web_port))
        self._launch("master", "master.Master", *ports)
        # A worker that finds no master waits long before it tries again.
        self.wait(lambda: self.alive_workers() is not None, "the master is up")

    def kill_master(self) -> None:
        self._processes.pop("master").stop()

    def start_worker(self, number: int) -> None:
        name = f"worker-{number}"
        options = ("--webui-port", "0", "--cores", str(self._cores), "--memory", "1g")
        place = ("--work-dir", str(self._directory / name))
        self._launch(name, "worker.Worker", *options, *place, self.master)

    def kill_worker(self, number: int) -> None:
        """End a worker and its executors at once."""
        process = self._processes.pop(f"worker-{number}")
        executors = process.children()
        process.stop()
        for pid in executors:
            send_signal(pid, signal.SIGKILL)

    def kill_executors(self, number: int) -> int:
        """End the executors of a worker at once, and not the worker; returns how many."""
        executors = self._processes[f"worker-{number}"].children()
        alive = [pid for pid, state in executors.items() if state != "Z"]
        for pid in alive:
            send_signal(pid, signal.SIGKILL)
        return len(alive)

    def alive_workers(self) -> int | None:
        """How many workers the master knows; None if it does not answer."""
        try:
            alive: int = json.loads(self._fetch_status())["aliveworkers"]
        except (OSError, ValueError):
            return None
        return alive

    def stop(self) -> None:
        """Be quick: nobody needs it any more."""
        for number in range(self._count):
            if f"worker-{number}" in self._processes:
                self.kill_worker(number)
        for process in self._processes.values():
            process.stop()
        self._processes.clear()

    def _launch(self, name: str, main_class: str, *arguments: str) -> None:
        address = self._address(name)
        script, main = self._home / "bin" / "spark-class", f"{_PACKAGE}.{main_class}"
        command = [str(script), main, "--host", address, *arguments]
        with self._log(name).open("ab") as log:
            # The script becomes the Java that it starts: one process, which the guard knows.
            self._processes[name] = ServerProcess(
                self._at(name, command),
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env=self._environment | {"SPARK_LOCAL_IP": address},
            )

    def _address(self, name: str) -> str:
        """Where a master or worker listens; to Spark, each worker is on a host of its own."""
        kind, _, number = name.partition("-")
        return f"127.0.0.{int(number) + 2}" if kind == "worker" else _HOST

    def _at(self, name: str, command: list[str]) -> list[str]:
        """A command line that becomes this command where a master or worker belongs."""
        return command

    def _fetch_status(self) -> bytes:
        with urllib.request.urlopen(
            f"http://{_HOST}:{self._web_port}/json/", timeout=_STATUS_S
        ) as response:
            content: bytes = response.read()
            return content

    def wait(self, is_so: Callable[[], bool], what: str, timeout: float = START_S) -> None:
        """Return as soon as a condition holds; fail when the time is over or a server has ended."""
        deadline = time.monotonic() + timeout
        while not is_so():
            ended = [
                name for name, process in self._processes.items() if process.status is not None
            ]
            assert not ended, f"{ended[0]} ended:\n{self._last_words(ended[0])}"
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
            time.sleep(POLL_S)

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _last_words(self, name: str) -> str:
        return "\n".join(self._log(name).read_text().splitlines()[-_LOG_LINES:])


@contextmanager
def spark_cluster(directory: Path) -> Iterator[SparkCluster]:
    """A running cluster of two workers, killed at the end."""
    cluster = SparkCluster(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
