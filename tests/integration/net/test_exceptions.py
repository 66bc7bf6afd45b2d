"""Each row of the exception table in which the peer did not answer."""

import asyncio

import pytest

from postroad import Address, Outcome
from postroad.core.errors import (
    ConnectFailed,
    ConnectionClosed,
    MessagingError,
    NotRunning,
    RequestTimeout,
)
from tests.support.deadlines import eventually
from tests.support.net.peers import Speech, check_error, every_speech, make_service, running_pair
from tests.support.net.scripts import (
    RawPeer,
    RawServer,
    blackhole,
    raw_versions,
    say_nothing,
    unused_address,
)

# NotRunning.


@every_speech
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_not_running_before_start(speech: Speech, keep_alive: bool) -> None:
    service = make_service("client", speech)
    with pytest.raises(NotRunning, match="not started") as caught:
        await service.request(unused_address(), "echo", keep_alive=keep_alive)
    assert caught.value.outcome is Outcome.NOT_SENT
    assert not caught.value.retryable
    with pytest.raises(NotRunning):
        await service.send(unused_address(), "echo")


@every_speech
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_not_running_after_stop(speech: Speech, keep_alive: bool) -> None:
    async with running_pair(speech) as pair:
        # The connection is open and known, and still may not be used afterwards.
        assert await pair.ask("echo", b"1") == b"1"
        await pair.client.stop()
        with pytest.raises(NotRunning, match="stopped") as caught:
            await pair.ask("echo", keep_alive=keep_alive)
        assert caught.value.outcome is Outcome.NOT_SENT
        with pytest.raises(NotRunning):
            await pair.tell("echo")


@every_speech
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_not_running_when_stopped_in_flight(speech: Speech, keep_alive: bool) -> None:
    async with running_pair(speech) as pair:
        request = asyncio.create_task(pair.ask("hang", timeout=30.0, keep_alive=keep_alive))
        await eventually(lambda: pair.server.statistics().handlers_running == 1)
        await pair.client.stop(grace=0.01)
        with pytest.raises(NotRunning, match="in flight") as caught:
            await request
        check_error(
            caught.value,
            outcome=Outcome.UNKNOWN,
            retryable=False,
            subject="hang",
            peer=pair.server.address,
            timeout=30.0,
        )


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_not_running_when_stopped_while_connecting(keep_alive: bool) -> None:
    async with RawServer(say_nothing) as server, make_service("client") as client:
        request = asyncio.create_task(
            client.request(server.address, "echo", timeout=30.0, keep_alive=keep_alive)
        )
        await eventually(lambda: server.accepted == 1)
        await client.stop(grace=0.01)
        with pytest.raises(NotRunning) as caught:
            async with asyncio.timeout(20.0):
                await request
        assert caught.value.outcome is Outcome.NOT_SENT


async def test_not_running_when_stopped_while_waiting_to_connect() -> None:
    async with make_service("client", limits={"backoff_max_s": 0.05}) as client:
        address = unused_address()
        request = asyncio.create_task(client.request(address, "echo", timeout=30.0, wait=True))
        await eventually(lambda: client.statistics().connections_failed >= 2)
        await client.stop(grace=0.01)
        with pytest.raises(NotRunning) as caught:
            async with asyncio.timeout(20.0):
                await request
        assert caught.value.outcome is Outcome.NOT_SENT


# ConnectFailed.


@every_speech
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_refused(speech: Speech, keep_alive: bool) -> None:
    address = unused_address()
    async with make_service("client", speech) as client:
        with pytest.raises(ConnectFailed, match="cannot connect") as caught:
            await client.request(address, "echo", timeout=2.0, keep_alive=keep_alive)
        check_connect_failed(caught.value, address, 2.0)
        assert client.statistics().connections_failed == 1


async def test_refused_one_way() -> None:
    address = unused_address()
    async with make_service("client") as client:
        with pytest.raises(ConnectFailed) as caught:
            await client.send(address, "echo", timeout=2.0)
        check_connect_failed(caught.value, address, 2.0)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "\udc80", "x" * 300, "-"])
