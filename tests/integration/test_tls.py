"""TLS between real services and raw peers, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from postroad.admin import certificates
from postroad.core.errors import (
    ConfigError,
    ConnectError,
    ConnectionClosedError,
    MessagingError,
    TlsError,
    WrongPeerError,
)
from postroad.net import (
    DatagramService,
    Limits,
    MessagingService,
    Outcome,
    ProtocolConfig,
    TlsConfig,
)
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import CLUSTER, both_loops, failure_of, raw_client
from tests.support.net.tls import Authority, alpha_and_beta, node
from tests.support.wire.raw_dialects import Dialect, Version3, Zeebe

ZEEBE = ProtocolConfig(profile="zeebe")
VERSION2 = ProtocolConfig(version_max=2)
of_protocols = pytest.mark.parametrize(
    "protocol", [ProtocolConfig(), VERSION2, ZEEBE], ids=["v3", "v2", "zeebe"]
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "one")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """A root that the other one knows nothing of."""
    return Authority(tmp_path / "two")


async def expect_refused(client: MessagingService, server: MessagingService) -> MessagingError:
    """Both ways of asking fail quickly, without anything having been sent."""
    errors = [
        await failure_of(client.request(server.address, "echo", timeout=5, keep_alive=keep_alive))
        for keep_alive in (True, False)
    ]
    for error in errors:
        assert error.outcome is Outcome.NOT_SENT, error
        assert isinstance(error, ConnectionClosedError | ConnectError), repr(error)
    assert server.statistics().requests_received == 0
    await eventually(
        lambda: server.statistics().server_connections == 0, "the server forgot the links"
    )
    assert client.statistics().client_connections == 0
    return errors[0]


# What works.


@both_loops
async def test_mutual_tls(authority: Authority) -> None:
    seen: list[str | None] = []
    async with node("alpha", authority.tls("alpha")) as alpha:
        alpha.serve("who", lambda message: seen.append(message.peer))
        async with node("beta", authority.tls("beta")) as beta:
            assert await beta.request(alpha.address, "echo", b"hello") == b"hello"
            big = bytes(range(256)) * 8192
            assert await beta.request(alpha.address, "echo", big) == big
            await beta.request(alpha.address, "who", peer="alpha")
            assert await alpha.request(beta.address, "echo", b"back", peer="beta") == b"back"
    assert seen == ["beta"]


@both_loops
async def test_only_tls_1_3(authority: Authority) -> None:
    context = authority.client_context()
    async with node("alpha", authority.tls("alpha", mutual=False)) as alpha:
        async with raw_client(alpha.address, context) as peer:
            assert peer.writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        # Event loops close without sending the alert that says why.
        with pytest.raises(OSError):
            async with raw_client(alpha.address, context):
                pass


@both_loops
async def test_client_refuses_a_server_of_tls_1_2(authority: Authority) -> None:
    tls = authority.tls("alpha")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with node("beta", authority.tls("beta")) as beta:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
        address = ":".join(map(str, server.sockets[0].getsockname()))
        error = await failure_of(beta.request(address, "echo"), kind=TlsError)
        assert error.outcome is Outcome.NOT_SENT
        server.close()


@both_loops
async def test_without_mutual_a_client_needs_no_certificate(authority: Authority) -> None:
    dialect = Version3()
    async with (
        node("alpha", authority.tls("alpha", mutual=False)) as alpha,
        raw_client(alpha.address, authority.client_context()) as peer,
    ):
        await dialect.dial(peer)
        peer.send(dialect.request(1, "echo", b"hi"))
        assert (await dialect.take_first_reply(peer)).payload == b"hi"


@both_loops
async def test_without_mutual_the_server_is_still_verified(
    authority: Authority, stranger: Authority
) -> None:
    tls = authority.tls("alpha", mutual=False)
    async with alpha_and_beta(authority, alpha=tls, beta=stranger.tls("beta")) as (alpha, beta):
        await expect_refused(beta, alpha)


@both_loops
@pytest.mark.parametrize("dialect", [Zeebe(1), Zeebe(2), Dialect(1), Dialect(2)], ids=str)
async def test_older_protocols_over_tls(authority: Authority, dialect: Dialect) -> None:
    async with alpha_and_beta(authority, dialect.protocol) as (alpha, beta):
        assert await beta.request(alpha.address, "echo", b"hello") == b"hello"
        assert await beta.request(alpha.address, "echo", b"x", peer="alpha") == b"x"


@both_loops
async def test_datagrams_stay_plain(authority: Authority) -> None:
    received: list[bytes] = []
    async with (
        node("alpha", authority.tls("alpha")) as alpha,
        DatagramService(CLUSTER, "alpha", bind=alpha.address) as at_alpha,
        DatagramService(CLUSTER, "beta") as at_beta,
    ):
        assert at_alpha.address == alpha.address
        at_alpha.subscribe("tick", lambda message: received.append(message.payload))
        await at_beta.send(at_alpha.address, "tick", b"by udp")
        await eventually(lambda: received == [b"by udp"], "the datagram arrived")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sniffer:
            sniffer.bind(("127.0.0.1", 0))
            sniffer.setblocking(False)
            host, port = sniffer.getsockname()
            await at_beta.send(f"{host}:{port}", "tick", b"in the clear")
            data = await asyncio.wait_for(_datagram(sniffer), 5)
    assert data.startswith(bytes.fromhex("eb6eec8a"))
    assert b"in the clear" in data


async def _datagram(sock: socket.socket) -> bytes:
    while True:
        with contextlib.suppress(BlockingIOError):
            return sock.recv(65536)
        await asyncio.sleep(0.005)


# What is refused.


@both_loops
async def test_peers_must_trust_each_others_root(
    authority: Authority, stranger: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """A client learns why it refuses a server; from a refusal of its own only that."""

    def mixed(own: Authority, trusted: Authority) -> TlsConfig:
        return msgspec.structs.replace(own.tls("beta"), ca=trusted.directory / "ca.pem")

    for tls, kind, text in (
        (mixed(authority, stranger), TlsError, "certificate"),
        (mixed(stranger, authority), ConnectionClosedError, "TLS"),
        (stranger.tls("beta"), ConnectionClosedError | ConnectError, ""),
    ):
        async with alpha_and_beta(authority, beta=tls) as (alpha, beta):
            error = await expect_refused(beta, alpha)
            assert isinstance(error, kind), repr(error)
            assert text in str(error)
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    ]
    assert any("TLS" in line for line in warnings), warnings


@both_loops
async def test_certificate_of_another_node_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    alpha_tls, beta_tls, gamma_tls = (authority.tls(name) for name in ("alpha", "beta", "gamma"))
    async with alpha_and_beta(authority, alpha=gamma_tls, beta=beta_tls) as (alpha, beta):
        error = await expect_refused(beta, alpha)
        assert "gamma" in str(error)
        assert beta.statistics().protocol_errors_by_kind == {"HandshakeRejectedError": 2}
    assert "has a certificate for gamma" in caplog.text
    async with alpha_and_beta(authority, alpha=alpha_tls, beta=gamma_tls) as (alpha, beta):
        await expect_refused(beta, alpha)
        assert alpha.statistics().protocol_errors_by_kind == {"HandshakeRejectedError": 2}
    assert "node 'beta' has a certificate for gamma" in caplog.text


@both_loops
@of_protocols
async def test_caller_expects_another_node(authority: Authority, protocol: ProtocolConfig) -> None:
    async with alpha_and_beta(authority, protocol) as (alpha, beta):
        for keep_alive in (True, False):
            error = await failure_of(
                beta.request(alpha.address, "echo", peer="gamma", keep_alive=keep_alive),
                kind=WrongPeerError,
            )
            assert error.outcome is Outcome.NOT_SENT
            assert "gamma" in str(error)
        error = await failure_of(
            beta.send(alpha.address, "echo", peer="gamma"), kind=WrongPeerError
        )
        assert error.outcome is Outcome.NOT_SENT
        assert alpha.statistics().requests_received == 0
        assert await beta.request(alpha.address, "echo", b"x", peer="alpha") == b"x"


@both_loops
@of_protocols
async def test_plain_client_of_a_tls_server(authority: Authority, protocol: ProtocolConfig) -> None:
    async with alpha_and_beta(authority, protocol, beta=None) as (alpha, beta):
        error = await expect_refused(beta, alpha)
        assert "TLS" in str(error)
        assert await beta.request(beta.address, "echo", b"x") == b"x"


@both_loops
@of_protocols
async def test_tls_client_of_a_plain_server(
    authority: Authority, protocol: ProtocolConfig, caplog: pytest.LogCaptureFixture
) -> None:
    async with alpha_and_beta(authority, protocol, alpha=None) as (alpha, beta):
        error = await expect_refused(beta, alpha)
        assert isinstance(error, TlsError), repr(error)
        assert alpha.statistics().protocol_errors_by_kind == {"HandshakeRejectedError": 2}
    assert "the peer speaks TLS, this side does not" in caplog.text


@both_loops
async def test_client_without_a_certificate(authority: Authority) -> None:
    dialect = Version3()
    async with node("alpha", authority.tls("alpha")) as alpha:
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            async with raw_client(alpha.address, authority.client_context()) as peer:
                await dialect.dial(peer)
        assert alpha.statistics().server_connections == 0
        assert alpha.statistics().requests_received == 0


@both_loops
@pytest.mark.parametrize("expired", ["server", "client"])
async def test_expired_certificate(tmp_path: Path, expired: str) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=90)
    certificates.create_root(tmp_path / "old", now=long_ago)
    certificates.issue(tmp_path / "old", "expired", days=30, now=long_ago)
    certificates.issue(tmp_path / "old", "valid", days=300, now=long_ago)
    authority = Authority.__new__(Authority)
    authority.directory = tmp_path / "old"
    names = ("expired", "valid") if expired == "server" else ("valid", "expired")
    async with (
        node(names[0], authority.tls(names[0])) as server,
        node(names[1], authority.tls(names[1])) as client,
    ):
        error = await expect_refused(client, server)
        # A client learns from the server's certificate why, from a refusal of its own only that.
        assert isinstance(error, TlsError if expired == "server" else ConnectionClosedError)
        assert ("expired" if expired == "server" else "TLS") in str(error)


@both_loops
async def test_client_that_never_starts_its_tls_handshake(authority: Authority) -> None:
    limits = Limits(handshake_timeout_s=1.0, stop_grace_s=0.5)
    async with (
        alpha_and_beta(authority, limits=limits) as (alpha, beta),
        raw_client(alpha.address) as peer,
    ):
        ended = peer.ends()
        assert await beta.request(alpha.address, "echo", b"x") == b"x"
        assert await asyncio.wait_for(ended, 30) == b""


@both_loops
async def test_a_failure_touches_no_other_connection(
    authority: Authority, stranger: Authority
) -> None:
    async with (
        node("alpha", authority.tls("alpha")) as alpha,
        node("beta", authority.tls("beta")) as beta,
        node("gamma", stranger.tls("gamma")) as gamma,
    ):
        await beta.request(alpha.address, "echo")
        for _ in range(3):
            await failure_of(gamma.request(alpha.address, "echo"))
            assert await beta.request(alpha.address, "echo", b"x") == b"x"
        assert beta.statistics().connections_opened == 1


async def test_bad_files_fail_the_start(authority: Authority, tmp_path: Path) -> None:
    tls = TlsConfig(
        certificate=tmp_path / "missing.pem",
        key=authority.tls("alpha").key,
        ca=authority.directory / "ca.pem",
    )
    service = MessagingService(CLUSTER, "alpha", tls=tls)
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        await service.start()
