"""Each row of the exception table in which the peer did not answer, and what errors keep alive."""

import asyncio
import gc
from functools import partial
from traceback import walk_tb

import pytest

from postroad.core.errors import (
    ConnectError,
    ConnectionClosedError,
    MessagingError,
    NotRunningError,
    ReplyTimeoutError,
)
from postroad.net import Address, MessagingService, Outcome, RawMessage
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.peers import (
    Pair,
    Speech,
    every_speech,
    every_way,
    expect_failure,
    make_service,
    running_pair,
)
from tests.support.net.scripts import (
    RawPeer,
    RawServer,
    blackhole,
    raw_versions,
    say_nothing,
    unused_address,
)

kept_or_not = pytest.mark.parametrize("keep_alive", [True, False])

# NotRunningError.


@every_speech
@kept_or_not
async def test_service_that_is_not_running_sends_nothing(speech: Speech, keep_alive: bool) -> None:
    service = make_service("client", speech)
    with pytest.raises(NotRunningError, match="not started") as caught:
        await service.request(unused_address(), "echo", keep_alive=keep_alive)
    assert (caught.value.outcome, caught.value.retryable) == (Outcome.NOT_SENT, False)
    with pytest.raises(NotRunningError):
        await service.send(unused_address(), "echo")
    async with running_pair(speech) as pair:
        # The connection is open and known, and still may not be used afterwards.
        assert await pair.ask("echo", b"1") == b"1"
        await pair.client.stop()
        with pytest.raises(NotRunningError, match="stopped") as caught:
            await pair.ask("echo", keep_alive=keep_alive)
        assert caught.value.outcome is Outcome.NOT_SENT
        with pytest.raises(NotRunningError):
            await pair.tell("echo")


@every_way
@kept_or_not
async def test_service_stopped_in_flight_does_not_know_the_outcome(
    speech: Speech, keep_alive: bool
) -> None:
    async with running_pair(speech) as pair:
        failing = asyncio.create_task(
            pair.fails(
                NotRunningError,
                Outcome.UNKNOWN,
                subject="hang",
                match="in flight",
                timeout=DEADLINE_S,
                keep_alive=keep_alive,
            )
        )
        await eventually(lambda: pair.server.statistics().handlers_running == 1)
        await pair.client.stop(grace=0.01)
        await failing


async def test_service_stopped_while_connecting_has_sent_nothing() -> None:
    limits = {"max_backoff_s": 0.05}
    async with RawServer(say_nothing) as server, make_service("client", limits=limits) as client:
        ask = partial(client.request, subject="echo", timeout=DEADLINE_S)
        requests = [
            asyncio.create_task(ask(server.address)),
            asyncio.create_task(ask(server.address, keep_alive=False)),
            asyncio.create_task(ask(unused_address(), wait_for_connection=True)),
        ]
        await eventually(lambda: server.accepted == 2)
        await eventually(lambda: client.statistics().connections_failed >= 2)
        await client.stop(grace=0.01)
        for request in requests:
            with pytest.raises(NotRunningError) as caught:
                await request
            assert caught.value.outcome is Outcome.NOT_SENT


# ConnectError.


@every_speech
@kept_or_not
async def test_connect_refused_raises_connect_error(speech: Speech, keep_alive: bool) -> None:
    address = unused_address()
    async with make_service("client", speech) as client:
        error = await expect_failure(
            *(client, address, ConnectError, Outcome.NOT_SENT),
            match="cannot connect",
            keep_alive=keep_alive,
        )
        assert isinstance(error, ConnectionError)
        assert client.statistics().connections_failed == 1
        with pytest.raises(ConnectError):
            await client.send(address, "echo")


IMPOSSIBLE = [
    *((host, 26502) for host in ("no-such-host.invalid", "a..b", "\udc80", "x" * 300, "-")),
    *(("127.0.0.1", port) for port in (0, 70_000, -1)),
]


async def test_impossible_address_is_a_failed_connection() -> None:
    async with make_service("client") as client:
        for host, port in IMPOSSIBLE:
            with pytest.raises(ConnectError) as caught:
                await client.request(Address(host, port), "echo", timeout=DEADLINE_S)
            assert (caught.value.outcome, caught.value.retryable) == (Outcome.NOT_SENT, True), host