async def test_unresolvable(host: str) -> None:
    address = Address(host, 26502)
    async with make_service("client") as client:
        with pytest.raises(ConnectFailed) as caught:
            await client.request(address, "echo", timeout=4.0)
        assert caught.value.outcome is Outcome.NOT_SENT
        assert caught.value.retryable


@pytest.mark.parametrize("port", [0, 70_000, -1])
async def test_impossible_port(port: int) -> None:
    async with make_service("client") as client:
        with pytest.raises(ConnectFailed):
            await client.request(Address("127.0.0.1", port), "echo", timeout=4.0)


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_connect_timeout(keep_alive: bool) -> None:
    limits = {"connect_timeout_s": 0.05}
    async with blackhole() as address, make_service("client", limits=limits) as client:
        with pytest.raises(ConnectFailed, match=r"no connection within 0\.05 s") as caught:
            await client.request(address, "echo", timeout=10.0, keep_alive=keep_alive)
        check_connect_failed(caught.value, address, 10.0)


def check_connect_failed(error: MessagingError, address: Address, timeout: float) -> None:
    assert isinstance(error, ConnectionError)
    check_error(
        error,
        outcome=Outcome.NOT_SENT,
        retryable=True,
        subject="echo",
        peer=address,
        timeout=timeout,
    )


# ConnectionClosed.


@every_speech
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_closed_during_the_handshake(speech: Speech, keep_alive: bool) -> None:
    async def close_early(peer: RawPeer) -> None:
        await peer.read(6)
        peer.close()

    async with RawServer(close_early) as server, make_service("client", speech) as client:
        with pytest.raises(ConnectionClosed, match="during the handshake") as caught:
            await client.request(server.address, "echo", timeout=4.0, keep_alive=keep_alive)
        # Nothing was sent, so trying again cannot double anything.
        check_error(
            caught.value,
            outcome=Outcome.NOT_SENT,
            retryable=True,
            subject="echo",
            peer=server.address,
            timeout=4.0,
        )


async def test_handshake_that_never_ends() -> None:
    limits = {"handshake_timeout_s": 0.05}
    async with RawServer(say_nothing) as server, make_service("client", limits=limits) as client:
        with pytest.raises(ConnectionClosed, match=r"no complete handshake within 0\.05") as caught:
            await client.request(server.address, "echo", timeout=10.0)
        assert caught.value.outcome is Outcome.NOT_SENT
        assert client.statistics().protocol_errors_by_kind == {"PeerSilent": 1}


@every_speech
async def test_foreign_cluster(speech: Speech) -> None:
    async with (
        make_service("server", speech, cluster="another") as server,
        make_service("client", speech) as client,
    ):
        with pytest.raises(ConnectionClosed) as caught:
            await client.request(server.address, "echo", timeout=4.0)
        assert caught.value.outcome is Outcome.NOT_SENT
        assert server.statistics().protocol_errors_by_kind == {"HandshakeRefused": 1}


@raw_versions
@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_closed_after_the_request_was_written(
    version: int, is_reset: bool, keep_alive: bool
) -> None:
    async def take_and_close(peer: RawPeer) -> None:
        await peer.greet()
        await peer.read_request()
        if is_reset:
            peer.reset()
        else:
            peer.close()

    async with RawServer(take_and_close, version) as server, make_service("client") as client:
        with pytest.raises(ConnectionClosed) as caught:
            await client.request(server.address, "echo", timeout=4.0, keep_alive=keep_alive)
        check_error(
            caught.value,
            outcome=Outcome.UNKNOWN,
            retryable=False,
            subject="echo",
            peer=server.address,
            timeout=4.0,
        )
        assert client.statistics().connections_lost == 1


