"""Two jobs on a Spark cluster of several hosts, what they are fed with, and what came of it.

`clearing` is run by the command `job run`: Spark's reader takes files of JSON lines, Spark's writer
writes what is made of each to `aside` as Parquet, and after a shuffle sums go to `sums`. `relay` is
a job of a node: it reads the queue `payments` and sends to the queue `booked`; the node gets its
payments from a table by a third job.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet

from postroad.durable import SqliteStore
from postroad.pipeline import JobBuilder, MemoryOutput, run
from tests.chaos.doomed import DOOM
from tests.support.pipeline import storm_functions
from tests.support.pipeline.storm_functions import CREDIT, DEBIT, POISON_EVERY
from tests.support.servers.hosts import command_of
from tests.support.servers.process import ServerProcess, send_signal
from tests.support.servers.spark import QUICK_JAVA
from tests.support.servers.spark_hosts import SparkHosts
from tests.support.source_tree import ROOT

BANK, CLEARING, RELAY = "bank", "clearing", "relay"
COORDINATOR_PORT = 7123
"""Of `clearing`; nobody else is on these hosts."""
RANGE = 5_000
LINES = 50
"""In a file."""
PER_S = 100
"""Lines and payments that come each second."""
_JVM = "org.apache.spark.deploy.SparkSubmit"
_LOG_BYTES = 5_000

CLEARING_JOB = """
name = "clearing"
workflow = [["in", "spread"], ["spread", "aside"], ["spread", "sum"], ["sum", "sums"]]

[[catalog]]
name = "in"
type = "input"
connector = "spark"
options = { format = "json", path = "lines", maxFilesPerTrigger = FILES, continuous = CONTINUOUS }
schema = "n BIGINT"
id = ["n"]
pending_timeout_s = 10
retry = { attempts = 4, first_s = 0.02, max_s = 0.1 }

[[catalog]]
name = "spread"
type = "function"
fn = "storm_functions:spread"

[[catalog]]
name = "aside"
type = "output"
connector = "spark"
options = { format = "parquet", path = "aside" }
schema = "n BIGINT, part BIGINT, host STRING"

[[catalog]]
name = "sum"
type = "function"
fn = "storm_functions:refuse_poison"
group_by = "part"

[[catalog]]
name = "sums"
type = "output"
connector = "jsonl"
options = { path = "sums" }

[[windows]]
name = "sum"
task = "sum"
type = "fixed"
aggregation = "sum"
key = "n"
time_key = "n"
range_s = RANGE

[[triggers]]
window = "sum"
on = "drained"
"""
RELAY_JOB = """
name = "relay"
workflow = [["payments", "book"], ["book", "check"], ["check", "booked"]]

[[catalog]]
name = "payments"
type = "input"
connector = "queue"
options = { queue = "payments", split_segments = 250 }
batch_size = 1000
pending_timeout_s = 10
retry = { attempts = 4, first_s = 0.02, max_s = 0.1 }

[[catalog]]
name = "book"
type = "function"
fn = "storm_functions:book"

[[catalog]]
name = "check"
type = "function"
fn = "storm_functions:check"

[[catalog]]
name = "booked"
type = "output"
connector = "queue"
options = { peer = "bank", queue = "booked" }
"""
FEED_JOB = """
name = "feed"
workflow = [["rows", "payments"]]

[[catalog]]
name = "rows"
type = "input"
connector = "sql"
[catalog.options]
database = "payments.db"
table = "payments"
key = "n"
consumer = "feed"
continuous = true

[[catalog]]
name = "payments"
type = "output"
connector = "queue"
options = { peer = "bank", queue = "payments" }
"""
NODE = """
[node]
name = "bank"
data = "bank"

[queues]
store = "bank.db"

