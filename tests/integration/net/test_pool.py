"""Connections are shared, ordered, replaced, limited and closed."""

import asyncio

import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import (
    ConnectError,
    ConnectionClosedError,
    RemoteHandlerError,
    ReplyTimeoutError,
)
from postroad.net import Address, Outcome, RawMessage
from tests.support.deadlines import eventually
from tests.support.net.peers import (
    Speech,
    every_speech,
    make_service,
    nothing_left,
    open_sockets,
    running_pair,
    stays,
    subscribe_usual,
    turns,
)
from tests.support.net.raw_peers import holds_for
from tests.support.net.scripts import (
    RawPeer,
    RawServer,
    Script,
    echo,
    greet_only,
    say_nothing,
    unused_address,
)
from tests.support.wire.pairs import version3_frame

# Sharing.


@every_speech
async def test_subjects_of_one_class_share_a_connection(speech: Speech) -> None:
    async with running_pair(speech) as pair:
        for subject in ("bulk.upload", "bulk.copy", "bulk."):
            pair.server.serve(subject, lambda message: message.payload)
            assert await pair.ask(subject, b"1") == b"1"
        assert pair.client.statistics().client_connections == 1
        assert await pair.ask("echo", b"1") == b"1"
        assert pair.client.statistics().client_connections == 2
        assert pair.server.statistics().server_connections == 2


async def test_concurrent_first_users_share_one_dial() -> None:
    async with running_pair() as pair:
        requests = [pair.ask("echo", b"%d" % number) for number in range(100)]
        messages = [pair.tell("echo") for _ in range(10)]
        replies, _ = await asyncio.gather(asyncio.gather(*requests), asyncio.gather(*messages))
        assert replies == [b"%d" % number for number in range(100)]
        assert pair.client.statistics().connections_opened == 1
        assert pair.server.statistics().connections_accepted == 1


async def test_pool_cancelled_first_caller_does_not_cancel_dial() -> None:
    go = asyncio.Event()

    async def greet_late(peer: RawPeer) -> None:
        await go.wait()
        await echo(peer)

    async with RawServer(greet_late) as server, make_service("client") as client:
        first = asyncio.create_task(client.request(server.address, "echo", b"1", timeout=0.03))
        second = asyncio.create_task(client.request(server.address, "echo", b"2"))
        with pytest.raises(ReplyTimeoutError):
            await first
        go.set()
        assert await second == b"2"
        assert server.accepted == 1


async def test_different_addresses_and_spellings_do_not_share() -> None:
    async with running_pair() as pair:
        port = pair.server.address.port
        assert await pair.ask("echo", b"1") == b"1"
        assert await pair.client.request(f"localhost:{port}", "echo", b"1") == b"1"
        assert await pair.client.request(f"127.0.0.1:{port}", "echo", b"1") == b"1"
        assert pair.client.statistics().client_connections == 2


async def test_a_service_reaches_itself_under_another_name() -> None:
    async with make_service("alone") as service:
        subscribe_usual(service)
        other = Address("localhost", service.address.port)
        assert await service.request(other, "echo", b"1") == b"1"
        assert service.statistics().connections_accepted == 1


async def test_fault_point_before_connecting() -> None:
    def fail(**_details: object) -> None:
        raise ConnectError("planted")

    async with running_pair() as pair:
        with faults.arm_fault_point("net.dial.before_connect", fail), pytest.raises(ConnectError):
            await pair.ask("echo")
        assert await pair.ask("echo", b"1") == b"1"


# Order.


