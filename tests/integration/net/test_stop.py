"""Starting and stopping: what is in flight finishes or fails clearly; nothing is left behind."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from postroad.core import errors
from postroad.core.errors import ConfigError
from postroad.net import (
    DatagramService,
    Limits,
    MessagingService,
    Outcome,
    ProtocolConfig,
    RawMessage,
)
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net import peers
from tests.support.net.raw_peers import both_loops
from tests.support.net.scripts import RawPeer, RawServer, greet_only, say_nothing, unused_address
from tests.support.net.tls import Authority


@peers.every_speech
@pytest.mark.parametrize("who", ["client", "server"])
async def test_requests_in_flight_finish_within_the_grace(speech: peers.Speech, who: str) -> None:
    async with peers.nothing_left(), peers.running_pair(speech) as pair:
        requests = await pair.begin(5)
        service = pair.client if who == "client" else pair.server
        # A second caller of stop waits as the first does.
        stops = [asyncio.create_task(service.stop(grace=20.0)) for _ in range(2)]
        await peers.stays(lambda: not any(stop.done() for stop in stops))
        pair.gate.open()
        assert await asyncio.gather(*requests) == [b"done"] * 5
        await asyncio.gather(*stops)


@peers.every_speech
@pytest.mark.parametrize("who", ["client", "server"])
async def test_requests_that_outlast_the_grace_fail(speech: peers.Speech, who: str) -> None:
    async with peers.nothing_left(), peers.running_pair(speech) as pair:
        requests = await pair.begin(5)
        await (pair.client if who == "client" else pair.server).stop(grace=0.02)
        expected = errors.NotRunningError if who == "client" else errors.ConnectionClosedError
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [expected] * 5
        assert {
            result.outcome for result in results if isinstance(result, errors.MessagingError)
        } == {Outcome.UNKNOWN}
        # The server learns that nobody waits any more.
        await eventually(lambda: pair.gate.cancelled == 5)


@peers.every_speech
async def test_stopping_an_idle_service_leaves_nothing(speech: peers.Speech) -> None:
    async with peers.nothing_left():
        async with peers.running_pair(speech) as pair:
            assert await pair.ask("echo", b"1") == b"1"
            assert await pair.ask("echo", b"1", keep_alive=False) == b"1"
            pair.server.subscribe("log", lambda _: None)
            await pair.tell("log")
        assert pair.client.statistics().client_connections == 0
        assert pair.server.statistics().server_connections == 0
        # Both sides wanted it.
        assert pair.client.statistics().connections_lost == 0
        assert pair.server.statistics().connections_lost == 0


async def test_requests_after_the_server_said_goodbye_are_refused_clearly() -> None:
    async with peers.running_pair() as pair:
        (first,) = await pair.begin()
        stopping = asyncio.create_task(pair.server.stop(grace=20.0))
        await peers.turns()
        with pytest.raises((errors.ConnectError, errors.NoHandlerError)) as caught:
            await pair.ask("echo")
        assert caught.value.retryable
        pair.gate.open()
        assert await first == b"done"
        await stopping


async def test_service_lives_once() -> None:
    async with peers.nothing_left():
        service = peers.make_service("alone")
        with pytest.raises(errors.UsageError, match="start"):
            service.address  # noqa: B018
        await service.start()
        with pytest.raises(errors.UsageError, match="running"):
            await service.start()
        await service.stop()
        await service.stop()
        with pytest.raises(errors.UsageError, match="create a new one"):
            await service.start()

        # Its start may have been under way without having had its turn.
        service = peers.make_service("alone")
        await service.stop()
        with pytest.raises(errors.UsageError, match="stopped; create a new one"):
            await service.start()


async def test_stop_does_not_wait_for_a_handler_that_ignores_cancellation() -> None:
    async with peers.nothing_left():
        with peers.Stubborn() as stubborn:
            async with peers.running_pair() as pair:
                pair.server.serve("stubborn", stubborn)
                request = asyncio.create_task(pair.ask("stubborn", timeout=30.0))
                await eventually(lambda: stubborn.begun == 1)
                async with asyncio.timeout(DEADLINE_S):
                    await pair.server.stop(grace=0.02)
                with pytest.raises(errors.ConnectionClosedError):
                    await request


async def test_consumers_of_a_lost_connection_are_waited_for() -> None:
    """The sender is gone, but its message was received, so it is handled before the end."""
    gate = peers.Gate()
    async with peers.nothing_left(), peers.make_service("server") as server:
        server.subscribe("gate", gate)
        async with peers.make_service("client") as client:
            await client.send(server.address, "gate")
            await eventually(lambda: gate.waiting == 1)
        await peers.turns()
        assert gate.waiting == 1
        stopping = asyncio.create_task(server.stop(grace=10.0))
        await peers.stays(lambda: not stopping.done())
        gate.open()
        await stopping
        assert gate.finished == 1


async def test_consumers_that_outlast_the_grace_are_cancelled() -> None:
    consumer = peers.Gate()
    async with peers.nothing_left(), peers.running_pair() as pair:
        pair.server.subscribe("log", consumer)
        await pair.tell("log")
        await eventually(lambda: consumer.waiting == 1)
        await pair.client.stop()
        await peers.turns()
        await pair.server.stop(grace=0.02)
        await eventually(lambda: consumer.cancelled == 1)


async def test_messages_sent_before_stop_arrive() -> None:
    """A stop closes the connection after what was handed to it is written."""
    seen: list[bytes] = []
    async with peers.make_service("server") as server:
        server.subscribe("log", lambda message: seen.append(message.payload))
        async with peers.make_service("client") as client:
            for number in range(500):
                await client.send(server.address, "log", b"%d" % number)
        await eventually(lambda: len(seen) == 500)
        assert seen == [b"%d" % number for number in range(500)]


async def test_stop_does_not_wait_for_peers_that_neither_read_nor_close() -> None:
    async with peers.nothing_left(), RawServer(greet_only, receive_buffer=4_096) as server:
        client = peers.make_service("client", limits={"write_buffer_bytes_max": 1_000_000})
        await client.start()
        await client.send(server.address, "log", bytes(4_000_000))
        accepted = await RawPeer.connect(client.address)
        async with asyncio.timeout(DEADLINE_S):
            await client.stop(grace=0.02)
        await accepted.read_to_end()
        accepted.close()


async def test_stop_while_dialing_leaves_nothing() -> None:
    async with peers.nothing_left(), RawServer(say_nothing) as server:
        client = peers.make_service("client")
        await client.start()
        requests = [
            asyncio.create_task(client.request(server.address, subject, keep_alive=keep_alive))
            for subject in ("a.x", "b.x")
            for keep_alive in (True, False)
        ]
        await eventually(lambda: server.accepted == 4)
        await client.stop(grace=0.02)
        for peer in server.peers:
            peer.close()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [type(result) for result in results] == [errors.NotRunningError] * 4


async def test_nothing_is_sent_after_stop() -> None:
    """A transient request whose handshake ends after the stop must not go out."""
    go = asyncio.Event()
    seen: list[str] = []

    async def greet_late(peer: RawPeer) -> None:
        await go.wait()
        await peer.greet()
        seen.append((await peer.read_request()).subject)

    async with RawServer(greet_late) as server:
        client = peers.make_service("client")
        await client.start()
        request = asyncio.create_task(
            client.request(server.address, "late", timeout=30.0, keep_alive=False)
        )
        await eventually(lambda: server.accepted == 1)
        await client.stop(grace=0.02)
        go.set()
        with pytest.raises(errors.NotRunningError):
            await request
        await peers.turns()
        assert not seen


async def test_stop_fails_callers_waiting_for_capacity() -> None:
    async with peers.running_pair(client_limits={"requests_pending_max": 1}) as pair:
        first = asyncio.create_task(pair.ask("hang", timeout=30.0))
        await eventually(lambda: pair.server.statistics().handlers_running == 1)
        second = asyncio.create_task(pair.ask("hang", timeout=30.0))
        await peers.turns(5)
        await pair.client.stop(grace=0.02)
        for request, outcome in ((first, Outcome.UNKNOWN), (second, Outcome.NOT_SENT)):
            with pytest.raises(errors.NotRunningError) as caught:
                await request
            assert caught.value.outcome is outcome


async def test_connection_whose_tls_handshake_ends_after_stop_is_not_served(tmp_path: Path) -> None:
    tls = Authority(tmp_path).tls("server")
    limits = Limits(handshake_timeout_s=0.5, stop_grace_s=0.1)
    service = MessagingService(peers.CLUSTER, "server", tls=tls, limits=limits)
    await service.start()
    context = tls.client_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing)
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    with sock:
        await loop.sock_connect(sock, service.address)
        await peers.turns()
        await service.stop()
        with pytest.raises(ssl.SSLWantReadError):
            session.do_handshake()
        try:
            await loop.sock_sendall(sock, outgoing.read())
            incoming.write(await loop.sock_recv(sock, 65_536))
            session.do_handshake()
            await loop.sock_sendall(sock, outgoing.read())
        except (OSError, ssl.SSLError):
            pass  # Turned away even earlier.
        await peers.turns()
        assert service.statistics().server_connections == 0


# Starting.


async def test_an_address_in_use_is_a_configuration_error() -> None:
    async with peers.nothing_left(), peers.make_service("first") as first:
        second = peers.make_service("second", bind=first.address)
        with pytest.raises(errors.ConfigError, match=f"cannot listen on {first.address}"):
            await second.start()


async def test_context_manager_stops_after_an_error() -> None:
    async with peers.nothing_left():
        with pytest.raises(ZeroDivisionError):
            async with peers.make_service("alone") as service:
                raise ZeroDivisionError
        assert "stopped" in repr(service)


@pytest.mark.parametrize("advertise", ["localhost:0", "localhost:1234", "127.0.0.2:0"])
async def test_advertised_address_is_visible_to_peers(advertise: str) -> None:
    seen: list[RawMessage] = []
    async with peers.running_pair() as pair:
        pair.server.serve("note", seen.append)
        async with MessagingService(peers.CLUSTER, "third", advertise=advertise) as third:
            host, port = advertise.split(":")
            assert third.address.host == host
            assert third.address.port == int(port) or port == "0"
            await third.request(pair.server.address, "note")
            assert seen[0].sender == third.address


async def test_a_connection_during_the_start_is_served() -> None:
    """Whoever connects as soon as the port is open is not met by a half-made service."""
    address = unused_address()
    service = peers.make_service("server", bind=address)
    peers.subscribe_usual(service)
    limits = {"initial_backoff_s": 0.0001, "max_backoff_s": 0.0002}
    async with peers.make_service("client", limits=limits) as client:
        request = asyncio.create_task(
            client.request(address, "echo", b"1", wait_for_connection=True, timeout=10.0)
        )
        await eventually(lambda: client.statistics().connections_failed > 0)
        await service.start()
        assert await request == b"1"
        await service.stop()


# Stopping what is still starting.


def listening_ports() -> set[int]:
    """Ports of this machine at which somebody listens for connections or datagrams."""
    ports = set()
    for name, state in (("tcp", "0A"), ("udp", "07")):
        with open(f"/proc/self/net/{name}", encoding="ascii") as file:
            rows = [line.split() for line in file.read().splitlines()[1:]]
        ports |= {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == state}
    return ports


@both_loops
@pytest.mark.parametrize("kind", [MessagingService, DatagramService])
async def test_service_stopped_during_start_never_runs(
    kind: type[MessagingService] | type[DatagramService],
) -> None:
    # Datagram sockets can be opened again, so a stop before the start means nothing to them.
    for count in range(kind is DatagramService, 8):
        async with peers.nothing_left():
            address = unused_address()
            service = kind(peers.CLUSTER, "alpha", bind=address)
            starting = asyncio.create_task(service.start())
            for _ in range(count):
                await asyncio.sleep(0)
            await service.stop()
            assert address.port not in listening_ports()
            (error,) = await asyncio.gather(starting, return_exceptions=True)
            assert error is None or isinstance(error, errors.NotRunningError | errors.UsageError), (
                error
            )
            assert address.port not in listening_ports()
            await service.stop()


UNRESOLVABLE = "no-such-host.invalid:0"


@pytest.mark.parametrize("profile", ["documented", "zeebe"])
async def test_service_of_version_1_alone_does_not_start_under_a_name_without_ip_address(
    profile: str,
) -> None:
    protocol = ProtocolConfig(profile=profile, version_max=1)
    service = MessagingService(
        "demo", "alpha", "127.0.0.1:0", advertise=UNRESOLVABLE, protocol=protocol
    )
    with pytest.raises(ConfigError, match=r"version 1: host 'no-such-host.invalid' has no IP"):
        await service.start()
    await service.stop()


@pytest.mark.parametrize("profile", ["documented", "zeebe"])
async def test_service_without_ip_address_declines_version_1(
    profile: str, caplog: pytest.LogCaptureFixture
) -> None:
    both = ProtocolConfig(profile=profile, version_max=2)
    oldest = ProtocolConfig(profile=profile, version_max=1)
    async with (
        MessagingService(
            "demo", "alpha", "127.0.0.1:0", advertise=UNRESOLVABLE, protocol=both
        ) as named,
        MessagingService("demo", "beta", "127.0.0.1:0", protocol=both) as peer,
        MessagingService("demo", "gamma", "127.0.0.1:0", protocol=oldest) as old,
    ):
        assert "protocol version 1 is off" in caplog.text
        named.serve("echo", lambda message: message.payload)
        assert await peer.request(named.bound_address, "echo", b"x") == b"x"
        with pytest.raises(ConnectionError):
            await old.request(named.bound_address, "echo", b"x", timeout=5)
        await eventually(lambda: named.statistics().versions_declined == 1)
        assert "offered protocol version 1 and was answered 2" in caplog.text
        assert "Traceback" not in caplog.text
