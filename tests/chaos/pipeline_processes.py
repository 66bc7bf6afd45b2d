"""A node with jobs on a Spark cluster, its load, and what came of it, as a test sees them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from postroad.durable import Draft, Mail, Message, StaticDirectory, Transaction
from tests.support.deadlines import eventually
from tests.support.pipeline.spark_kill_functions import CREDIT, DEBIT, END, POISON_EVERY
from tests.support.pipeline.spark_kill_job import BETA, BOOKED, BOOKING, PAYMENTS, RANGE, SUMMING
from tests.support.servers.spark_classes import spark_home
from tests.support.source_tree import ROOT

SPARK_DEADLINE_S = 300.0
"""How long anything may take before a test fails; generous, because machines are busy."""

PORTION = 500
"""Payments posted together, and lines in a file."""
BACKLOG = 8_000
"""So many are not done with, at most."""
BACKLOG_QUICK = 1_000
"""When there is no storm to outlast: what is left in the end has to be worked off."""
_PAUSE_S = 0.05
_LOG_BYTES = 5_000


class JobsNode:
    """The process that runs the jobs, as often as it is started."""

    def __init__(self, place: Path, master: str, alpha: Mail, peers: StaticDirectory) -> None:
        self._place = place
        self._arguments = (place, master, str(alpha.service.address))
        self._peers = peers
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self.settled: Counter[str] = Counter()
        """Batches of each job, in all processes together."""
        self.ended: set[str] = set()
        self.starts = 0

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "it was not started"
        return self._process

    async def start(self) -> None:
        paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.support.pipeline.spark_kill_job", *self._arguments),
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                    "SPARK_HOME": str(spark_home()),
                },
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        address = await asyncio.wait_for(self._line(), SPARK_DEADLINE_S)
        assert address, f"beta did not start:\n{self.last_words()}"
        self._peers.set(BETA, address)
        self._listening = asyncio.create_task(self._listen())
        self.starts += 1

    async def _line(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().strip()

    async def _listen(self) -> None:
        while line := await self._line():
            event, job = line.split()
            if event == "settled":
                self.settled[job] += 1
            else:
                self.ended.add(job)

    async def settles_more(self) -> None:
        """Return when it has settled one more batch of each job."""
        before = self.settled.copy()
        await eventually(
            lambda: all(self.settled[job] > before[job] for job in (BOOKING, SUMMING)),
            "batches are settled",
            SPARK_DEADLINE_S,
        )

    def arm(self, job: str, point: str, count: int) -> None:
        """Have it kill itself when a batch of a job comes to a point that often."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"arm {job} {point} {count}\n".encode())

    async def dies(self) -> None:
        """Wait until it has killed itself."""
        status = await asyncio.wait_for(self.process.wait(), SPARK_DEADLINE_S)
        assert status == -signal.SIGKILL, self.last_words()
        await self._close()

    async def kill(self) -> None:
        """End it the hard way, in whatever state it is."""
        if self._process is not None:
            if self.process.returncode is None:
                self.process.kill()
            await self.process.wait()
            await self._close()

    async def stop(self) -> None:
        """Have it end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await asyncio.wait_for(self.process.wait(), SPARK_DEADLINE_S) == 0, self.last_words()
        await self._close()

    async def _close(self) -> None:
        if self._listening is not None:
            await self._listening
        # The pipes' transports are closed by the loop only after this turn.
        self.process._transport.close()  # type: ignore[attr-defined]

    @property
    def _log(self) -> Path:
        return self._place / "beta.log"

    def last_words(self) -> str:
        return self._log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")


class Load:
    """Posts payments and writes lines all the time, and counts what is booked."""

    def __init__(self, mail: Mail, place: Path, backlog: int) -> None:
        self._mail = mail
        self._backlog = backlog
        self._in = place / "in"
        self._store = Store(place)
        self.payments = self.lines = 0
        self.booked: Counter[tuple[int, str]] = Counter()
        self._is_resting = False
        self._feeding: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._in.mkdir()
        await self._mail.consume(BOOKED, self._count, concurrency=64, ordered_by_key=False)
        self._write()
        self._feeding = asyncio.create_task(self._feed())

    async def rest(self) -> None:
        """Stop it: nothing more will come."""
        assert self._feeding is not None
        self._is_resting = True
        await self._feeding
        (self._in / END).touch()

    async def _count(self, message: Message, tx: Transaction) -> None:
        segment = msgspec.json.decode(message.body)
        self.booked[segment["n"], segment["side"]] += 1

    async def _feed(self) -> None:
        while not self._is_resting:
            if self.payments - self.booked.total() // 2 < self._backlog:
                await self._post()
            if self.lines - self._store.lines_taken() < self._backlog:
                self._write()
            await asyncio.sleep(_PAUSE_S)

    async def _post(self) -> None:
        numbers = range(self.payments, self.payments + PORTION)
        await self._mail.post_all(
            Draft(peer=BETA, queue=PAYMENTS, body=b'{"n": %d}' % n) for n in numbers
        )
        self.payments = numbers.stop

    def _write(self) -> None:
        """A file that is there as a whole or not at all."""
        numbers = range(self.lines, self.lines + PORTION)
        unfinished = self._in / "unfinished"
        unfinished.write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
        unfinished.replace(self._in / f"{numbers.start:09d}.jsonl")
        self.lines = numbers.stop


class Store:
    """What the store of the node tells, and the files that its jobs wrote."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def _query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with closing(
            sqlite3.connect(self._place / "beta.db", timeout=SPARK_DEADLINE_S)
        ) as connection:
            return connection.execute(statement, parameters).fetchall()

    def _count(self, table: str, where: str = "1 = 1") -> int:
        return int(self._query(f"SELECT COUNT(*) FROM {table} WHERE {where}")[0][0])

    def lines_taken(self) -> int:
        """About how many lines were delivered."""
        try:
            rows = self._query(
                "SELECT key FROM postroad_pipeline_input_state WHERE job = ?", SUMMING
            )
        except sqlite3.OperationalError:
            # It is not there yet.
            return 0
        names = [Path(key).stem for (key,) in rows]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def unfinished(self) -> dict[str, int]:
        """What is in the queue, in the pen but not dead, in the outbox, or dead in the mail."""
        ((letters,),) = self._query("SELECT COALESCE(SUM(pending), 0) FROM postroad_inbox")
        counts = {
            "letters": int(letters),
            "aside": self._count("postroad_aside"),
            "deliveries": self._count("postroad_pipeline_deliveries"),
            "roots": self._count("postroad_pipeline_roots", "state <> 'dead'"),
            "publications": self._count("postroad_pipeline_publications"),
            "outbox": self._count("postroad_outbox"),
            "dead mail": self._count("postroad_dead"),
        }
        return {name: count for name, count in counts.items() if count}

    def settled_batch(self, job: str) -> int:
        """The last batch of a job that is settled."""
        return int(
            self._query("SELECT batch FROM postroad_pipeline_batches WHERE job = ?", job)[0][0]
        )

    def committed_batch(self, job: str) -> int:
        """The last one that Spark knows of; -1 if there is none."""
        commits = (self._place / f"{job}.spark" / "spark" / "commits").iterdir()
        return max((int(it.name) for it in commits if it.name.isdecimal()), default=-1)

    def dead(self, job: str) -> list[int]:
        """The numbers of the segments of a job that are dead letters."""
        rows = self._query(
            "SELECT segment FROM postroad_pipeline_roots WHERE job = ? AND state = 'dead'", job
        )
        return sorted(msgspec.msgpack.decode(segment)["n"] for (segment,) in rows)

    def sums(self) -> Counter[tuple[int, float, int]]:
        """Part, lower bound and sum of each window."""
        found = (
            json.loads(line)
            for path in (self._place / "sums").glob("*.jsonl")
            for line in path.read_text().splitlines()
        )
        return Counter((it["group"], it["lower"], it["value"]) for it in found)

    def aside(self) -> Counter[tuple[int, int]]:
        """Number and part of each that was put aside."""
        import pyarrow.parquet

        rows: Counter[tuple[int, int]] = Counter()
        for path in (self._place / "aside").glob("*.parquet"):
            table = pyarrow.parquet.read_table(path)
            rows.update(zip(*(table[it].to_pylist() for it in ("n", "part")), strict=True))
        return rows