@kept_or_not
async def test_connection_that_takes_too_long_is_a_failed_one(keep_alive: bool) -> None:
    limits = {"connect_timeout_s": 0.05}
    async with blackhole() as address, make_service("client", limits=limits) as client:
        await expect_failure(
            *(client, address, ConnectError, Outcome.NOT_SENT),
            match=r"no connection within 0\.05 s",
            timeout=10.0,
            keep_alive=keep_alive,
        )


# ConnectionClosedError.


@every_speech
@kept_or_not
async def test_connection_closed_during_the_handshake_has_sent_nothing(
    speech: Speech, keep_alive: bool
) -> None:
    async def close_early(peer: RawPeer) -> None:
        await peer.read(6)
        peer.close()

    async with RawServer(close_early) as server, make_service("client", speech) as client:
        # Nothing was sent, so trying again cannot double anything.
        await expect_failure(
            *(client, server.address, ConnectionClosedError, Outcome.NOT_SENT),
            match="during the handshake",
            keep_alive=keep_alive,
        )


async def test_tunnel_open_unfinished_handshake_times_out() -> None:
    limits = {"handshake_timeout_s": 0.05}
    async with RawServer(say_nothing) as server, make_service("client", limits=limits) as client:
        await expect_failure(
            *(client, server.address, ConnectionClosedError, Outcome.NOT_SENT),
            match=r"no complete handshake within 0\.05",
        )
        assert client.statistics().protocol_errors_by_kind == {"PeerTimeoutError": 1}


@every_speech
async def test_foreign_cluster_is_refused(speech: Speech) -> None:
    async with (
        make_service("server", speech, cluster="another") as server,
        make_service("client", speech) as client,
    ):
        with pytest.raises(ConnectionClosedError) as caught:
            await client.request(server.address, "echo")
        assert caught.value.outcome is Outcome.NOT_SENT
        assert server.statistics().protocol_errors_by_kind == {"HandshakeRejectedError": 1}


