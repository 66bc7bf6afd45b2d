"""Postroad through its public API."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.messaging.job import ACKNOWLEDGEMENT
from benchmarks.messaging.processes import run_client, run_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.messaging.job import Job
    from benchmarks.messaging.workloads import Call
    from postroad.net import MessagingService, RawMessage

CLUSTER = "benchmark"


@asynccontextmanager
async def listen(job: Job) -> AsyncIterator[str]:
    async with _service("server", job) as service:
        service.serve("echo", lambda message: message.payload)
        service.serve("echo_async", _echo)
        service.serve("sink", lambda message: ACKNOWLEDGEMENT)
        yield str(service.address)


@asynccontextmanager
async def connect(job: Job, address: str) -> AsyncIterator[Call]:
    from postroad.net import Address

    async with _service("client", job) as service:
        yield partial(service.request, Address.parse(address), job.subject)


async def _echo(message: RawMessage) -> bytes:
    return message.payload


def greeting() -> bytes:
    """The opening bytes of a version 3 connection, for clients made of raw sockets."""
    from postroad.core.limits import Limits
    from postroad.core.names import Address
    from postroad.wire.codecs.version3 import Version3Codec
    from postroad.wire.frames import ConnectionRole, HelloFrame
    from postroad.wire.handshake import DOCUMENTED, Handshake, encode_preamble

    limits = Limits()
    hello = HelloFrame(
        cluster=CLUSTER,
        name="idle",
        incarnation=1,
        address=Address("127.0.0.1", 1),
        frame_bytes_max=limits.frame_bytes_max,
        requests_pending_max=limits.requests_pending_max,
    )
    out = [Handshake(ConnectionRole.CLIENT, DOCUMENTED, encode_preamble(CLUSTER)).initial_bytes()]
    Version3Codec(limits.frame_bytes_max).encode(out, hello)
    return b"".join(out)


def _service(name: str, job: Job) -> MessagingService:
    from postroad.net import MessagingService, TlsConfig

    tls = None
    if job.certificates:
        tls = TlsConfig(
            certificate=str(job.certificates / f"{name}.pem"),
            key=str(job.certificates / f"{name}.key"),
            ca=str(job.certificates / "ca.pem"),
        )
    return MessagingService(CLUSTER, name, bind="127.0.0.1:0", tls=tls)


serve = partial(run_server, listen)
client = partial(run_client, connect)