class Verdict:
    """What has to come of a load, and what came of it."""

    def __init__(self, load: Load, store: Store) -> None:
        self._load = load
        self._store = store

    def check(self) -> None:
        """Everything was done once, or is a dead letter."""
        assert self._store.unfinished() == {}
        assert self._load.payments > 0
        assert self._store.dead(BOOKING) == list(range(0, self._load.payments, POISON_EVERY))
        assert self._load.booked == Counter(self._payments())
        assert self._store.dead(SUMMING) == sorted({n for n, _ in self._spread() if is_poison(n)})
        assert self._store.aside() == Counter(self._spread())
        assert self._store.sums() == self._sums()

    def _payments(self) -> Iterator[tuple[int, str]]:
        for n in range(self._load.payments):
            yield n, DEBIT
            if not is_poison(n):
                yield n, CREDIT

    def _spread(self) -> Iterator[tuple[int, int]]:
        return ((n, part) for n in range(self._load.lines) for part in range(n % 3))

    def _sums(self) -> Counter[tuple[int, float, int]]:
        sums: Counter[tuple[int, float]] = Counter()
        for n, part in self._spread():
            if not is_poison(n):
                sums[part, float(n - n % RANGE)] += n
        return Counter((part, lower, value) for (part, lower), value in sums.items())

    def tell(self) -> Iterator[str]:
        """The counts of both jobs."""
        for job, sent, outputs in (
            (BOOKING, self._load.payments, self._load.booked.total()),
            (SUMMING, self._load.lines, self._store.aside().total()),
        ):
            dead = len(self._store.dead(job))
            yield f"{job}: {sent} sent, {sent - dead} acked, {dead} dead, {outputs} outputs"
        yield f"{self._store.sums().total()} sums of windows; left over: {self._store.unfinished()}"


def is_poison(n: int) -> bool:
    return n % POISON_EVERY == 0
