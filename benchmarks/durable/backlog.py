"""A million messages that wait: does posting slow down, does memory grow, how long is a restart?"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING

from benchmarks.children import running
from benchmarks.durable.nodes import CLUSTER, QUEUE
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.messaging.processes import run
from postroad.durable import (
    DurableQueues,
    DurableQueuesConfig,
    Message,
    SqliteStore,
    StaticPeerDirectory,
    Transaction,
)
from postroad.net import MessagingService

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.children import Announce
    from benchmarks.harness import Settings

IN_FLIGHT = 1_000
BACKLOG = 1_000_000
QUICK_BACKLOG = 50_000
PROBE = 50_000
TIMEOUT_S = 300.0
MIB = 1024 * 1024
CONFIG = DurableQueuesConfig(inbox_bytes_max=4096 * MIB, sender_bytes_max=4096 * MIB)


@dataclass(frozen=True)
class Findings:
    """What one backlog showed."""

    rate_empty: float
    rate_full: float
    grown_mib: float
    restart_s: float


class Backlog:
    """Makes the backlog once, when the first of its figures is asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.size = BACKLOG if settings.rounds > 1 else QUICK_BACKLOG

    @cached_property
    def findings(self) -> Findings:
        with TemporaryDirectory(dir=self._settings.scratch) as scratch:
            arguments = (Path(scratch) / "mail.db", self._settings.loop)
            with running(fill, *arguments, self.size) as child:
                rate_empty, rate_full, grown_mib = child.receive(TIMEOUT_S)
            began = monotonic()
            with running(restart, *arguments) as child:
                # The clock is the same in all processes; what Python needs to start counts too.
                restart_s = child.receive(TIMEOUT_S) - began
        return Findings(rate_empty, rate_full, grown_mib, restart_s)

    def measure(self, name: str) -> float:
        """One of the figures."""
        value: float = getattr(self.findings, name)
        return value


def sections(settings: Settings) -> list[Section]:
    """Three figures of one backlog, in this node's own queue, which nobody consumes."""
    backlog = Backlog(settings)
    case = f"{backlog.size:,} messages of 100 B wait"
    rate, full, empty = f"{case}: posting more", "postroad, full", "postroad, empty"
    memory, start = f"{case}: memory grown", f"{case}: start of the process to first handled"
    return [
        Section(
            rate,
            "messages/s",
            [
                Contender(full, partial(backlog.measure, "rate_full")),
                Contender(empty, partial(backlog.measure, "rate_empty")),
            ],
            [Comparison(rate, full, empty, 0.7)],
            rounds_max=1,
        ),
        _budget_section(backlog, memory, "MiB", "grown_mib", 50.0),
        _budget_section(backlog, start, "s", "restart_s", 3.0),
    ]


def _budget_section(backlog: Backlog, case: str, unit: str, figure: str, budget: float) -> Section:
    return Section(
        case,
        unit,
        [Contender("postroad", partial(backlog.measure, figure))],
        [Comparison(case, "postroad", "budget", 1.0, at_most=True, budget=budget)],
        rounds_max=1,
    )


def fill(announce: Announce, path: Path, loop: str, size: int) -> None:
    """Body of the process that posts to a peer nobody knows, and measures itself."""

    async def work() -> None:
        async with (
            MessagingService(CLUSTER, "keeper") as service,
            DurableQueues(
                service, SqliteStore(path), directory=StaticPeerDirectory(), config=CONFIG
            ) as mail,
        ):
            await _post(mail, "nobody", PROBE)
            rate_empty = await _post(mail, "nobody", PROBE)
            before = _resident_mib()
            await _post(mail, "keeper", size)
            await _post(mail, "nobody", size)
            grown = _resident_mib() - before
            announce((rate_empty, await _post(mail, "nobody", PROBE), grown))

    run(work(), loop)


async def _post(mail: DurableQueues, peer: str, count: int) -> float:
    """Post many messages, many at a time; how many that were per second."""
    began = monotonic()
    numbers = iter(range(count))

    async def post_each(numbers: Iterator[int]) -> None:
        for _ in numbers:
            await mail.send(QUEUE, bytes(100), to=peer)

    await asyncio.gather(*(post_each(numbers) for _ in range(IN_FLIGHT)))
    return count / (monotonic() - began)


def restart(announce: Announce, path: Path, loop: str) -> None:
    """Body of the process that starts on a full store."""

    async def work() -> None:
        first: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        async def handle(message: Message, tx: Transaction) -> None:
            if not first.done():
                first.set_result(monotonic())

        async with (
            MessagingService(CLUSTER, "keeper") as service,
            DurableQueues(
                service, SqliteStore(path), directory=StaticPeerDirectory(), config=CONFIG
            ) as mail,
        ):
            await mail.consume(QUEUE, handle)
            announce(await first)

    run(work(), loop)


def _resident_mib() -> float:
    """Memory of this process that is not the cache of a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise LookupError("this kernel does not tell the memory of a process")
