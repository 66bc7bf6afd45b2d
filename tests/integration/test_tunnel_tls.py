"""Tunnels through TLS: certificates say who is at either end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.core.errors import ConnectionClosedError, MessagingError
from postroad.wire import HelloFrame
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import both_loops
from tests.support.net.tls import Authority, node
from tests.support.wire.tunnel_ends import Recorders


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    yield Authority(Path(tmp_path_factory.mktemp("authority")))


@both_loops
async def test_messages_both_ways(authority: Authority) -> None:
    async with (
        node("core-1", authority.tls("core-1")) as server,
        node("satellite-1", authority.tls("satellite-1")) as client,
    ):
        server.set_hello_role("core", "north")
        users, server_users = Recorders(), Recorders()
        server.tunnels.accept(server_users)
        tunnel = await client.tunnels.open(server.address, users, peer="core-1")
        payload = bytes(range(256)) * 8_000
        near, far = users.last, server_users.last
        for user in (near, far):
            user.tunnel.send_nowait("bulk", payload)
            user.tunnel.send_nowait("news", b"small")
        await eventually(lambda: len(near.payloads) == len(far.payloads) == 2, "all arrived")
        assert near.payloads == far.payloads == [payload, b"small"]
        hello: HelloFrame = tunnel.peer
        assert (hello.name, hello.role, hello.zone) == ("core-1", "core", "north")
        tunnel.close("enough")
        await eventually(lambda: near.reasons and far.reasons, "both know")
        assert far.reasons == ["the peer closed the connection: enough"]


@pytest.mark.parametrize(
    ("server_certificate", "client_certificate"),
    [
        ("core-1", "somebody"),
        ("somebody", "satellite-1"),
    ],
)
async def test_end_under_a_name_that_its_certificate_does_not_have_is_refused(
    authority: Authority, server_certificate: str, client_certificate: str
) -> None:
    async with (
        node("core-1", authority.tls(server_certificate)) as server,
        node("satellite-1", authority.tls(client_certificate)) as client,
    ):
        server.set_hello_role("core", None)
        users, server_users = Recorders(), Recorders()
        server.tunnels.accept(server_users)
        with pytest.raises(ConnectionClosedError, match="has a certificate for somebody") as caught:
            await client.tunnels.open(server.address, users, peer="core-1")
        assert caught.value.retryable is False
        assert users.all == []
        if client_certificate == "somebody":
            assert server_users.all == []


async def test_no_tunnel_without_a_common_root(authority: Authority, tmp_path: Path) -> None:
    async with (
        node("core-1", authority.tls("core-1")) as server,
        node("satellite-1", Authority(tmp_path).tls("satellite-1")) as client,
    ):
        server.set_hello_role("core", None)
        users = Recorders()
        server.tunnels.accept(users)
        with pytest.raises(MessagingError):
            await client.tunnels.open(server.address, users)
        assert users.all == []
        assert client.statistics().client_connections == 0