@raw_versions
@pytest.mark.parametrize("is_reset", [False, True])
@kept_or_not
async def test_connection_closed_after_the_request_leaves_its_outcome_unknown(
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
        await expect_failure(
            *(client, server.address, ConnectionClosedError, Outcome.UNKNOWN), keep_alive=keep_alive
        )
        assert client.statistics().connections_lost == 1


@raw_versions
async def test_closed_or_malformed_connection_fails_all_requests_in_flight(version: int) -> None:
    async def take_ten_and_close(peer: RawPeer) -> None:
        await peer.greet()
        for _ in range(10):
            await peer.read_request()
        peer.close()

    async def babble(peer: RawPeer) -> None:
        await peer.greet()
        await peer.read_request()
        await peer.write(b"\xff" * 64)
        await peer.read_to_end()

    async with RawServer(take_ten_and_close, version) as server, make_service("client") as client:
        results = await asyncio.gather(
            *(client.request(server.address, f"subject{number}") for number in range(10)),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [ConnectionClosedError] * 10
        subjects = [result.subject for result in results if isinstance(result, MessagingError)]
        assert subjects == [f"subject{number}" for number in range(10)]
        assert client.statistics().requests_pending == 0
    async with RawServer(babble, version) as server, make_service("client") as client:
        await expect_failure(client, server.address, ConnectionClosedError, Outcome.UNKNOWN)
        assert client.statistics().protocol_errors == 1


async def test_peer_closing_after_the_handshake_is_dialed_with_backoff() -> None:
    async def greet_and_close(peer: RawPeer) -> None:
        await peer.greet()
        peer.close()

    async with RawServer(greet_and_close, 2) as server, make_service("client") as client:
        with pytest.raises((ConnectionClosedError, ReplyTimeoutError)):
            await client.request(server.address, "echo", timeout=0.3)
        assert server.accepted < 20


# ReplyTimeoutError.


@every_way
@kept_or_not
async def test_timeout_waiting_for_the_reply_leaves_the_outcome_unknown(
    speech: Speech, keep_alive: bool
) -> None:
    async with running_pair(speech) as pair:
        error = await pair.fails(
            ReplyTimeoutError,
            Outcome.UNKNOWN,
            subject="hang",
            match="no reply in time",
            timeout=0.3,
            keep_alive=keep_alive,
        )
        assert isinstance(error, TimeoutError)
        assert error.elapsed_s is not None and error.elapsed_s >= 0.299
        assert pair.client.statistics().requests_timed_out == 1


async def test_timeout_before_sending_has_outcome_not_sent() -> None:
    async with RawServer(say_nothing) as server, make_service("client") as client:
        for keep_alive, wait in ((True, True), (True, False), (False, True), (False, False)):
            await expect_failure(
                *(client, server.address, ReplyTimeoutError, Outcome.NOT_SENT),
                timeout=0.05,
                keep_alive=keep_alive,
                wait_for_connection=wait,
            )
    async with blackhole() as address, make_service("client") as client:
        await expect_failure(client, address, ReplyTimeoutError, Outcome.NOT_SENT, timeout=0.05)
    async with running_pair(client_limits={"requests_pending_max": 1}) as pair:
        (first,) = await pair.begin()
        match = "no connection in time, or the peer reads too slowly"
        await pair.fails(ReplyTimeoutError, Outcome.NOT_SENT, match=match, timeout=0.05)
        first.cancel()


async def test_default_timeout_is_the_limit() -> None:
    async with running_pair(client_limits={"request_timeout_s": 0.05}) as pair:
        with pytest.raises(ReplyTimeoutError) as caught:
            await pair.ask("hang")
        assert caught.value.timeout_s == 0.05


async def test_timeout_is_not_reported_as_handler_failure() -> None:
    """Both sides know the deadline; whoever is first, the caller sees that time is over."""
    async with running_pair() as pair:
        assert await pair.ask("echo", b"1") == b"1"
        timeouts = [0.0101 + number * 0.00047 for number in range(60)]
        results = await asyncio.gather(
            *(pair.ask("hang", timeout=timeout) for timeout in timeouts), return_exceptions=True
        )
        assert {type(result) for result in results} == {ReplyTimeoutError}


# Errors that many get.


def chain_of(error: BaseException) -> list[BaseException]:
    """The error and all that it came from."""
    chain = []
    following: BaseException | None = error
    while following is not None:
        chain.append(following)
        following = following.__cause__ or following.__context__
    return chain


def frames_of(error: BaseException) -> int:
    """How many frames the error and all that it came from hold."""
    return sum(len(list(walk_tb(link.__traceback__))) for link in chain_of(error))


@pytest.mark.parametrize("fault", ["refused", "lost", "stopped"])
async def test_waiters_of_one_failed_dial_share_no_error(fault: str) -> None:
    """Else each would hold the frames of all, and with them what all of them sent."""

    async def one_fails() -> BaseException:
        async with running_pair() as pair:
            (error,) = await fail_together(pair, 1)
            return error

    async def fail_together(pair: Pair, count: int) -> list[BaseException]:
        if fault == "refused":
            address = unused_address()
            requests = [
                asyncio.create_task(pair.client.request(address, "echo")) for _ in range(count)
            ]
        else:
            requests = await pair.begin(count)
            service = pair.server if fault == "lost" else pair.client
            await service.stop(grace=0)
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(result, MessagingError) for result in results)
        return [result for result in results if isinstance(result, BaseException)]

    async with running_pair() as pair:
        errors = await fail_together(pair, 30)
        chains = [chain_of(error) for error in errors]
        assert len({id(error) for chain in chains for error in chain}) == sum(map(len, chains))
        assert max(map(frames_of, errors)) <= frames_of(await one_fails()) + 2


def errors_alive() -> dict[int, MessagingError]:
    """All there are, by identity."""
    gc.collect()
    return {id(error): error for error in gc.get_objects() if isinstance(error, MessagingError)}


async def test_request_whose_connection_was_lost() -> None:
    arrived = asyncio.Event()

    async def never_answer(message: RawMessage) -> bytes:
        arrived.set()
        await asyncio.Event().wait()
        return b""

    async def ask(service: MessagingService, server: MessagingService) -> None:
        # The first one finds no link, the second takes the one of the first.
        first = asyncio.ensure_future(service.request(server.address, "hang", b""))
        await arrived.wait()
        second = asyncio.ensure_future(service.request(server.address, "hang", b""))
        await asyncio.sleep(0)
        await server.stop(grace=0)
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert all(isinstance(result, MessagingError) for result in results)

    before = errors_alive()
    async with MessagingService("demo", "client") as service:
        server = MessagingService("demo", "server")
        await server.start()
        server.serve("hang", never_answer)
        await ask(service, server)
    remaining = errors_alive()
    assert [error for id, error in remaining.items() if id not in before] == []
