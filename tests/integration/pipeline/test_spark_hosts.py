"""Jobs on a cluster of other machines: a master, two workers and a driver, each a host."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.support.servers.process import ServerProcess
from tests.support.servers.spark_hosts import SparkHosts, spark_hosts
from tests.support.source_tree import ROOT

SEGMENTS = 300
BAD = 7
LIMIT_S = 200.0
LOST_S = 60.0
"""Within which a job says that its cluster is gone."""

JOB = """
name = "clearing"
workflow = [["in", "parse"], ["parse", "lines"], ["parse", "rows"]]

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
options = { path = "cleared/lines" }

[[catalog]]
name = "rows"
type = "output"
connector = "parquet"
options = { path = "cleared/rows" }
"""
FUNCTIONS = """
import os, socket, time

def parse(segment):
    time.sleep(float(os.environ.get("PARSE_S", "0")))
    return {"n": int(segment["n"]), "host": socket.gethostname()}
"""
FROM_PYTHON = """
import asyncio, sys
from postroad.durable import SqliteStore
from postroad.pipeline import make_input, make_output, load_job
from postroad.pipeline.spark import SparkRunner, SparkConfig

async def main(master, bind, place):
    sys.path.insert(0, place)
    job = load_job("clearing.toml")
    tasks = {task.name: task for task in job.catalog}
    settings = SparkConfig(master=master, executor_memory="512m", python_path=(place,))
    runner = SparkRunner(
        job,
        {"in": make_input(tasks["in"])},
        {name: make_output(tasks[name]) for name in ("lines", "rows")},
        SqliteStore("clearing.db"),
        settings=settings,
        bind=bind,
    )
    running = asyncio.create_task(runner.run())
    while not runner.coordinator.is_open:
        await asyncio.sleep(0.05)
    print("listening", flush=True)
    await running
    print(runner.coordinator.counts.acked)

asyncio.run(main(*sys.argv[1:]))
"""
STRANGER = """
import asyncio, socket, ssl, sys
from postroad.core.errors import MessagingError
from postroad.net import MessagingService
from postroad.pipeline.spark.coordinator_client import CLUSTER, SUBJECT, GetInitialOffset, encode
from postroad.wire import encode_preamble

def shake_hands(host, port):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, int(port)), 30) as plain:
        with context.wrap_socket(plain) as secure:
            print(secure.version())
            try:
                secure.sendall(encode_preamble(CLUSTER))
                print("answered" if secure.recv(1) else "refused")
            except OSError:
                print("refused")

async def ask(address):
    async with MessagingService(CLUSTER, "stranger", secret="the token of another job") as service:
        try:
            await service.request(address, SUBJECT, encode(GetInitialOffset()), timeout=30)
        except MessagingError:
            print("refused")

shake_hands(*sys.argv[1].split(":"))
asyncio.run(ask(sys.argv[1]))
"""
PORT = 7123
"""Of the coordinator; nobody else is on these hosts."""
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkHosts]:
    with spark_hosts(tmp_path_factory.mktemp("hosts")) as cluster:
        yield cluster


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that all hosts see, with the job and its input."""
    (tmp_path / "clearing.toml").write_text(JOB)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/clear_on_hosts.py").write_text(FUNCTIONS)
    with zipfile.ZipFile(tmp_path / "functions.zip", "w") as archive:
        archive.writestr("clear_on_hosts.py", FUNCTIONS)
    (tmp_path / "payments").mkdir()
    write_payments(tmp_path, range(SEGMENTS))
    return tmp_path


def write_payments(place: Path, numbers: range) -> None:
    for first in numbers[::100]:
        values = ["bad" if n == BAD else n for n in range(first, first + 100)]
        lines = [json.dumps({"n": value}) for value in values]
        (place / "payments" / f"{first:06}.jsonl").write_text("\n".join(lines))


def command_of(cluster: SparkHosts, *options: str) -> list[str]:
    """The documented command."""
    job = [sys.executable, "-m", "postroad", "pipeline", "run", "clearing.toml"]
    memory = ("--conf", "spark.executor.memory=512m")
    functions = ("--py-files", "functions.zip")
    return [*job, "--master", cluster.master, *memory, *functions, *options]


