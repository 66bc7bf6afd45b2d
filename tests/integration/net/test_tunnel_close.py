"""How tunnels end: on purpose, by failure, by silence, with their service; users hear it once."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from postroad.core.errors import ConnectionClosedError, NotRunningError, PeerTimeoutError
from postroad.core.limits import KIB
from postroad.net import Tunnel, TunnelHandler
from postroad.wire import RequestFrame
from tests.support.deadlines import eventually
from tests.support.net.peers import make_service, nothing_left, stays
from tests.support.net.raw_peers import both_loops, virtual_time
from tests.support.net.scripts import RawPeer, RawServer, blackhole
from tests.support.wire.pairs import version3_frame
from tests.support.wire.tunnel_ends import (
    Recorder,
    Recorders,
    raw_tunnel,
    running_tunnels,
    serve_raw_tunnel,
)

NEWS = version3_frame(1, b"news" + b"fine", short=4)
BEATING = {"heartbeat_interval_s": 0.1, "heartbeat_timeout_s": 0.4}


# On purpose.


either_end = pytest.mark.parametrize("is_client", [True, False])


@either_end
async def test_either_end_may_close(is_client: bool) -> None:
    async with running_tunnels() as pair:
        users = await pair.open()
        closing, other = users if is_client else reversed(users)
        closing.tunnel.close("had enough")
        await eventually(lambda: closing.reasons and other.reasons)
        assert closing.reasons == ["connection closed: had enough"]
        assert other.reasons == ["the peer closed the connection: had enough"]
        await closing.tunnel.wait_closed()
        assert pair.client.statistics().tunnels == pair.server.statistics().tunnels == 0


@both_loops
async def test_transport_closed_twice_reports_one_loss() -> None:
    async with running_tunnels() as pair, nothing_left():
        near, far = await pair.open()
        near.tunnel.close("had enough")
        far.tunnel.close("me too")
        await eventually(lambda: near.reasons and far.reasons)
        assert near.reasons == ["connection closed: had enough"]
        assert far.reasons == ["connection closed: me too"]
        near, far = await pair.open()
        near.tunnel.close("first")
        near.tunnel.close("second")
        await eventually(lambda: near.reasons and far.reasons)
        near.tunnel.close("third")
        await stays(lambda: near.reasons == ["connection closed: first"])
        assert far.reasons == ["the peer closed the connection: first"]


@both_loops
async def test_tunnel_messages_sent_before_close_arrive() -> None:
    """Also what the other end posts before it hears of it; closing at once would lose both."""
    async with running_tunnels() as pair:
        near, far = await pair.open()
        for value in range(500):
            near.tunnel.send_nowait("news", bytes([value % 256]) * 2_000)
            far.tunnel.send_nowait("news", bytes([value % 256]) * 2_000)
        near.tunnel.close("done")
        await eventually(lambda: near.reasons and far.reasons)
        assert len(far.payloads) == len(near.payloads) == 500


async def test_a_user_may_close_while_it_receives() -> None:
    async with running_tunnels() as pair:
        near, far = await pair.open()
        far.on_received = lambda _: far.tunnel.close("that was all")
        near.tunnel.send_nowait("news", b"1")
        await eventually(lambda: near.reasons and far.reasons)
        assert near.reasons == ["the peer closed the connection: that was all"]


async def test_a_peer_that_ignores_the_goodbye_is_cut_off() -> None:
    async with running_tunnels() as pair, nothing_left():
        with await raw_tunnel(pair.server.address) as peer:
            user = pair.server_users.last
            user.tunnel.close("go away", linger_s=0.05)
            await peer.write(NEWS)
            await eventually(lambda: user.reasons)
            assert user.payloads == [b"fine"]
            assert user.reasons == ["connection closed: go away"]


async def test_peer_that_disconnects_without_goodbye_ends_the_tunnel() -> None:
    async with running_tunnels() as pair:
        with await raw_tunnel(pair.server.address, NEWS) as peer:
            user = pair.server_users.last
            await eventually(lambda: user.payloads)
            peer.close()
            await eventually(lambda: user.reasons)
            assert user.reasons == ["the peer closed the connection"]
        with await raw_tunnel(pair.server.address) as peer:
            user = pair.server_users.last
            peer.reset()
            await eventually(lambda: user.reasons)
            assert user.reasons[0].startswith("connection lost: ")
        assert pair.server.statistics().connections_lost == 2
        assert pair.server.statistics().server_connections == 0


@both_loops
async def test_nothing_can_be_posted_once_the_peer_has_hung_up() -> None:
    """Also while what was posted before still waits for the socket."""
    async with running_tunnels(server_limits={"write_buffer_bytes_max": 16 * KIB}) as pair:
        with await raw_tunnel(pair.server.address) as peer:
            user = pair.server_users.last
            while user.tunnel.can_send:
                user.tunnel.send_nowait("flood", bytes(50_000))
                await asyncio.sleep(0)
            peer.sock.shutdown(socket.SHUT_WR)
            await eventually(lambda: not user.tunnel.is_open)
            with pytest.raises(ConnectionClosedError):
                user.tunnel.send_nowait("news", b"")
            assert user.reasons == []
        await eventually(lambda: user.reasons)


async def test_accept_and_goodbye_in_one_packet_open_and_close_the_tunnel(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever gets such a tunnel can only find that it cannot post: that is no failure."""

    async def serve(peer: RawPeer) -> None:
        await serve_raw_tunnel(peer, NEWS, version3_frame(7, b"sorry"))
        await peer.read_to_end()

    def greet(tunnel: Tunnel) -> TunnelHandler:
        tunnel.send_nowait("hello", b"")
        return Recorder(tunnel)

    async with RawServer(serve) as server, running_tunnels() as pair:
        with pytest.raises(ConnectionClosedError, match="sorry"):
            await pair.client.tunnels.open(server.address, greet)
        tunnel = await pair.client.tunnels.open(server.address, pair.users)
        await tunnel.wait_closed()
        assert pair.users.last.payloads == [b"fine"]
        assert pair.users.last.reasons == ["the peer closed the connection: sorry"]
        assert "failed" not in caplog.text


