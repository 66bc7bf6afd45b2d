"""A standalone Spark cluster on hosts of its own: a master, two workers and a driver."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.hosts import Host, Network, network_of
from tests.support.servers.spark import SparkCluster, quick_environment

WORKERS = 2
EXECUTOR = "CoarseGrainedExecutorBackend"
"""What the command line of an executor has in it."""

_FETCH = """
import sys, urllib.request
sys.stdout.write(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())
"""


class SparkHosts(SparkCluster):
    """A cluster each part of which has a host; jobs are started on the host `driver`."""

    def __init__(self, directory: Path, network: Network) -> None:
        """Files are seen by all hosts."""
        # Two applications at a time.
        super().__init__(directory, workers=WORKERS, cores=2)
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
        url = f"http://{self._address('master')}:{self._web_port}/json/"
        fetched = self.network.hosts["master"].run([sys.executable, "-ISc", _FETCH, url])
        if fetched.returncode:
            raise OSError(fetched.stderr)
        return fetched.stdout.encode()


@contextmanager
def spark_hosts(directory: Path) -> Iterator[SparkHosts]:
    """A running cluster of four hosts, killed at the end."""
    workers = [f"worker-{number}" for number in range(WORKERS)]
    with network_of("master", *workers, "driver") as network:
        cluster = SparkHosts(directory, network)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