def read_lines(place: Path) -> list[dict[str, object]]:
    files = (place / "cleared/lines").glob("*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def check_outputs(place: Path, count: int = SEGMENTS) -> None:
    """Every segment is there exactly once, and the bad one nowhere."""
    expected = [n for n in range(count) if n != BAD]
    assert sorted(line["n"] for line in read_lines(place)) == expected  # type: ignore[type-var]  # numbers
    tables = map(pyarrow.parquet.read_table, (place / "cleared/rows").glob("*.parquet"))
    assert sorted(row["n"] for table in tables for row in table.to_pylist()) == expected


def test_command_runs_a_job_on_executors_of_other_hosts(cluster: SparkHosts, place: Path) -> None:
    ran = cluster.driver.run(
        command_of(cluster, "--partitions", "4"),
        cwd=place,
        env=cluster.driver_environment(),
        timeout=LIMIT_S,
    )

    assert ran.returncode == 4, ran.stderr
    assert ran.stdout == "299 acknowledged, 2 failures, 1 dead\n"
    check_outputs(place)
    assert {line["host"] for line in read_lines(place)} == {"worker-0", "worker-1"}


def test_coordinator_answers_only_who_has_its_certificate_and_token(
    cluster: SparkHosts, place: Path
) -> None:
    address = f"{cluster.driver.address}:{PORT}"
    program = [sys.executable, "-c", FROM_PYTHON, cluster.master, address, str(place / "lib")]
    log = place / "driver.log"
    with log.open("wb") as output:
        driver = cluster.driver.spawn(
            program, cwd=place, env=cluster.driver_environment(), stdout=output, stderr=output
        )
    try:
        cluster.wait(lambda: is_listening(log, driver), "the coordinator is up", LIMIT_S)
        stranger = cluster.network.hosts["worker-0"].run(
            [sys.executable, "-c", STRANGER, address], cwd=ROOT, timeout=LIMIT_S
        )
        cluster.wait(lambda: driver.status is not None, "the job ends", LIMIT_S)
    finally:
        driver.stop()

    assert stranger.stdout.splitlines() == ["TLSv1.3", "refused", "refused"], stranger.stderr
    assert driver.status == 0, log.read_text()
    assert log.read_text().splitlines()[-1] == "299"
    check_outputs(place)


def is_listening(log: Path, driver: ServerProcess) -> bool:
    assert driver.status is None, log.read_text()
    return "listening" in log.read_text()


def test_lost_master_is_said_and_the_job_goes_on_with_the_next(
    cluster: SparkHosts, place: Path
) -> None:
    """Spark itself waits for ever, and says nothing."""
    log = place / "driver.log"
    with log.open("wb") as output:
        driver = cluster.driver.spawn(
            command_of(cluster, "--bind", "0.0.0.0", "--conf", "spark.executorEnv.PARSE_S=0.05"),
            cwd=place,
            env=cluster.driver_environment(),
            stdout=output,
            stderr=output,
        )
    try:
        until_written(cluster, place, 20)
        cluster.kill_master()
        cluster.kill_executors(0)
        cluster.kill_executors(1)
        told = f"the Spark master at {cluster.master} does not answer"
        cluster.wait(lambda: told in log.read_text(), "it is said", LOST_S)
        cluster.wait(lambda: "starts Spark again" in log.read_text(), "it is lost", LOST_S)
        cluster.start_master()
        until_written(cluster, place, len(read_lines(place)) + 20)

        cluster.kill_master()
        cluster.start_master()
        cluster.wait(lambda: "started anew" in log.read_text(), "it is noticed", LOST_S)
        cluster.wait(lambda: driver.status is not None, "the job ends", LIMIT_S)
    finally:
        driver.stop()

    assert driver.status == 4, log.read_text()
    assert "1 dead" in log.read_text().splitlines()[-1]
    check_outputs(place)


def until_written(cluster: SparkHosts, place: Path, count: int) -> None:
    def is_written() -> bool:
        return len(read_lines(place)) >= count

    cluster.wait(is_written, f"{count} lines are written", LIMIT_S)


@pytest.mark.nightly
def test_host_that_is_cut_off_is_missed_within_a_minute(cluster: SparkHosts, place: Path) -> None:
    """By default Spark misses it after two to three."""
    log = place / "driver.log"
    with log.open("wb") as output:
        driver = cluster.driver.spawn(
            command_of(cluster, "--conf", "spark.executorEnv.PARSE_S=0.05"),
            cwd=place,
            env=cluster.driver_environment(),
            stdout=output,
            stderr=output,
        )
    try:
        until_written(cluster, place, 20)
        cluster.network.cut("worker-0")
        address = cluster.network.hosts["worker-0"].address
        lost = re.compile(rf"Lost executor \d+ on {re.escape(address)}")
        cluster.wait(lambda: lost.search(log.read_text()) is not None, "it is missed", LOST_S)
        cluster.wait(lambda: driver.status is not None, "the job ends", LIMIT_S)
    finally:
        cluster.network.mend("worker-0")
        driver.stop()

    assert driver.status == 4, log.read_text()
    check_outputs(place)