# Users that fail.


FAILURES = [ZeroDivisionError, asyncio.CancelledError]
of_failures = pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)


def failing_with(failure: type[BaseException]) -> Callable[..., None]:
    def fail(_requests: list[RequestFrame] | None = None) -> None:
        raise failure("planted")

    return fail


@both_loops
@of_failures
async def test_a_user_that_fails_to_receive_loses_its_tunnel_only(
    failure: type[BaseException],
) -> None:
    async with running_tunnels() as pair:
        bystander, other = await pair.open()
        near, far = await pair.open()
        far.on_received = failing_with(failure)
        for _ in range(3):
            near.tunnel.send_nowait("news", b"1")
            await asyncio.sleep(0)
        await eventually(lambda: near.reasons and far.reasons)
        assert far.batches == 1, "it is not asked again"
        assert far.reasons == [f"connection closed: {failure.__name__} in the node"]
        assert near.reasons == [f"the peer closed the connection: {failure.__name__} in the node"]
        bystander.tunnel.send_nowait("still", b"here")
        await eventually(lambda: other.payloads == [b"here"])
        assert pair.server.statistics().handlers_failed == 1


@both_loops
@of_failures
async def test_a_user_that_fails_at_the_end_or_at_room(
    failure: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    async with running_tunnels(client_limits={"write_buffer_bytes_max": 16 * KIB}) as pair:
        near, far = await pair.open()
        near.on_room = failing_with(failure)
        near.on_lost = failing_with(failure)  # type: ignore[method-assign]
        assert far.tunnel.transport is not None
        far.tunnel.transport.pause_reading()
        while near.tunnel.can_send:
            near.tunnel.send_nowait("flood", bytes(10_000))
            await asyncio.sleep(0)
        far.tunnel.transport.resume_reading()
        await eventually(lambda: far.reasons)
        await near.tunnel.wait_closed()
        assert far.reasons == [f"the peer closed the connection: {failure.__name__} in the node"]
        assert caplog.text.count(f"{failure.__name__}: planted") == 2
        assert pair.client.statistics().tunnels == 0


# Silence.


async def freeze(peer: RawPeer) -> None:
    """A script: take the tunnel, and then neither read nor write."""
    await serve_raw_tunnel(peer)
    await asyncio.Event().wait()


async def test_frozen_peer_is_disconnected() -> None:
    async with (
        RawServer(freeze) as server,
        running_tunnels(client_limits=BEATING, server_limits=BEATING) as pair,
    ):
        await pair.client.tunnels.open(server.address, pair.users)
        with await raw_tunnel(pair.server.address):
            users = (pair.users.last, pair.server_users.last)
            await eventually(lambda: all(user.reasons for user in users))
            for user in users:
                assert "PeerTimeoutError: nothing was received from the peer for" in user.reasons[0]
        assert pair.server.statistics().protocol_errors_by_kind == {"PeerTimeoutError": 1}


@virtual_time
async def test_quiet_tunnel_stays_open() -> None:
    async with running_tunnels(client_limits=BEATING, server_limits=BEATING) as pair:
        near, far = await pair.open()
        await asyncio.sleep(30)
        assert near.reasons == far.reasons == []


async def test_tunnel_peer_that_never_reads_is_disconnected() -> None:
    """Its heartbeats say that it lives; what waits for it would be kept for ever."""
    limits = {"frame_timeout_s": 0.3, "write_buffer_bytes_max": 16 * KIB}
    async with running_tunnels(server_limits=limits) as pair:
        with await raw_tunnel(pair.server.address) as peer:
            user = pair.server_users.last
            while user.tunnel.can_send:
                user.tunnel.send_nowait("flood", bytes(50_000))
                await asyncio.sleep(0)
            while not user.reasons:
                try:
                    await peer.write(version3_frame(6, id=99))
                except ConnectionError:
                    break
                await asyncio.sleep(0.01)
            await eventually(lambda: user.reasons)
            assert "the peer read nothing for 0.3 s" in user.reasons[0]
        assert pair.server.statistics().protocol_errors_by_kind == {PeerTimeoutError.__name__: 1}


# With the service.


@either_end
async def test_a_service_that_stops_says_goodbye_on_its_tunnels(is_client: bool) -> None:
    async with running_tunnels() as pair:
        users, second = await pair.open(), await pair.open()
        stopping, other = users if is_client else reversed(users)
        stopping.tunnel.send_nowait("last", b"words")
        service = pair.client if is_client else pair.server
        await asyncio.wait_for(service.stop(grace=60.0), 20.0)
        assert stopping.reasons == ["connection closed: the node is stopping"]
        await eventually(lambda: other.reasons)
        assert other.reasons == ["the peer closed the connection: the node is stopping"]
        assert other.payloads == [b"words"]
        await eventually(lambda: all(user.reasons for user in second))


async def test_stopping_does_not_wait_for_a_frozen_peer_beyond_the_grace() -> None:
    async with RawServer(freeze) as server, running_tunnels() as pair:
        await pair.client.tunnels.open(server.address, pair.users)
        with await raw_tunnel(pair.server.address):
            loop = asyncio.get_running_loop()
            started = loop.time()
            async with asyncio.timeout(20.0):
                await asyncio.gather(pair.client.stop(grace=0.2), pair.server.stop(grace=0.2))
            assert loop.time() - started > 0.1
        assert pair.users.last.reasons == ["connection closed: the node is stopping"]
        assert pair.server_users.last.reasons == ["connection closed: the node is stopping"]


async def test_stopping_while_a_tunnel_is_being_opened() -> None:
    async with blackhole() as address, nothing_left():
        async with make_service("a") as service:
            opening = asyncio.create_task(service.tunnels.open(address, Recorders()))
            await asyncio.sleep(0.01)
        with pytest.raises(NotRunningError, match="stopped while connecting"):
            await opening


async def test_stopped_service_refuses_tunnel_messages() -> None:
    async with running_tunnels() as pair:
        near, _ = await pair.open()
        await pair.client.stop()
        with pytest.raises(ConnectionClosedError):
            near.tunnel.send_nowait("news", b"")
        with pytest.raises(NotRunningError):
            await pair.open()


async def test_closed_tunnels_are_garbage_collected() -> None:
    async with nothing_left():
        async with running_tunnels() as pair:
            for _ in range(20):
                await pair.open()
            for user in pair.users.all[::3]:
                user.tunnel.close("enough")
        everybody = [*pair.users.all, *pair.server_users.all]
        assert [len(user.reasons) for user in everybody] == [1] * 40
