"""What transports do, over real sockets on loopback and over the memory network alike."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from tests.contract.transport_ends import (
    HOST,
    Fragile,
    FragileLikeTheSystem,
    IntoPlace,
    Lasting,
    Mailbox,
    Recorder,
    connection,
)
from tests.support.net.raw_peers import on_loops

LARGE = bytes(range(256)) * 16 * 1024
every_transport = on_loops("asyncio", "uvloop", "memory", "memory, other seed")


# Data.


@every_transport
async def test_bytes_arrive_whole_and_in_order() -> None:
    async with connection() as (near, far):
        pieces = [bytes([number % 256]) * (number % 50 + 1) for number in range(500)]
        for piece in pieces:
            near.transport.write(piece)
        expected = b"".join(pieces)
        await far.until_received(len(expected))
        assert far.data == expected
        far.transport.writelines([b"an", bytearray(b"sw"), memoryview(b"er")])
        await near.until_received(6)
        assert near.data == b"answer"
        assert near.told[0] == far.told[0] == "made"


@every_transport
async def test_both_ends_know_both_addresses() -> None:
    async with connection() as (near, far):
        own, peer = (near.transport.get_extra_info(name) for name in ("sockname", "peername"))
        assert own == far.transport.get_extra_info("peername")
        assert peer == far.transport.get_extra_info("sockname")
        assert own[0] == peer[0] == HOST
        assert own[1] != peer[1]
        assert near.transport.get_extra_info("nonsense", 5) == 5
        assert near.transport.get_protocol() is near


@every_transport
async def test_close_writes_what_is_buffered() -> None:
    async with connection() as (near, far):
        near.transport.write(LARGE)
        near.transport.close()
        assert near.transport.is_closing()
        await far.until_told("lost")
        await near.until_told("lost")
        assert far.data == LARGE
        assert near.losses == far.losses == [None]
        assert far.told.index("eof") < far.told.index("lost")


@every_transport
async def test_abort_notifies_the_protocol_once_and_the_peer() -> None:
    async with connection() as (near, far):
        near.transport.write(b"before")
        await far.until_received(6)
        near.transport.abort()
        near.transport.abort()
        await near.until_told("lost")
        await far.until_told("lost")
        assert near.losses == [None]


@every_transport
async def test_close_with_unread_data_resets_the_peer() -> None:
    async with connection() as (near, far):
        far.transport.pause_reading()
        while "pause" not in near.told:
            near.transport.write(LARGE)
            await asyncio.sleep(0)
        far.transport.abort()
        await near.until_told("lost")
        (error,) = near.losses
        assert isinstance(error, ConnectionResetError | BrokenPipeError)
        assert not far.data


# Ends.


@every_transport
async def test_one_direction_may_end_before_the_other() -> None:
    async with connection(far_kind=Lasting) as (near, far):
        assert near.transport.can_write_eof()
        near.transport.write(b"question")
        near.transport.write_eof()
        with pytest.raises(RuntimeError):
            near.transport.write(b"more")
        await far.until_told("eof")
        assert far.data == b"question"
        far.transport.write(b"answer")
        await near.until_received(6)
        far.transport.close()
        await near.until_told("lost")
        await far.until_told("lost")
        assert near.losses == far.losses == [None]


@every_transport
async def test_eof_closes_a_protocol_that_does_not_stay_open() -> None:
    async with connection() as (near, far):
        near.transport.write_eof()
        await far.until_told("lost")
        await near.until_told("lost")
        assert far.told == ["made", "eof", "lost"]
        assert near.told == ["made", "eof", "lost"]


# Reading.


@every_transport
async def test_resumed_reader_receives_all_data() -> None:
    async with connection() as (near, far):
        assert far.transport.is_reading()
        far.transport.pause_reading()
        assert not far.transport.is_reading()
        near.transport.write(b"one")
        far.transport.write(b"proof that time passes")
        await near.until_received(22)
        assert not far.data
        far.transport.resume_reading()
        await far.until_received(3)
        assert far.data == b"one"


@every_transport
@pytest.mark.parametrize("size", [1, 700, 100_000])
async def test_protocol_may_change_while_open(size: int) -> None:
    async with connection() as (near, far):
        near.transport.write(b"plain")
        await far.until_received(5)
        far.transport.pause_reading()
        far.transport.set_protocol(IntoPlace(far, size))
        far.transport.resume_reading()
        text = LARGE[:20_000]
        near.transport.write(text)
        await far.until_received(5 + len(text))
        far.transport.pause_reading()
        far.transport.set_protocol(far)
        far.transport.resume_reading()
        near.transport.write(b"again")
        near.transport.close()
        await far.until_told("lost")
        assert far.data == b"plain" + text + b"again"


@every_transport
@pytest.mark.parametrize("kind", [Fragile, FragileLikeTheSystem])
async def test_failing_protocol_loses_its_connection(kind: type[Recorder]) -> None:
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    async with connection(far_kind=kind) as (near, far):
        near.transport.write(b"x")
        await far.until_told("lost")
        await near.until_told("lost")
        (error,) = far.losses
        assert "planted" in str(error)
    # asyncio's own loop takes an OSError for one of the socket, and keeps it to itself.
    if kind is Fragile:
        assert [context["exception"] for context in reported] == [error]


# Back-pressure.


@every_transport
async def test_slow_reader_holds_the_writer() -> None:
    async with connection() as (near, far):
        near.transport.set_write_buffer_limits(high=100_000, low=10_000)
        assert near.transport.get_write_buffer_limits() == (10_000, 100_000)
        far.transport.pause_reading()
        rounds = 0
        while "pause" not in near.told:
            near.transport.write(LARGE)
            rounds += 1
            await asyncio.sleep(0)
        assert near.transport.get_write_buffer_size() > 100_000
        far.transport.resume_reading()
        await near.until_told("resume")
        assert near.transport.get_write_buffer_size() <= 10_000
        await far.until_received(rounds * len(LARGE))
        assert far.data == LARGE * rounds
        assert near.told.count("pause") == near.told.count("resume") == 1


@every_transport
async def test_wrong_arguments_are_refused() -> None:
    async with connection() as (near, _):
        with pytest.raises(ValueError, match="low"):
            near.transport.set_write_buffer_limits(high=1, low=2)
        with pytest.raises(TypeError):
            near.transport.write("text")  # type: ignore[arg-type]  # What is tested.


# Connecting and listening.


@every_transport
async def test_connect_without_listener_is_refused() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Recorder, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(Recorder, HOST, port)


@every_transport
async def test_listen_on_a_port_in_use_fails() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Recorder, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    assert port > 0
    with pytest.raises(OSError) as caught:
        await loop.create_server(Recorder, HOST, port)
    assert caught.value.errno == errno.EADDRINUSE
    server.close()
    again = await loop.create_server(Recorder, HOST, port)
    again.close()


@every_transport
async def test_server_serves_once_it_is_started() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Recorder, HOST, 0, start_serving=False)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(Recorder, HOST, port)
    await server.start_serving()
    assert server.is_serving()
    transport, near = await loop.create_connection(Recorder, HOST, port)
    server.close()
    assert not server.is_serving()
    with pytest.raises(ConnectionRefusedError):
        await loop.create_connection(Recorder, HOST, port)
    assert not near.losses
    transport.abort()
    await near.until_told("lost")


@every_transport
async def test_streams_of_asyncio() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(echo, HOST, 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(LARGE)
    writer.write_eof()
    assert await reader.read() == LARGE
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


# Datagrams.


@every_transport
async def test_datagram_is_delivered_with_its_sender() -> None:
    loop = asyncio.get_running_loop()
    one, first = await loop.create_datagram_endpoint(Mailbox, local_addr=(HOST, 0))
    two, second = await loop.create_datagram_endpoint(Mailbox, local_addr=(HOST, 0))
    own, other = (end.get_extra_info("sockname") for end in (one, two))
    one.sendto(b"question", other)
    assert await second.received.get() == (b"question", own)
    two.sendto(b"answer", own)
    assert await first.received.get() == (b"answer", other)
    for transport, mailbox in ((one, first), (two, second)):
        transport.close()
        assert transport.is_closing()
        await mailbox.closed.wait()


@every_transport
async def test_connected_datagram_socket_reports_refusal() -> None:
    loop = asyncio.get_running_loop()
    gone, mailbox = await loop.create_datagram_endpoint(Mailbox, local_addr=(HOST, 0))
    address = gone.get_extra_info("sockname")
    gone.close()
    await mailbox.closed.wait()
    transport, lonely = await loop.create_datagram_endpoint(Mailbox, remote_addr=address)
    assert transport.get_extra_info("peername") == address
    transport.sendto(b"hello")
    assert isinstance(await lonely.errors.get(), ConnectionRefusedError)
    transport.close()
    await lonely.closed.wait()


# uvloop forgets to close the socket that it could not bind.
@on_loops("asyncio", "memory")
async def test_datagram_port_in_use_fails() -> None:
    loop = asyncio.get_running_loop()
    transport, mailbox = await loop.create_datagram_endpoint(Mailbox, local_addr=(HOST, 0))
    address = transport.get_extra_info("sockname")
    try:
        with pytest.raises(OSError, match=r"bind|in use"):
            await loop.create_datagram_endpoint(Mailbox, local_addr=address)
    finally:
        transport.close()
        await mailbox.closed.wait()


@every_transport
async def test_numeric_address_resolves_to_itself() -> None:
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo("127.0.0.1", 80, type=1)
    assert [(entry[1], entry[4]) for entry in entries] == [(1, ("127.0.0.1", 80))]
