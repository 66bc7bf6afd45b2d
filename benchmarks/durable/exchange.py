"""Messages per second, and how often the disk is made to keep them."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from benchmarks.durable.contenders import CONTENDERS, OURS, PEERS
from benchmarks.durable.fsyncs import find_strace, fsyncs_per_message
from benchmarks.durable.job import Job
from benchmarks.durable.processes import open_line
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.terminal import say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.durable.processes import Peer
    from benchmarks.harness import Settings

# Disks have slow moments: longer samples than those of other benchmarks.
LONGER = 2.5
# How many times as fast as each peer.
GOALS = {
    "RabbitMQ, durable queue": 5.0,
    "NATS JetStream, defaults": 5.0,
    "NATS JetStream, sync always": 10.0,
}
# Servers take long to start.
ROUNDS_MAX = 3


def rate_section(settings: Settings) -> Section:
    """Messages per second from the first publish until all are handled and acknowledged."""
    job = Job(settings.loop, settings.scratch)
    case = f"durable messages of {job.payload_bytes} B, {job.in_flight:,} in flight"
    return Section(
        title=case,
        unit="messages/s",
        contenders=[
            Contender(name, partial(measure_rate, peer, job, LONGER * settings.seconds))
            for name, peer in CONTENDERS.items()
        ],
        comparisons=_comparisons(case, GOALS),
        rounds_max=ROUNDS_MAX,
    )


def fsync_sections(settings: Settings) -> list[Section]:
    """Fsyncs of all processes per message; no section where they cannot be counted."""
    job = Job(settings.loop, settings.scratch)
    case = f"fsyncs per durable message of {job.payload_bytes} B"
    if find_strace() is None:
        say(f"{case}: not counted, because strace is not installed")
        return []
    section = Section(
        title=case,
        unit="fsyncs",
        contenders=[
            Contender(name, partial(fsyncs_per_message, name, job, settings.seconds))
            for name in CONTENDERS
        ],
        comparisons=_comparisons(case),
        rounds_max=1,
    )
    return [section]


def measure_rate(peer: Peer, job: Job, seconds: float) -> float:
    """Take one sample of about that duration."""
    with open_line(peer, job) as line:
        count = line.warm_up(seconds)
        return count / line.transfer(count)


def _comparisons(case: str, goals: Mapping[str, float] = MappingProxyType({})) -> list[Comparison]:
    return [Comparison(case, ours, peer, goals.get(peer)) for ours in OURS for peer in PEERS]
