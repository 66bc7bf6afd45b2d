"""A standalone Spark cluster on hosts of its own: a master, workers and a driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.hosts import Host, Network, network_of
from tests.support.servers.spark import SparkCluster, quick_environment

WORKERS = 2
EXECUTOR = "CoarseGrainedExecutorBackend"
"""What the command line of an executor has in it."""

# Asked again and again while a JVM starts: a Python for each would keep a core from it.
_FETCH = """
exec 3<>"/dev/tcp/$0/$1"
printf 'GET /json/ HTTP/1.0\\r\\n\\r\\n' >&3
exec timeout 5 cat <&3
"""


class SparkHosts(SparkCluster):
    """A cluster each part of which has a host; jobs are started on the host `driver`."""

    def __init__(self, directory: Path, network: Network, *, workers: int) -> None:
        """Files are seen by all hosts."""
        # Two applications at a time.
        super().__init__(directory, workers=workers, cores=2)
        self.network = network

    @property
    def driver(self) -> Host:
        """The host that jobs are started on."""
        return self.network.hosts["driver"]

    def driver_environment(self) -> dict[str, str]:
        """Variables for a program that starts Spark there."""
        return os.environ | quick_environment()

    def _address(self, name: str) -> str:
        return self.network.hosts[name].address

    def _at(self, name: str, command: list[str]) -> list[str]:
        return self.network.hosts[name].inside(command)

    def _fetch_status(self) -> bytes:
        command = ["bash", "-c", _FETCH, self._address("master"), str(self._web_port)]
        fetched = self.network.hosts["master"].run(command)
        if fetched.returncode:
            raise OSError(fetched.stderr)
        return fetched.stdout.partition("\n\n")[2].encode()


@contextmanager
def spark_hosts(directory: Path, *, workers: int = WORKERS) -> Iterator[SparkHosts]:
    """A running cluster, each part on a host of its own, killed at the end."""
    names = [f"worker-{number}" for number in range(workers)]
    with network_of("master", *names, "driver") as network:
        cluster = SparkHosts(directory, network, workers=workers)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