@every_speech
async def test_requests_arrive_in_the_order_of_the_calls(speech: Speech) -> None:
    """Also when callers wait for room, and whatever the sizes are."""
    sizes = [1, 70_000, 2, 300_000, 3, 65_535, 65_536, 4] * 5
    limits = {"requests_pending_max": 3}
    for options in ({}, limits, {"write_buffer_bytes_max": 10_000}):
        seen: list[bytes] = []

        async def note(message: RawMessage, seen: list[bytes] = seen) -> bytes:
            seen.append(message.payload)
            await asyncio.sleep(0)
            return b""

        payloads = [b"%d" % number for number in range(300)]
        if "write_buffer_bytes_max" in options:
            payloads = [bytes(size) for size in sizes]
        async with running_pair(speech, client_limits=options) as pair:
            pair.server.serve("note", note)
            await asyncio.gather(
                *(asyncio.create_task(pair.ask("note", payload)) for payload in payloads)
            )
            assert seen == payloads


async def test_waiting_caller_is_not_overtaken() -> None:
    """Who asks again as soon as it is answered must stand behind those who asked before."""
    seen: list[bytes] = []

    async def note(message: RawMessage) -> bytes:
        seen.append(message.payload)
        await asyncio.sleep(0)
        return b""

    async with running_pair(client_limits={"requests_pending_max": 1}) as pair:
        pair.server.serve("note", note)

        async def ask_again_and_again() -> None:
            for number in range(50):
                await pair.ask("note", b"again %d" % number)

        greedy = asyncio.create_task(ask_again_and_again())
        await eventually(lambda: pair.client.statistics().requests_sent > 2)
        patient = asyncio.create_task(pair.ask("note", b"patient"))
        await asyncio.sleep(0)
        sent_before = pair.client.statistics().requests_sent
        await asyncio.gather(greedy, patient)
        assert seen.index(b"patient") <= sent_before + 1


async def test_bulk_traffic_does_not_delay_small_requests() -> None:
    """The bulk connection stands still, and small requests pass as if it were not there."""
    async with running_pair(server_limits={"handlers_running_max": 2}) as pair:
        bulk = pair.gate
        pair.server.serve("bulk.upload", bulk)
        uploads = [asyncio.create_task(pair.ask("bulk.upload", bytes(500_000))) for _ in range(40)]
        await eventually(lambda: bulk.waiting == 2)
        await stays(lambda: bulk.waiting == 2)
        for number in range(100):
            assert await pair.ask("echo", b"%d" % number) == b"%d" % number
        assert bulk.finished == 0
        bulk.open()
        assert await asyncio.gather(*uploads) == [b"done"] * 40


# Replacement.


@every_speech
async def test_reconnects_after_the_server_restarted(speech: Speech) -> None:
    async with make_service("client", speech) as client:
        async with make_service("server", speech) as first:
            subscribe_usual(first)
            address = first.address
            assert await client.request(address, "echo", b"1") == b"1"
        with pytest.raises(ConnectError):
            await client.request(address, "echo", b"2")
        async with make_service("server", speech, bind=address) as second:
            subscribe_usual(second)
            assert await client.request(address, "echo", b"3") == b"3"
        assert client.statistics().connections_opened == 2


async def test_a_failed_connect_is_forgotten() -> None:
    address = unused_address()
    async with make_service("client") as client:
        for _ in range(3):
            with pytest.raises(ConnectError):
                await client.request(address, "echo")
        async with make_service("server", bind=address) as server:
            subscribe_usual(server)
            assert await client.request(address, "echo", b"1") == b"1"


@pytest.mark.parametrize("way", ["request", "send"])
async def test_wait_for_connection_retries_until_server_listens(way: str) -> None:
    address = unused_address()
    limits = {"initial_backoff_s": 0.002, "max_backoff_s": 0.01}
    async with make_service("client", limits=limits) as client:
        send = client.request if way == "request" else client.send
        waiting = asyncio.create_task(
            send(address, "echo", b"1", timeout=20.0, wait_for_connection=True)
        )
        await eventually(lambda: client.statistics().connections_failed >= 3)
        assert not waiting.done()
        async with make_service("server", bind=address) as server:
            subscribe_usual(server)
            assert await waiting == (b"1" if way == "request" else None)
            await eventually(lambda: server.statistics().requests_received == 1)


