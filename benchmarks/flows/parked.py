"""Very many flows that wait: what each takes of the memory, and how long a restart takes.

A node keeps some of them in memory and reads the others when something happens to them; the memory
is divided by all.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING

from benchmarks.children import running
from benchmarks.durable.nodes import CLUSTER
from benchmarks.harness import BenchmarkFailed, Comparison, Contender, Section
from benchmarks.messaging.processes import run
from postroad.durable import DurableQueues, SqliteStore, StaticPeerDirectory
from postroad.flows import FlowContext, FlowsConfig, FlowService, FlowStatus, flow
from postroad.net import MessagingService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from benchmarks.children import Announce
    from benchmarks.harness import Settings

COUNT, QUICK_COUNT = 100_000, 20_000
WARM_UP = 1_000
IN_FLIGHT = 1_000
PAGE = 1_000
DAY_S = 86_400.0
TIMEOUT_S = 300.0
KIB_MAX = 2.0
RESTART_S_MAX = 10.0


@flow
async def await_signal(ctx: FlowContext) -> str:
    """Wait for somebody's word, and return it."""
    return await ctx.wait_for_signal("go", str)


@flow
async def sleep_a_day(ctx: FlowContext) -> None:
    """Wait for a time that does not come."""
    await ctx.sleep(DAY_S)


@dataclass(frozen=True)
class Findings:
    """What one crowd showed."""

    kib_each: float
    restarted_kib_each: float
    restart_s: float


class Crowd:
    """Parks the flows once, when the first of its figures is asked for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.size = COUNT if settings.rounds > 1 else QUICK_COUNT

    @cached_property
    def findings(self) -> Findings:
        with TemporaryDirectory(dir=self._settings.scratch) as scratch:
            arguments = (Path(scratch) / "flows.db", self._settings.loop)
            with running(park, *arguments, self.size) as child:
                waiting_id, grown_kib = child.receive(TIMEOUT_S)
            began = monotonic()
            with running(restart, *arguments, waiting_id) as child:
                # The clock is the same in all processes; what Python needs to start counts too.
                ended, restarted_kib = child.receive(TIMEOUT_S)
                left = child.receive(TIMEOUT_S)
        if left != self.size + WARM_UP - 1:
            raise BenchmarkFailed(f"{left:,} flows wait after the restart")
        return Findings(grown_kib / self.size, restarted_kib / self.size, ended - began)

    def measure(self, name: str) -> float:
        """One of the figures."""
        value: float = getattr(self.findings, name)
        return value


def sections(settings: Settings) -> list[Section]:
    """Three figures of one crowd, half of which waits for a signal and half for tomorrow."""
    crowd = Crowd(settings)
    case = f"{crowd.size:,} flows wait"
    in_memory = f"{case}, {FlowsConfig().loaded_flows_max:,} in memory"
    return [
        _section(crowd, f"{in_memory}: memory of each", "KiB", "kib_each", KIB_MAX),
        _section(crowd, f"{case}: memory of each, restarted", "KiB", "restarted_kib_each", KIB_MAX),
        _section(
            crowd,
            f"{case}: start of the process to first result",
            "s",
            "restart_s",
            RESTART_S_MAX,
        ),
    ]


def _section(crowd: Crowd, case: str, unit: str, figure: str, budget: float) -> Section:
    return Section(
        case,
        unit,
        [Contender("postroad", partial(crowd.measure, figure))],
        [Comparison(case, "postroad", "budget", 1.0, at_most=True, budget=budget)],
        rounds_max=1,
    )


@asynccontextmanager
async def flows_on(path: Path) -> AsyncIterator[FlowService]:
    """A node that runs the flows of a store."""
    async with (
        MessagingService(CLUSTER, "keeper") as service,
        DurableQueues(service, SqliteStore(path), directory=StaticPeerDirectory()) as mail,
        FlowService(mail, [await_signal, sleep_a_day]) as flows,
    ):
        yield flows


def park(announce: Announce, path: Path, loop: str, size: int) -> None:
    """Body of the process that begins flows, and is killed with them."""

    async def work() -> None:
        async with flows_on(path) as flows:
            await _begin(flows, WARM_UP)
            before = _resident_kib()
            waiting_id = await _begin(flows, size)
            announce((waiting_id, _resident_kib() - before))
            await asyncio.Event().wait()

    run(work(), loop)


async def _begin(flows: FlowService, count: int) -> str:
    """Begin so many, each kind in turn, and return the id of one that waits for a signal."""
    numbers = iter(range(count))
    waiting_ids = []

    async def begin_each(numbers: Iterator[int]) -> None:
        for number in numbers:
            handle = await (
                flows.start_flow(sleep_a_day) if number % 2 else flows.start_flow(await_signal)
            )
            if number == 0:
                waiting_ids.append(handle.id)

    await asyncio.gather(*(begin_each(numbers) for _ in range(IN_FLIGHT)))
    return waiting_ids[0]


def restart(announce: Announce, path: Path, loop: str, waiting_id: str) -> None:
    """Body of the process that takes them over, and has one of them end."""

    async def work() -> None:
        before = _resident_kib()
        async with flows_on(path) as flows:
            await flows.signal(waiting_id, "go", "gone")
            answer = await (await flows.get_handle(waiting_id)).result()
            if answer != "gone":
                raise ValueError(f"the flow that got a signal returned {answer!r}")
            ended = monotonic()
            announce((ended, _resident_kib() - before))
            announce(await _count_waiting(flows))

    run(work(), loop)


async def _count_waiting(flows: FlowService) -> int:
    """How many still run, page by page."""
    count, last = 0, None
    while page := await flows.admin.list(status=FlowStatus.RUNNING, before=last, limit=PAGE):
        count, last = count + len(page), page[-1].id
    return count


def _resident_kib() -> int:
    """Memory of this process that is not the cache of a file."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise LookupError("this kernel does not tell the memory of a process")
