"""How tunnels begin: who takes them, who refuses them, and what each side is told."""

import asyncio
import socket
import struct
from collections.abc import Awaitable

import msgspec
import pytest

from postroad.core import errors
from postroad.net import MessagingService, ProtocolConfig, Tunnel, TunnelHandler
from postroad.wire import HelloFrame, encode_preamble
from postroad.wire.hello import decode_hello
from tests.support.deadlines import eventually
from tests.support.net.peers import CLUSTER, make_service, nothing_left, stays
from tests.support.net.raw_peers import both_loops
from tests.support.net.scripts import RawPeer, RawServer, blackhole, unused_address
from tests.support.wire.tunnel_ends import Recorders, raw_part, running_tunnels


async def refusal_of(opening: Awaitable[Tunnel]) -> errors.ConnectionClosedError:
    """The error of a tunnel that one of the two did not want."""
    with pytest.raises(errors.ConnectionClosedError) as caught:
        await opening
    error = caught.value
    assert type(error) is errors.ConnectionClosedError
    assert error.retryable is False
    assert error.outcome is errors.Outcome.NOT_SENT
    return error


def refuse(_tunnel: Tunnel) -> TunnelHandler:
    raise errors.HandshakeRejectedError("domain 'x' is known here already")


# Refusals.


async def test_a_node_without_a_role_takes_no_tunnels() -> None:
    async with make_service("a") as client, make_service("b") as server:
        users = Recorders()
        server.tunnels.accept(Recorders())
        error = await refusal_of(client.tunnels.open(server.address, users))
        assert "node 'b' accepts no tunnels: it has no role in the cells layer" in str(error)
        assert str(server.address) in str(error)
        assert users.all == []


async def test_a_node_that_accepts_none_takes_no_tunnels() -> None:
    async with running_tunnels() as pair, nothing_left():
        pair.server.tunnels.stop_accepting()
        users = Recorders()
        error = await refusal_of(pair.client.tunnels.open(pair.server.address, users))
        assert "the peer closed the connection: node 'core-1' takes no tunnels" in str(error)
        assert users.all == []
        assert pair.client.statistics().connections_failed == 1
        await eventually(lambda: pair.server.statistics().server_connections == 0)


async def test_tunnel_rejection_of_either_side_has_reason() -> None:
    async with running_tunnels() as pair, nothing_left():
        error = await refusal_of(pair.client.tunnels.open(pair.server.address, refuse))
        assert "domain 'x' is known here already" in str(error)
        await eventually(lambda: pair.server_users.all and pair.server_users.last.reasons)
        assert pair.server_users.last.reasons == [
            "the peer closed the connection: domain 'x' is known here already"
        ]
        pair.server.tunnels.stop_accepting()
        pair.server.tunnels.accept(refuse)
        error = await refusal_of(pair.client.tunnels.open(pair.server.address, pair.users))
        assert "domain 'x' is known here already" in str(error)
        assert pair.users.all == []