async def test_wait_for_connection_backs_off() -> None:
    address = unused_address()
    limits = {"initial_backoff_s": 0.1, "max_backoff_s": 10.0}
    async with make_service("client", limits=limits) as client:
        with pytest.raises(ReplyTimeoutError) as caught:
            await client.request(address, "echo", timeout=0.5, wait_for_connection=True)
        assert caught.value.outcome is Outcome.NOT_SENT
        # Pauses of at least 50, 100 and 200 ms fit, a fourth does not.
        assert 2 <= client.statistics().connections_failed <= 5


async def test_wait_for_connection_covers_connecting_only() -> None:
    async def take_and_close(peer: RawPeer) -> None:
        await peer.greet()
        await peer.read_request()
        peer.close()

    async with RawServer(take_and_close) as server, make_service("client") as client:
        with pytest.raises(ConnectionClosedError) as caught:
            await client.request(server.address, "echo", wait_for_connection=True)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert server.accepted == 1


async def test_draining_connection_is_replaced_while_it_finishes() -> None:
    """The peer said goodbye: new requests take a new connection, the old one is answered."""
    first_request = asyncio.Event()
    leave = asyncio.Event()
    finish = asyncio.Event()

    async def say_goodbye(peer: RawPeer) -> None:
        await peer.greet()
        request = await peer.read_request()
        if first_request.is_set():
            await peer.reply(request.id, b"second")
            await peer.read_to_end()
            return
        first_request.set()
        await leave.wait()
        await peer.write(version3_frame(7, b"moving"))
        await finish.wait()
        await peer.reply(request.id, b"first")
        await peer.read_to_end()

    async with RawServer(say_goodbye) as server, make_service("client") as client:
        first = asyncio.create_task(client.request(server.address, "echo"))
        await first_request.wait()
        before = client.statistics().bytes_received
        leave.set()
        await eventually(lambda: client.statistics().bytes_received > before)
        assert await client.request(server.address, "echo") == b"second"
        assert not first.done()
        finish.set()
        assert await first == b"first"
        assert server.accepted == 2
        await eventually(lambda: client.statistics().client_connections == 1)


# Limits and closing.


@every_speech
async def test_idle_connections_are_closed(speech: Speech) -> None:
    async with running_pair(speech, client_limits={"idle_timeout_s": 0.5}) as pair:
        assert await pair.ask("echo", b"1") == b"1"
        assert pair.client.statistics().client_connections == 1
        await eventually(lambda: pair.client.statistics().client_connections == 0)
        await eventually(lambda: pair.server.statistics().server_connections == 0)
        assert await pair.ask("echo", b"2") == b"2"
        assert pair.client.statistics().connections_opened == 2
        assert pair.client.statistics().connections_lost == 0
        assert pair.server.statistics().connections_lost == 0


async def test_a_connection_with_a_request_in_flight_is_not_idle() -> None:
    limits = {"idle_timeout_s": 0.2, "heartbeat_interval_s": 0.05, "heartbeat_timeout_s": 5.0}
    async with running_pair(client_limits=limits) as pair:
        (request,) = await pair.begin()
        await holds_for(lambda: pair.client.statistics().client_connections == 1, "it is used", 0.6)
        pair.gate.open()
        assert await request == b"done"
        await eventually(lambda: pair.client.statistics().client_connections == 0)


async def test_the_cap_closes_the_connection_unused_for_longest() -> None:
    async with running_pair(client_limits={"connections_max": 2}) as pair:
        for subject in ("a.x", "b.x", "c.x"):
            pair.server.serve(subject, lambda message: message.payload)
        for subject in ("a.x", "b.x", "a.x", "c.x"):
            # A clock of milliseconds must be able to tell one use from the next.
            await turns(3)
            await pair.ask(subject)
        assert pair.client.statistics().client_connections == 2
        assert pair.client.statistics().connections_opened == 3
        # "b" had to go, "a" is still there.
        await pair.ask("a.x")
        assert pair.client.statistics().connections_opened == 3
        await eventually(lambda: pair.server.statistics().server_connections == 2)


