"""Request rate, latency and goodput between two processes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Comparison, Contender, Section
from benchmarks.machine import usable_cores
from benchmarks.messaging.certificates import issue_certificates
from benchmarks.messaging.job import MEBIBYTE, Job
from benchmarks.messaging.peers import (
    bare,
    grpc_unary,
    nats_core,
    ours,
    raw_socket,
    zmq_router,
)
from benchmarks.messaging.processes import sample

if TYPE_CHECKING:
    from benchmarks.harness import Settings
    from benchmarks.messaging.job import Workload
    from benchmarks.messaging.processes import Peer

POSTROAD = "postroad"
POSTROAD_ASYNC = "postroad with an async def handler"
POSTROAD_TLS = "postroad with mutual TLS 1.3"
POSTROAD_ASYNCIO = "postroad on the asyncio loop"
BARE = "bare asyncio.Protocol"
NATS = "nats-py and nats-server"
GRPC = "grpc.aio unary"
ZMQ = "pyzmq asyncio DEALER/ROUTER"
RAW = "raw blocking sockets"


def rate_section(settings: Settings) -> Section:
    """Requests per second with many in flight."""
    job = _job("rate", settings, in_flight=512)
    case = "echo 100 B, 512 in flight"
    return Section(
        title=case,
        unit="requests/s",
        contenders=[
            _contender(POSTROAD, ours, job),
            _contender(BARE, bare, job),
            _contender(NATS, nats_core, job),
            _contender(GRPC, grpc_unary, job),
            _contender(ZMQ, zmq_router, job),
            _contender(POSTROAD_ASYNC, ours, replace(job, has_async_handler=True)),
            _contender(POSTROAD_TLS, ours, _secured(job, settings)),
            _contender(POSTROAD_ASYNCIO, ours, replace(job, loop="asyncio")),
        ],
        comparisons=[
            Comparison(case, POSTROAD, NATS, goal=6.0),
            Comparison(case, POSTROAD, GRPC, goal=20.0),
            Comparison(case, POSTROAD, BARE, goal=0.5),
            Comparison(case, POSTROAD, ZMQ),
            # The handlers of nats-py are coroutine functions too.
            Comparison(f"{case}, async def handlers", POSTROAD_ASYNC, NATS, goal=5.0),
            Comparison(f"{case}, ours with TLS", POSTROAD_TLS, POSTROAD),
            Comparison(f"{case}, ours on asyncio loop", POSTROAD_ASYNCIO, POSTROAD),
        ],
    )


def shared_core_section(settings: Settings) -> Section:
    """Median time of one request when client and server take turns on one core.

    Nothing sleeps here, so this shows what the code costs. Left alone, the kernel puts the two
    processes on one core or on two as it pleases, and the results differ several times over.
    """
    first, _ = _two_cores()
    job = replace(_job("latency", settings), cores=(first, first))
    case = "echo 100 B, 1 in flight, p50, both on one core"
    return Section(
        title=case,
        unit="µs",
        contenders=[
            _contender(POSTROAD, ours, job),
            _contender(BARE, bare, job),
        ],
        comparisons=[Comparison(case, POSTROAD, BARE, goal=1.4, at_most=True)],
    )


def own_core_section(settings: Settings) -> Section:
    """Median time of one request when each process has its core and wakes the other."""
    job = replace(_job("latency", settings), cores=_two_cores())
    case = "echo 100 B, 1 in flight, p50, a core each"
    return Section(
        title=case,
        unit="µs",
        contenders=[
            _contender(POSTROAD, ours, job),
            _contender(BARE, bare, job),
            _contender(NATS, nats_core, job),
            _contender(GRPC, grpc_unary, job),
            _contender(ZMQ, zmq_router, job),
        ],
        comparisons=[
            Comparison(case, POSTROAD, BARE, goal=1.5, at_most=True),
            Comparison(case, POSTROAD, NATS),
            Comparison(case, POSTROAD, GRPC),
            Comparison(case, POSTROAD, ZMQ),
        ],
    )


def goodput_section(settings: Settings) -> Section:
    """Payload bytes per second of large requests with small replies."""
    job = _job("goodput", settings, in_flight=4, payload_bytes=MEBIBYTE)
    case = "1 MiB requests, 1 B replies, 4 in flight"
    return Section(
        title=case,
        unit="MiB/s",
        contenders=[
            _contender(POSTROAD, ours, job),
            _contender(RAW, raw_socket, job),
            _contender(POSTROAD_TLS, ours, _secured(job, settings)),
        ],
        comparisons=[
            Comparison(case, POSTROAD, RAW, goal=0.6),
            Comparison(f"{case}, ours with TLS", POSTROAD_TLS, POSTROAD),
        ],
    )


def _contender(name: str, peer: Peer, job: Job) -> Contender:
    return Contender(name, partial(sample, peer, job))


def _two_cores() -> tuple[int, int]:
    cores = usable_cores()
    return cores[0], cores[-1]


def _secured(job: Job, settings: Settings) -> Job:
    return replace(job, certificates=issue_certificates(settings.scratch / "certificates"))


def _job(
    workload: Workload, settings: Settings, *, in_flight: int = 1, payload_bytes: int = 100
) -> Job:
    return Job(
        workload,
        loop=settings.loop,
        seconds=settings.seconds,
        warmup_s=settings.warmup_s,
        scratch=settings.scratch,
        in_flight=in_flight,
        payload_bytes=payload_bytes,
    )