[pipeline]
jobs = [
    "feed.toml",
    { path = "relay.toml", on = "spark", master = MASTER, conf = CONF },
]
"""


class Program:
    """A `postroad` command on the host `driver`, as often as it is started."""

    def __init__(
        self, cluster: SparkHosts, place: Path, environment: Mapping[str, str], *arguments: str
    ) -> None:
        self._cluster = cluster
        self._place = place
        self._environment = {**environment, "PYTHONPATH": str(ROOT)}
        self._command = [sys.executable, "-m", "tests.chaos.doomed", *arguments]
        self._log = place / f"{arguments[0]}.out"
        self._process: ServerProcess | None = None
        self.starts = 0

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None, "it was not started"
        return self._process

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = self._cluster.driver.spawn(
                self._command, cwd=self._place, env=self._environment, stdout=log, stderr=log
            )
        self.starts += 1

    def kill(self) -> None:
        """End it the hard way, in whatever state it is."""
        self.process.stop()

    def kill_jvm(self) -> int:
        """End the JVM beside it; returns how many there were."""
        names = {pid: command_of(pid) for pid in self.process.children()}
        found = [pid for pid, command in names.items() if _JVM in command]
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        return len(found)

    def close(self) -> None:
        if self._process is not None:
            self._process.stop()

    def read_log(self) -> str:
        return self._log.read_text(errors="replace")

    def last_words(self) -> str:
        return self.read_log()[-_LOG_BYTES:]


class Jobs:
    """Both programs, and their load.

    Args:
        cluster: where they run.
        place: all hosts see it.
        scratch: for what is killed and leaves files behind; with a short name, for sockets.
    """

    def __init__(self, cluster: SparkHosts, place: Path, scratch: Path) -> None:
        self.place = place
        java = f"{QUICK_JAVA} -Djava.io.tmpdir={scratch}"
        # Each application has an executor on each worker.
        conf = {
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.driver.defaultJavaOptions": java,
            "spark.executor.extraJavaOptions": java,
            "spark.local.dir": str(scratch),
            "spark.python.unix.domain.socket.dir": str(scratch),
            # Tasks here are short.
            "spark.speculation.minTaskRuntime": "2s",
            "spark.speculation.multiplier": "1.5",
        }
        options = [word for it in conf.items() for word in ("--conf", "=".join(it))]
        bind = f"{cluster.driver.address}:{COORDINATOR_PORT}"
        run_job = ("job", "run", f"{CLEARING}.toml", "--master", cluster.master, "--bind", bind)
        environment = cluster.driver_environment() | {"TMPDIR": str(scratch)}
        self.clearing = Program(cluster, place, environment, *run_job, *options)
        start_node = ("node", "start", "--config", "postroad.toml")
        self.node = Program(cluster, place, environment, *start_node)
        self.programs = {CLEARING: self.clearing, RELAY: self.node}
        self.load = Load(place)
        self._write_files(NODE.replace("MASTER", json.dumps(cluster.master)), conf)

    def _write_files(self, node: str, conf: dict[str, str]) -> None:
        shutil.copy(storm_functions.__file__, self.place)
        table = ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in conf.items())
        files = {
            "postroad": node.replace("CONF", f"{{ {table} }}"),
            CLEARING: _clearing(is_continuous=True),
            RELAY: RELAY_JOB,
            "feed": FEED_JOB,
        }
        for name, content in files.items():
            (self.place / f"{name}.toml").write_text(content)

    def start(self) -> None:
        for program in self.programs.values():
            program.start()

    def restart_to_end(self) -> None:
        """Have `clearing` end when it has done what there is."""
        self.clearing.kill()
        (self.place / f"{CLEARING}.toml").write_text(_clearing(is_continuous=False))
        self.clearing.start()

    def arm(self, job: str, point: str) -> None:
        """Have the program of a job kill itself when a batch comes to a point."""
        unfinished = self.place / "doom.new"
        unfinished.write_text(f"{job} {point}")
        unfinished.replace(self.place / DOOM)

    @property
    def is_armed(self) -> bool:
        return (self.place / DOOM).exists()

    def settled(self, job: str) -> int:
        """How many batches of a job are settled."""
        store = store_of(self.place, job)
        rows = query(store, "SELECT settled FROM postroad_pipeline_jobs WHERE job = ?", job)
        return int(rows[0][0]) if rows else 0

    def check_running(self) -> None:
        for name, program in self.programs.items():
            status = program.process.status
            assert status is None, f"{name} ended with {status}:\n{program.last_words()}"

    def close(self) -> None:
        for program in self.programs.values():
            program.close()


def _clearing(*, is_continuous: bool) -> str:
    # At last everything is one batch.
    values = {"CONTINUOUS": str(is_continuous).lower(), "FILES": 10 if is_continuous else 10_000}
    text = CLEARING_JOB.replace("RANGE", str(RANGE))
    for name, value in values.items():
        text = text.replace(name, str(value))
    return text


def store_of(place: Path, job: str) -> Path:
    """Where the account of a job is."""
    return place / f"{CLEARING if job == CLEARING else BANK}.db"


def query(store: Path, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Rows of a store that may not be there yet."""
    if not store.exists():
        return []
    with closing(sqlite3.connect(store, timeout=60)) as connection:
        try:
            return connection.execute(statement, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return []


class Load:
    """Lines and payments, as many as the time says."""

    def __init__(self, place: Path) -> None:
        self._lines = place / "lines"
        self._payments = place / "payments.db"
        self.count = 0
        self._since: float | None = None
        self._lines.mkdir()
        with closing(sqlite3.connect(self._payments)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE payments (n INTEGER PRIMARY KEY)")

    def feed(self) -> None:
        """Bring what is due."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        while self.count <= (now - self._since) * PER_S:
            self._bring(range(self.count, self.count + LINES))

    def _bring(self, numbers: range) -> None:
        with closing(sqlite3.connect(self._payments, timeout=60)) as connection, connection:
            connection.executemany("INSERT INTO payments VALUES (?)", ((n,) for n in numbers))
        # There as a whole or not at all.
        unfinished = self._lines / "_unfinished"
        unfinished.write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
        unfinished.replace(self._lines / f"{numbers.start:09d}.json")
        self.count = numbers.stop


class Verdict:
    """What has to come of a load, and what came of it."""

    def __init__(self, place: Path, count: int) -> None:
        self._place = place
        self._count = count

    def unfinished(self, job: str) -> dict[str, int]:
        """What of a job is not done."""

        def count(table: str) -> int:
            statement = f"SELECT COUNT(*) FROM postroad_pipeline_{table} WHERE job = ?"
            return int(query(self._store(job), statement, job)[0][0])

        counts = {it: count(it) for it in ("deliveries", "publications", "roots")}
        counts["roots"] -= len(self.dead(job))
        if job == RELAY:
            counts["payments"] = self._in_queue("payments")
            counts["not booked"] = len([*self._both_sides()]) - self._in_queue("booked")
        return {name: count for name, count in counts.items() if count}

    def _in_queue(self, name: str) -> int:
        statement = (
            "SELECT COALESCE(SUM(pending), 0) FROM postroad_inbox"
            " WHERE queue = (SELECT id FROM postroad_queues WHERE name = ?)"
        )
        return int(query(self._store(RELAY), statement, name)[0][0])

    def _store(self, job: str) -> Path:
        return store_of(self._place, job)

    def dead(self, job: str) -> list[int]:
        """The numbers of the segments of a job that are dead letters."""
        rows = query(
            self._store(job),
            "SELECT segment FROM postroad_pipeline_roots WHERE job = ? AND state = 'dead'",
            job,
        )
        return sorted(msgspec.msgpack.decode(segment)["n"] for (segment,) in rows)

    def check_clearing(self) -> None:
        """Every line was done once, or is a dead letter."""
        assert self.dead(CLEARING) == sorted({n for n, _ in self._spread() if is_poison(n)})
        rows = self.aside()
        assert Counter((n, part) for n, part, _ in rows) == Counter(self._spread())
        assert {host for _, _, host in rows} == {"worker-0", "worker-1"}
        assert self.sums() == self._sums()

    def check_relay(self) -> None:
        """The same for payments. The node must have ended: its queue is emptied."""
        assert self.dead(RELAY) == list(range(0, self._count, POISON_EVERY))
        assert asyncio.run(self._booked()) == Counter(self._both_sides())

    async def _booked(self) -> Counter[tuple[int, str]]:
        out = MemoryOutput()
        job = (
            JobBuilder("look")
            .input("in", connector="queue", options={"queue": "booked", "bounded": True})
            .output("out", connector="memory", after="in")
            .build()
        )
        await run(job, store=SqliteStore(self._place / f"{BANK}.db"), outputs={"out": out})
        return Counter((it["n"], it["side"]) for it in out.segments)

    def aside(self) -> list[tuple[int, int, str]]:
        """Number, part and host of each that was put aside."""
        tables = map(pyarrow.parquet.read_table, (self._place / "aside").glob("batch=*/*.parquet"))
        return [
            (row["n"], row["part"], row["host"]) for table in tables for row in table.to_pylist()
        ]

    def sums(self) -> Counter[tuple[int, float, int]]:
        """Part, lower bound and sum of each window."""
        lines = (
            json.loads(line)
            for path in (self._place / "sums").glob("*.jsonl")
            for line in path.read_text().splitlines()
        )
        return Counter((line["group"], line["lower"], line["value"]) for line in lines)

    def _both_sides(self) -> Iterator[tuple[int, str]]:
        for n in range(self._count):
            yield n, DEBIT
            if not is_poison(n):
                yield n, CREDIT

    def _spread(self) -> Iterator[tuple[int, int]]:
        return ((n, part) for n in range(self._count) for part in range(n % 3))

    def _sums(self) -> Counter[tuple[int, float, int]]:
        sums: Counter[tuple[int, float]] = Counter()
        for n, part in self._spread():
            if not is_poison(n):
                sums[part, float(n - n % RANGE)] += n
        return Counter((part, lower, value) for (part, lower), value in sums.items())


def is_poison(n: int) -> bool:
    return n % POISON_EVERY == 0
