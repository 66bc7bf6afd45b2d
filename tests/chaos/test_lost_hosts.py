"""Hosts of a Spark cluster that are lost or cut off: found within a minute, said, and survived.

Spark itself waits for a lost master for ever, and says nothing. By day the storm of
`test_pipeline.py` kills a master, and waits until that is said.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.servers.process import ServerProcess
from tests.support.servers.spark_hosts import SparkHosts, spark_hosts

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

BAD = 7
DONE_S = 200.0
FOUND_S = 60.0
"""Within which a job says that something of its cluster is gone."""

JOB = """
name = "clearing"
workflow = [["in", "parse"], ["parse", "lines"]]

[[catalog]]
name = "in"
type = "input"
connector = "jsonl"
batch_size = 20
options = { path = "payments/*.jsonl" }
retry = { attempts = 2, first_s = 0.001 }

[[catalog]]
name = "parse"
type = "function"
fn = "clear_on_hosts:parse"

[[catalog]]
name = "lines"
type = "output"
connector = "jsonl"
options = { path = "cleared" }
"""
# As long as the file is there a segment takes long enough for something to be lost meanwhile.
FUNCTIONS = """
import time
from pathlib import Path

SLOW = Path(__file__).with_name("slow")

def parse(segment):
    if SLOW.exists():
        time.sleep(0.2)
    return {"n": int(segment["n"])}
"""


class ClearingJob:
    """A job on the host `driver`, run by the command."""

    def __init__(self, cluster: SparkHosts, place: Path) -> None:
        self._cluster = cluster
        self._place = place
        self._log = place / "driver.log"
        self._count = 0
        self._process: ServerProcess | None = None
        (place / "clearing.toml").write_text(JOB)
        (place / "clear_on_hosts.py").write_text(FUNCTIONS)
        (place / "slow").touch()
        (place / "payments").mkdir()

    def start(self) -> None:
        cluster = self._cluster
        conf = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
        options = [word for it in conf.items() for word in ("--conf", "=".join(it))]
        command = [sys.executable, "-m", "postroad", "job", "run", "clearing.toml"]
        environment = cluster.driver_environment() | {"PYTHONPATH": str(self._place)}
        with self._log.open("wb") as output:
            self._process = cluster.driver.spawn(
                [*command, "--master", cluster.master, *options],
                cwd=self._place,
                env=environment,
                stdout=output,
                stderr=output,
            )

    def feed(self, count: int = 150) -> None:
        """Bring more; the job ends when it has done all."""
        values = ["bad" if n == BAD else n for n in range(self._count, self._count + count)]
        lines = "".join(json.dumps({"n": value}) + "\n" for value in values)
        (self._place / "payments" / f"{self._count:06}.jsonl").write_text(lines)
        self._count += count

    def read_numbers(self) -> list[int]:
        files = (self._place / "cleared").glob("*.jsonl")
        return sorted(json.loads(it)["n"] for file in files for it in file.read_text().splitlines())

    def wait(self, is_so: Callable[[], bool], what: str, timeout: float) -> None:
        def look() -> bool:
            assert self._process is not None
            return is_so() or self._process.status is not None

        self._cluster.wait(look, f"{what}:\n{self._log.read_text()[-3000:]}", timeout)
        assert is_so(), f"it has ended before {what}:\n{self._log.read_text()[-3000:]}"

    def write_more(self) -> None:
        """Return when it has made progress."""
        wanted = len(self.read_numbers()) + 20
        self.wait(lambda: len(self.read_numbers()) >= wanted, "more is written", DONE_S)

    def expect(self, pattern: str) -> None:
        """Return when the job has said something again, which it must within a minute."""
        said = re.compile(pattern)
        self.wait(lambda: bool(said.search(self._log.read_text(), self._mark)), pattern, FOUND_S)

    def listen(self) -> None:
        """From now on, what it says counts."""
        self._mark = len(self._log.read_text())

    def finish(self) -> None:
        (self._place / "slow").unlink()
        assert self._process is not None
        process = self._process
        self.wait(lambda: process.status is not None, "the job ends", DONE_S)
        assert process.status == 4, self._log.read_text()
        assert self._log.read_text().splitlines()[-1].endswith("1 dead")
        assert self.read_numbers() == [n for n in range(self._count) if n != BAD]

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SparkHosts]:
    """With as many workers as the test says."""
    with spark_hosts(tmp_path, workers=request.param) as cluster:
        yield cluster


@pytest.fixture
def job(cluster: SparkHosts, tmp_path: Path) -> Iterator[ClearingJob]:
    job = ClearingJob(cluster, tmp_path)
    job.feed()
    job.start()
    try:
        job.write_more()
        job.listen()
        yield job
    finally:
        job.stop()


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_lost_master_is_said_within_a_minute_and_the_job_goes_on_with_the_next(
    cluster: SparkHosts, job: ClearingJob
) -> None:
    master = re.escape(cluster.master)
    cluster.kill_master()
    cluster.kill_executors(0)
    job.expect(rf"job 'clearing': the Spark master at {master} does not answer; the job has \d")
    job.expect("job 'clearing' starts Spark again")
    cluster.start_master()
    job.write_more()

    job.listen()
    job.feed()
    cluster.kill_master()
    cluster.start_master()
    job.expect(rf"the Spark master at {master} answers, and does not know the application")
    job.finish()


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_host_that_is_cut_off_is_missed_within_a_minute_and_the_job_goes_on(
    cluster: SparkHosts, job: ClearingJob
) -> None:
    worker = re.escape(cluster.network.hosts["worker-0"].address)
    cluster.network.cut("worker-0")
    job.expect(rf"Lost executor \d+ on {worker}")
    job.write_more()
    cluster.network.mend("worker-0")

    job.listen()
    job.feed()
    cluster.network.cut("master")
    job.expect(rf"the Spark master at {re.escape(cluster.master)} does not answer")
    # The executors that it has still work for it.
    job.write_more()
    cluster.network.mend("master")
    job.expect("the cluster .* works again|does not know the application")

    job.listen()
    job.feed()
    cluster.network.cut("driver")
    job.expect("does not answer|Lost executor")
    cluster.network.mend("driver")
    job.write_more()
    job.finish()
