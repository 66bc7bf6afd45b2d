"""The processes of the benchmark: a core, and two satellites that know it alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.messaging.processes import run
from benchmarks.messaging.workloads import measure
from postroad.cells import CellDomain, CellMessage, Role, StaticCoreDiscovery
from postroad.net import MessagingService

if TYPE_CHECKING:
    from benchmarks.children import Announce
    from benchmarks.messaging.job import Job

CLUSTER = "benchmark"


def echo(message: CellMessage) -> bytes:
    """Answer with what came."""
    return message.payload


@asynccontextmanager
async def domain_of(name: str, core_address: str | None) -> AsyncIterator[CellDomain]:
    """A satellite of a core, or a core."""
    cores = {} if core_address is None else {"core": [core_address]}
    role = Role.CORE if core_address is None else Role.SATELLITE
    async with (
        MessagingService(CLUSTER, name) as service,
        CellDomain(service, role=role, core_discovery=StaticCoreDiscovery(cores)) as domain,
    ):
        yield domain


def core(announce: Announce, job: Job) -> None:
    """Pass messages on until killed."""

    async def serve() -> None:
        async with domain_of("core", None) as domain:
            announce(str(domain.service.address))
            await asyncio.Event().wait()

    run(serve(), job.loop)


def satellite_server(announce: Announce, job: Job, core_address: str) -> None:
    """Answer until killed."""

    async def serve() -> None:
        async with domain_of("server", core_address) as domain:
            domain.add_function("echo", echo)
            await domain.call("System@core:echo@server", b"", timeout=30.0)
            announce("ready")
            await asyncio.Event().wait()

    run(serve(), job.loop)


def satellite_client(announce: Announce, job: Job, core_address: str) -> None:
    """Call and announce the rate."""

    async def call_on() -> None:
        async with domain_of("client", core_address) as domain:
            announce(await measure(lambda body: domain.call("echo@server", body), job))

    run(call_on(), job.loop)


def local(announce: Announce, job: Job) -> None:
    """Call a cell of the own domain and announce the rate."""

    async def call_on() -> None:
        async with domain_of("single", None) as domain:
            domain.add_function("echo", echo)
            announce(await measure(lambda body: domain.call("echo", body), job))

    run(call_on(), job.loop)