@both_loops
@pytest.mark.parametrize("failure", [ZeroDivisionError, asyncio.CancelledError])
async def test_an_accept_that_fails_costs_its_tunnel_only(
    failure: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    async with running_tunnels() as pair:
        near, far = await pair.open()

        def fail(_tunnel: Tunnel) -> TunnelHandler:
            raise failure("planted")

        with pytest.raises(errors.ConnectionClosedError, match=f"{failure.__name__} in the node"):
            await pair.client.tunnels.open(pair.server.address, fail)
        pair.server.tunnels.stop_accepting()
        pair.server.tunnels.accept(fail)
        with pytest.raises(
            errors.ConnectionClosedError, match=f"{failure.__name__} in the node"
        ) as caught:
            await pair.client.tunnels.open(pair.server.address, pair.users)
        assert caught.value.retryable, "it was no refusal"
        assert caplog.text.count(f"{failure.__name__}: planted") == 2
        near.tunnel.send_nowait("still", b"here")
        await eventually(lambda: far.payloads == [b"here"])


async def test_another_node_than_the_expected_one() -> None:
    async with running_tunnels() as pair:
        with pytest.raises(errors.WrongPeerError, match="expected node 'core-2', but") as caught:
            await pair.client.tunnels.open(pair.server.address, pair.users, peer="core-2")
        assert caught.value.retryable
        assert caught.value.outcome is errors.Outcome.NOT_SENT
        assert pair.users.all == []
        await eventually(lambda: pair.server_users.last.reasons)
        assert "expected node 'core-2'" in pair.server_users.last.reasons[0]
        near, _ = await pair.open(peer="core-1")
        assert near.tunnel.can_send
        # The right node may be back at that address soon, so trying again helps.
        pair.server.tunnels.stop_accepting()
        with pytest.raises(errors.WrongPeerError):
            await pair.client.tunnels.open(pair.server.address, pair.users, peer="core-2")
        pair.server.set_hello_role("", None)
        with pytest.raises(errors.WrongPeerError):
            await pair.client.tunnels.open(pair.server.address, pair.users, peer="core-2")


async def test_tunnel_duplicate_name_or_other_cluster_is_rejected() -> None:
    async with running_tunnels() as pair:
        async with make_service("core-1") as namesake:
            with pytest.raises(errors.DuplicateNamePeerError):
                await namesake.tunnels.open(pair.server.address, pair.users)
        async with make_service("other", cluster="another") as other:
            with pytest.raises(errors.MessagingError):
                await other.tunnels.open(pair.server.address, pair.users)
        assert pair.users.all == pair.server_users.all == []


async def test_a_node_of_an_older_version() -> None:
    async with (
        MessagingService(CLUSTER, "old", protocol=ProtocolConfig(version_max=2)) as old,
        running_tunnels() as pair,
    ):
        error = await refusal_of(pair.client.tunnels.open(old.address, pair.users))
        assert "the peer answered protocol version 2; tunnels need version 3" in str(error)
        old.set_hello_role("satellite", None)
        error = await refusal_of(old.tunnels.open(pair.server.address, pair.users))
        assert "version 2" in str(error)


# Openings that fail.


async def test_tunnel_open_without_listener_fails() -> None:
    async with running_tunnels() as pair, blackhole() as hole:
        address = unused_address()
        with pytest.raises(errors.ConnectError) as caught:
            await pair.client.tunnels.open(address, pair.users)
        assert caught.value.retryable and str(address) in str(caught.value)
        with pytest.raises(errors.ConnectError, match=r"no tunnel within 0\.1 s"):
            await pair.client.tunnels.open(hole, pair.users, timeout=0.1)
        assert pair.client.statistics().client_connections == 0


async def greet_without_consent(peer: RawPeer) -> None:
    """A script: say hello, but never take the tunnel."""
    await peer.read(6)
    await peer.write(struct.pack(">h", 3) + raw_part("mute", role="core"))
    await asyncio.Event().wait()


@pytest.mark.parametrize("timeout", [0.1, None])
async def test_a_peer_that_never_takes_the_tunnel(timeout: float | None) -> None:
    limits = {"handshake_timeout_s": 0.2}
    async with (
        RawServer(greet_without_consent) as server,
        running_tunnels(client_limits=limits) as pair,
    ):
        with pytest.raises(errors.MessagingError) as caught:
            await pair.client.tunnels.open(server.address, pair.users, timeout=timeout)
        text = "no tunnel within 0.1 s" if timeout else "no complete handshake within 0.2 s"
        assert text in str(caught.value)
        assert caught.value.retryable and caught.value.outcome is errors.Outcome.NOT_SENT
        assert pair.users.all == []
        await eventually(lambda: pair.client.statistics().client_connections == 0)


async def test_tunnel_open_cancelled_leaves_no_connection() -> None:
    async with running_tunnels() as pair, nothing_left():
        opening = asyncio.create_task(pair.client.tunnels.open(pair.server.address, pair.users))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await eventually(lambda: pair.server.statistics().server_connections == 0)
        assert pair.client.statistics().client_connections == 0


async def test_tunnel_open_cancelled_at_acceptance_leaves_no_connection() -> None:
    async with running_tunnels() as pair, nothing_left():
        users = Recorders()

        def cancel_and_take(tunnel: Tunnel) -> TunnelHandler:
            opening.cancel()
            return users(tunnel)

        opening = asyncio.create_task(
            pair.client.tunnels.open(pair.server.address, cancel_and_take)
        )
        with pytest.raises(asyncio.CancelledError):
            await opening
        await eventually(lambda: users.last.reasons)
        assert users.last.reasons == ["connection closed: dial cancelled"]
        await eventually(lambda: pair.server_users.last.reasons)


# Limits and settings.


async def test_tunnels_count_as_accepted_connections() -> None:
    async with running_tunnels(server_limits={"accepted_connections_max": 2}) as pair:
        await pair.open()
        second, _ = await pair.open()
        with pytest.raises(errors.MessagingError):
            await pair.client.tunnels.open(pair.server.address, pair.users)
        assert pair.server.statistics().connections_rejected == 1
        second.tunnel.close("room for another")
        await eventually(lambda: pair.server.statistics().server_connections == 1)
        await pair.open()


async def test_tunnels_count_as_opened_connections() -> None:
    async with running_tunnels(client_limits={"connections_max": 2}) as pair:
        pair.server.serve("echo", lambda message: message.payload)
        await pair.client.request(pair.server.address, "echo", b"")
        await pair.open()
        # The idle connection made room for this one; no tunnel ever does.
        await pair.open()
        with pytest.raises(errors.ConnectError, match="all 2 connections are in use"):
            await pair.open()
        with pytest.raises(errors.ConnectError, match="all 2 connections are in use"):
            await pair.client.request(pair.server.address, "echo", b"")


async def test_idle_tunnels_stay_open() -> None:
    async with running_tunnels(client_limits={"idle_timeout_s": 0.01}) as pair:
        near, far = await pair.open()
        await stays(lambda: near.tunnel.is_open and far.tunnel.is_open)


async def test_settings_are_checked() -> None:
    async with running_tunnels() as pair:
        with pytest.raises(errors.ConfigError, match="stop_accepting"):
            pair.server.tunnels.accept(Recorders())
        with pytest.raises(errors.ConfigError, match="role of 256 bytes"):
            pair.server.set_hello_role("r" * 256, None)
        with pytest.raises(errors.ConfigError, match="cannot be encoded"):
            pair.server.set_hello_role("core", "\ud800")
        pair.server.set_hello_role("r" * 255, "z" * 255)


async def test_hello_role_is_sent_to_all_and_tunnel_flag_to_tunnels() -> None:
    async with running_tunnels() as pair:
        await pair.open()
        pair.server.set_hello_membership(True)
        pair.client.set_hello_role("satellite", "south")
        peer = pair.users.last.tunnel.peer
        assert await hello_of(pair.server) == msgspec.structs.replace(peer, is_member=True)
        hello = await hello_of(pair.client)
        assert (hello.role, hello.zone, hello.is_tunnel) == ("satellite", "south", False)
        pair.client.set_hello_role("", None)
        hello = await hello_of(pair.client)
        assert (hello.role, hello.zone) == ("", "")


async def hello_of(service: MessagingService) -> HelloFrame:
    """What a service says to whoever connects."""
    with RawPeer(socket.create_connection(service.address), 3) as peer:
        await peer.write(encode_preamble(CLUSTER) + struct.pack(">h", 3))
        assert await peer.read(2) == struct.pack(">h", 3)
        return decode_hello((await peer.read_frame())[-1])


async def test_only_a_running_service_has_tunnels() -> None:
    service = make_service("a")
    await service.start()
    address = service.address
    await service.stop()
    with pytest.raises(errors.NotRunningError):
        service.set_hello_role("core", None)
    with pytest.raises(errors.NotRunningError):
        service.tunnels.accept(refuse)
    with pytest.raises(errors.NotRunningError):
        await service.tunnels.open(address, refuse)
