"""The desk that Spark asks, and those who connect to it without the right to."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from postroad.core.errors import MessagingError
from postroad.net import MessagingService, ProtocolConfig
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.spark.coordinator_client import (
    CLUSTER,
    LIMITS,
    SUBJECT,
    CoordinatorEndpoint,
    GetInitialOffset,
    desk_client,
    encode,
    read_question,
)
from postroad.pipeline.spark.coordinator_server import CoordinatorServer
from postroad.wire import encode_preamble
from tests.support.deadlines import eventually
from tests.support.pipeline.desk_jobs import count_to, input_task, job_of, open_desk

JOB = job_of(input_task(batch_size=3))
HASTY = msgspec.structs.replace(LIMITS, handshake_timeout_s=0.2)
LENGTH = 256 * 1024 * 1024 - 1_024


@asynccontextmanager
async def hosted(bind: str = "127.0.0.1:0", **settings: Any) -> AsyncIterator[CoordinatorEndpoint]:
    async with open_desk(JOB, {"in": count_to(9)}) as it:
        host = CoordinatorServer(CompiledJob(JOB), it.desk, bind, **settings)
        try:
            yield await host.start()
        finally:
            await host.stop()


async def check_work(address: CoordinatorEndpoint) -> None:
    """One of Spark's processes is answered."""
    client = await asyncio.to_thread(desk_client, address)
    assert await asyncio.to_thread(client.initial_offset) == 0


@pytest.mark.parametrize(
    ("version", "secret"), [(1, None), (2, None), (3, None), (3, "the token of another job")]
)
async def test_stranger_is_refused_before_it_can_ask(version: int, secret: str | None) -> None:
    protocol = ProtocolConfig(version_max=version)
    service = MessagingService(CLUSTER, "stranger", protocol=protocol, secret=secret)
    async with hosted() as address, service:
        with pytest.raises(MessagingError):
            await service.request(address.address, SUBJECT, encode(GetInitialOffset()))
        await check_work(address)


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_large_frame_of_a_stranger_is_not_taken(version: int) -> None:
    """Three connections that begin a frame of 256 MiB held 810 MB."""
    async with hosted() as address, AsyncExitStack() as stack:
        for _ in range(3):
            host, port = address.address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(encode_preamble(CLUSTER) + struct.pack(">h", version))
            writer.write(large_frame(version))
            sent = 0
            with pytest.raises(ConnectionError):
                # Far less than the frame goes into buffers of the system.
                while sent < LENGTH // 4:
                    writer.write(bytes(64 * 1024))
                    await writer.drain()
                    sent += 64 * 1024
                    if reader.at_eof():
                        raise ConnectionResetError
                    await asyncio.sleep(0)
        await check_work(address)


def large_frame(version: int) -> bytes:
    """How a request of nearly the greatest size begins."""
    if version == 3:
        return struct.pack(">IIIQ", LENGTH, 1 << 24 | len(SUBJECT), 0, 1) + SUBJECT.encode()
    hosts = {1: b"\x04\x7f\x00\x00\x01", 2: b"\x00\x09127.0.0.1"}
    return hosts[version] + struct.pack(">iBqi", 1, 1, 1, LENGTH)


async def test_connection_that_shows_no_token_is_closed_soon() -> None:
    async with hosted(limits=HASTY) as address:
        host, port = address.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(encode_preamble(CLUSTER) + struct.pack(">h", 3))
            while await reader.read(1_024):
                pass
        finally:
            writer.close()
        await check_work(address)


async def test_connections_have_a_limit() -> None:
    limits = msgspec.structs.replace(LIMITS, accepted_connections_max=3, handshake_timeout_s=30.0)
    async with hosted(limits=limits) as address, AsyncExitStack() as stack:
        host, port = address.address.rsplit(":", 1)
        ends = []
        for _ in range(5):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            ends.append(asyncio.ensure_future(end_of(reader)))
            stack.callback(ends[-1].cancel)
        await eventually(lambda: sum(end.done() for end in ends) == 2, "two are closed")


async def end_of(reader: asyncio.StreamReader) -> None:
    """Wait until a connection is closed by the other side."""
    with suppress(ConnectionError):
        await reader.read()


# What goes over the network.


async def test_token_is_not_sent() -> None:
    seen = bytearray()
    async with hosted() as address, listening(address, seen) as between:
        await check_work(between)
    assert CLUSTER.encode() in seen
    assert address.token.encode() not in seen


async def test_desk_that_others_can_reach_speaks_tls() -> None:
    seen = bytearray()
    async with hosted("0.0.0.0:0") as address, listening(address, seen) as between:
        assert address.certificate
        await check_work(address)
        await check_work(between)
        assert seen
        assert CLUSTER.encode() not in seen
        for secret in (None, address.token):
            # Also who knows the token needs the certificate.
            async with MessagingService(CLUSTER, "worker", secret=secret) as service:
                with pytest.raises(MessagingError):
                    await service.request(address.address, SUBJECT, encode(GetInitialOffset()))


def test_what_an_address_shows_is_no_secret() -> None:
    address = CoordinatorEndpoint("127.0.0.1:1", secrets.token_urlsafe(24), b"PRIVATE KEY")
    assert repr(address) == "CoordinatorEndpoint('127.0.0.1:1')"


def test_question_is_read_as_it_was_written() -> None:
    assert read_question(encode(GetInitialOffset())) == GetInitialOffset()


@asynccontextmanager
async def listening(
    address: CoordinatorEndpoint, seen: bytearray
) -> AsyncIterator[CoordinatorEndpoint]:
    """Somebody between the desk and those who ask it, who reads everything."""
    _, port = address.address.rsplit(":", 1)
    tasks: set[asyncio.Task[None]] = set()

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(64 * 1024):
                seen.extend(data)
                target.write(data)
        except ConnectionError:
            return
        finally:
            target.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(port))
        for source, target in ((reader, far_writer), (far_reader, writer)):
            tasks.add(asyncio.create_task(copy(source, target)))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    near_port = server.sockets[0].getsockname()[1]
    try:
        yield msgspec.structs.replace(address, address=f"127.0.0.1:{near_port}")
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await eventually(lambda: all(task.done() for task in tasks), "nobody listens")