async def test_the_cap_refuses_when_all_are_in_use() -> None:
    async with running_pair(client_limits={"connections_max": 2}) as pair:
        for subject in ("a.x", "b.x"):
            pair.server.serve(subject, pair.gate)
        busy = [asyncio.create_task(pair.ask(subject)) for subject in ("a.x", "b.x")]
        await eventually(lambda: pair.gate.waiting == 2)
        for keep_alive in (True, False):
            with pytest.raises(ConnectError, match="connections_max") as caught:
                await pair.ask("c.x", keep_alive=keep_alive)
            assert caught.value.retryable
            assert caught.value.outcome is Outcome.NOT_SENT
        pair.gate.open()
        await asyncio.gather(*busy)


async def test_the_cap_holds_for_concurrent_transient_requests() -> None:
    async with running_pair(client_limits={"connections_max": 5}) as pair:
        requests = [asyncio.create_task(pair.ask("gate", keep_alive=False)) for _ in range(40)]
        await eventually(lambda: pair.gate.waiting >= 5)
        await stays(lambda: pair.gate.waiting == 5)
        pair.gate.open()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert results.count(b"done") == 5
        assert sum(isinstance(result, ConnectError) for result in results) == 35


async def test_accepted_connections_max() -> None:
    async with running_pair(server_limits={"accepted_connections_max": 2}) as pair:
        peers = [await RawPeer.connect(pair.server.address) for _ in range(2)]
        with pytest.raises(ConnectionClosedError) as caught:
            await pair.ask("echo")
        assert caught.value.outcome is Outcome.NOT_SENT
        assert pair.server.statistics().connections_rejected == 1
        assert pair.server.statistics().server_connections == 2
        for peer in peers:
            peer.close()
        await eventually(lambda: pair.server.statistics().server_connections == 0)
        assert await pair.ask("echo", b"1") == b"1"


# Transient requests.


@every_speech
async def test_transient_requests_close_their_connection(speech: Speech) -> None:
    async with running_pair(speech) as pair:
        for number in range(20):
            assert await pair.ask("echo", b"%d" % number, keep_alive=False) == b"%d" % number
        assert pair.client.statistics().connections_opened == 20
        await eventually(lambda: pair.client.statistics().client_connections == 0)
        await eventually(lambda: pair.server.statistics().server_connections == 0)
        assert pair.server.statistics().connections_lost == 0


@pytest.mark.parametrize(("script", "timeout"), [(greet_only, 0.05), (say_nothing, 0.002)])
async def test_transient_requests_that_time_out_leave_no_socket(
    script: Script, timeout: float
) -> None:
    """In the handshake, or later."""
    async with nothing_left(), RawServer(script) as server, make_service("client") as client:
        before = len(open_sockets())

        async def time_out() -> None:
            with pytest.raises(ReplyTimeoutError):
                await client.request(server.address, "hang", timeout=timeout, keep_alive=False)

        for _ in range(10):
            await asyncio.gather(*(time_out() for _ in range(50)))
            server.hang_up()
        assert client.statistics().requests_pending == 0
        await eventually(lambda: client.statistics().client_connections == 0)

        def is_all_closed() -> bool:
            server.hang_up()
            return len(open_sockets()) <= before

        await eventually(is_all_closed)


async def test_transient_requests_that_fail_or_are_cancelled_leave_no_socket() -> None:
    def fail(_message: RawMessage) -> bytes:
        raise ValueError("no")

    async with nothing_left(), running_pair() as pair:
        pair.server.serve("fail", fail)
        before = open_sockets()
        for _ in range(20):
            with pytest.raises(RemoteHandlerError):
                await pair.ask("fail", keep_alive=False)
        await eventually(lambda: open_sockets() <= before)
        requests = [asyncio.create_task(pair.ask("hang", keep_alive=False)) for _ in range(20)]
        await eventually(lambda: pair.server.statistics().handlers_running >= 10)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await eventually(lambda: open_sockets() <= before)
        await eventually(lambda: pair.server.statistics().handlers_running == 0)