@raw_versions
async def test_all_requests_in_flight_fail_when_closed(version: int) -> None:
    async def take_ten_and_close(peer: RawPeer) -> None:
        await peer.greet()
        for _ in range(10):
            await peer.read_request()
        peer.close()

    async with RawServer(take_ten_and_close, version) as server, make_service("client") as client:
        results = await asyncio.gather(
            *(client.request(server.address, f"subject{number}") for number in range(10)),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [ConnectionClosed] * 10
        subjects = [result.subject for result in results if isinstance(result, MessagingError)]
        assert subjects == [f"subject{number}" for number in range(10)]
        assert client.statistics().requests_pending == 0


@raw_versions
async def test_undecodable_reply_closes_the_connection(version: int) -> None:
    async def babble(peer: RawPeer) -> None:
        await peer.greet()
        await peer.read_request()
        await peer.write(b"\xff" * 64)
        await peer.read_to_end()

    async with RawServer(babble, version) as server, make_service("client") as client:
        with pytest.raises(ConnectionClosed) as caught:
            await client.request(server.address, "echo", timeout=4.0)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert client.statistics().protocol_errors == 1


async def test_peer_that_closes_right_after_the_handshake_is_not_hammered() -> None:
    async def greet_and_close(peer: RawPeer) -> None:
        await peer.greet()
        peer.close()

    async with RawServer(greet_and_close, 2) as server, make_service("client") as client:
        with pytest.raises((ConnectionClosed, RequestTimeout)):
            await client.request(server.address, "echo", timeout=0.3)
        assert server.accepted < 20


# RequestTimeout.


@every_speech
@pytest.mark.parametrize("keep_alive", [True, False])
async def test_timeout_waiting_for_the_reply(speech: Speech, keep_alive: bool) -> None:
    async with running_pair(speech) as pair:
        with pytest.raises(RequestTimeout, match="no reply in time") as caught:
            await pair.ask("hang", timeout=0.3, keep_alive=keep_alive)
        assert isinstance(caught.value, TimeoutError)
        check_error(
            caught.value,
            outcome=Outcome.UNKNOWN,
            retryable=False,
            subject="hang",
            peer=pair.server.address,
            timeout=0.3,
        )
        assert caught.value.elapsed_s is not None and caught.value.elapsed_s >= 0.299
        assert pair.client.statistics().requests_timed_out == 1


@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("wait", [True, False])
async def test_timeout_before_anything_was_sent(keep_alive: bool, wait: bool) -> None:
    async with RawServer(say_nothing) as server, make_service("client") as client:
        with pytest.raises(RequestTimeout) as caught:
            await client.request(
                server.address, "echo", timeout=0.05, keep_alive=keep_alive, wait=wait
            )
        check_error(
            caught.value,
            outcome=Outcome.NOT_SENT,
            retryable=True,
            subject="echo",
            peer=server.address,
            timeout=0.05,
        )


async def test_timeout_while_connecting() -> None:
    async with blackhole() as address, make_service("client") as client:
        with pytest.raises(RequestTimeout) as caught:
            await client.request(address, "echo", timeout=0.05)
        assert caught.value.outcome is Outcome.NOT_SENT


async def test_timeout_waiting_for_room() -> None:
    limits = {"requests_pending_max": 1}
    async with running_pair(client_limits=limits) as pair:
        first = asyncio.create_task(pair.ask("hang", timeout=30.0))
        await eventually(lambda: pair.server.statistics().handlers_running == 1)
        with pytest.raises(
            RequestTimeout, match="no connection in time, or the peer reads too slowly"
        ) as caught:
            await pair.ask("echo", timeout=0.05)
        assert caught.value.outcome is Outcome.NOT_SENT
        first.cancel()


async def test_default_timeout_is_the_limit() -> None:
    async with running_pair(client_limits={"request_timeout_s": 0.05}) as pair:
        with pytest.raises(RequestTimeout) as caught:
            await pair.ask("hang")
        assert caught.value.timeout_s == 0.05


async def test_a_timeout_is_never_told_as_a_failure_of_the_handler() -> None:
    """Both sides know the deadline; whoever is first, the caller sees that time is over."""
    async with running_pair() as pair:
        assert await pair.ask("echo", b"1") == b"1"
        timeouts = [0.0101 + number * 0.00047 for number in range(60)]
        results = await asyncio.gather(
            *(pair.ask("hang", timeout=timeout) for timeout in timeouts), return_exceptions=True
        )
        assert {type(result) for result in results} == {RequestTimeout}
