"""Over TLS a peer is whom its certificate names: in every version, profile, tunnel and layer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from postroad.admin import certificates
from postroad.cluster import Member
from postroad.core.errors import (
    ConfigError,
    ConnectionClosedError,
    RemoteHandlerError,
)
from postroad.net import Address, MessagingService, ProtocolConfig, RawMessage
from postroad.wire import ReplyStatus
from tests.support.cluster.nodes import CLUSTER as NODES_CLUSTER
from tests.support.cluster.nodes import Node, all_know, running_node
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import CLUSTER, both_loops, failure_of, raw_client
from tests.support.net.tls import LIMITS, Authority, alpha_and_beta, node
from tests.support.wire.raw_dialects import Dialect, Version3, Zeebe
from tests.support.wire.tunnel_ends import Recorders

OLDER = [Dialect(1), Dialect(2), Zeebe(1), Zeebe(2)]
of_older = pytest.mark.parametrize("dialect", OLDER, ids=str)
of_all = pytest.mark.parametrize("dialect", [*OLDER, Version3()], ids=str)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def peers_of(service: MessagingService) -> list[str | None]:
    """Whom its handler is told that messages come from."""
    peers: list[str | None] = []

    def who(message: RawMessage) -> bytes:
        peers.append(message.peer)
        return b""

    service.serve("who", who)
    return peers


# Versions.


@both_loops
@pytest.mark.parametrize("version", [1, 2])
async def test_with_tls_versions_that_tell_no_name_are_refused(
    authority: Authority, version: int
) -> None:
    old = ProtocolConfig(version_max=version)
    async with (
        node("alpha", authority.tls("alpha")) as alpha,
        node("beta", authority.tls("beta"), old) as beta,
    ):
        peers = peers_of(alpha)
        for client, server in ((beta, alpha), (alpha, beta)):
            error = await failure_of(client.request(server.address, "who"), ConnectionClosedError)
            assert "version" in str(error)
        assert peers == []


@both_loops
@pytest.mark.parametrize("dialect", OLDER[:2], ids=str)
async def test_a_raw_peer_cannot_go_on_in_the_version_that_was_not_agreed(
    authority: Authority, dialect: Dialect
) -> None:
    context = authority.tls("mallory").client_context()
    async with (
        node("alpha", authority.tls("alpha")) as alpha,
        raw_client(alpha.address, context) as peer,
    ):
        peers = peers_of(alpha)
        peer.send(dialect.opening(), dialect.introduction(), dialect.request(1, "who"))
        await peer.until_closed()
        assert peers == []


@both_loops
async def test_older_versions_can_be_allowed_with_tls(authority: Authority) -> None:
    protocol = ProtocolConfig(version_min=1)
    async with (
        node("alpha", authority.tls("alpha"), protocol) as alpha,
        node("beta", authority.tls("beta"), ProtocolConfig(version_max=2)) as beta,
        node("gamma", authority.tls("gamma")) as gamma,
    ):
        peers = peers_of(alpha)
        await beta.request(alpha.address, "who")
        await gamma.request(alpha.address, "who")
        assert peers == ["beta", "gamma"]


def test_versions_that_leave_none_are_refused() -> None:
    for protocol in (ProtocolConfig(version_min=4), ProtocolConfig(version_min=3, version_max=2)):
        with pytest.raises(ConfigError, match="has no version"):
            MessagingService(CLUSTER, "alpha", protocol=protocol)


async def test_without_tls_a_service_can_refuse_older_versions() -> None:
    async with (
        node("alpha", None, ProtocolConfig(version_min=3)) as alpha,
        node("beta", None, ProtocolConfig(version_max=2)) as beta,
        node("gamma", None) as gamma,
    ):
        await failure_of(beta.request(alpha.address, "echo"), ConnectionClosedError)
        assert await gamma.request(alpha.address, "echo", b"1") == b"1"


# Who sends.


@asynccontextmanager
async def impostor(
    authority: Authority, victim: Address, dialect: Dialect, **options: object
) -> AsyncIterator[MessagingService]:
    """A node with a certificate of its own that says it is reached where another is."""
    name, cluster = options.get("name", "mallory"), options.get("cluster", CLUSTER)
    async with MessagingService(
        str(cluster),
        str(name),
        advertise=victim,
        tls=authority.tls("mallory"),
        limits=LIMITS,
        protocol=dialect.protocol,
    ) as service:
        yield service


@both_loops
@of_all
async def test_handlers_are_told_the_name_in_the_certificate(
    authority: Authority, dialect: Dialect
) -> None:
    async with (
        alpha_and_beta(authority, dialect.protocol) as (alpha, beta),
        impostor(authority, beta.address, dialect) as mallory,
    ):
        peers = peers_of(alpha)
        await beta.request(alpha.address, "who")
        await mallory.request(alpha.address, "who")
        assert peers == ["beta", "mallory"]


@of_older
async def test_of_several_names_the_first_counts_where_none_is_told(
    authority: Authority, dialect: Dialect
) -> None:
    if not (authority.directory / "many.pem").exists():
        certificates.issue(authority.directory, "many", hosts=["beta"])
    async with (
        node("alpha", authority.tls("alpha"), dialect.protocol) as alpha,
        node("many", authority.tls("many"), dialect.protocol) as many,
    ):
        peers = peers_of(alpha)
        await many.request(alpha.address, "who")
        assert peers == ["many"]


@asynccontextmanager
async def two_members(
    authority: Authority, dialect: Dialect, *, mutual: bool = True
) -> AsyncIterator[tuple[Node, Node]]:
    """Members of a cluster over TLS that speak this."""
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        for name in ("alpha", "beta"):
            tls = authority.tls(name, mutual=mutual)
            running = running_node(name, *nodes, tls=tls, protocol=dialect.protocol)
            nodes.append(await stack.enter_async_context(running))
        await all_know(nodes)
        yield nodes[0], nodes[1]


def callers_of(member: Node) -> list[str]:
    """The members its handlers are told of, for requests and messages without a reply."""
    callers: list[str] = []

    def take(_payload: bytes, caller: Member) -> bytes:
        callers.append(caller.name)
        return b""

    member.communication.serve("transfer", take)
    member.communication.subscribe("note", take)
    return callers


@of_all
async def test_no_member_is_whoever_advertises_its_address(
    authority: Authority, dialect: Dialect
) -> None:
    async with (
        two_members(authority, dialect) as (alpha, beta),
        impostor(authority, beta.address, dialect, cluster=NODES_CLUSTER) as mallory,
    ):
        callers = callers_of(alpha)
        with pytest.raises(RemoteHandlerError, match="not a known cluster member"):
            await mallory.request(alpha.address, "transfer")
        await mallory.send(alpha.address, "note")
        await eventually(
            lambda: alpha.communication.statistics().unknown_senders == 2, "both refused"
        )
        assert callers == []
        # Whom the certificate names is known as before.
        await beta.communication.request("alpha", "transfer", b"")
        await beta.communication.send("alpha", "note", b"")
        await eventually(lambda: callers == ["beta"] * 2, "both came")


async def test_no_member_is_whoever_claims_its_name(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        two_members(authority, Version3()) as (alpha, beta),
        impostor(
            authority, beta.address, Version3(), cluster=NODES_CLUSTER, name="beta"
        ) as mallory,
    ):
        callers = callers_of(alpha)
        await failure_of(mallory.request(alpha.address, "transfer"), ConnectionClosedError)
        assert "node 'beta' has a certificate for mallory" in caplog.text
        assert callers == []


# Without mutual TLS.


@both_loops
@of_all
async def test_without_mutual_a_certificate_that_is_shown_still_counts(
    authority: Authority, dialect: Dialect
) -> None:
    tls = authority.tls("alpha", mutual=False)
    async with (
        node("alpha", tls, dialect.protocol) as alpha,
        node("beta", authority.tls("beta"), dialect.protocol) as beta,
        impostor(authority, beta.address, dialect, name="beta") as mallory,
    ):
        peers = peers_of(alpha)
        await beta.request(alpha.address, "who")
        if dialect.version == 3:
            await failure_of(mallory.request(alpha.address, "who"), ConnectionClosedError)
            assert peers == ["beta"]
        else:
            await mallory.request(alpha.address, "who")
            assert peers == ["beta", "mallory"]


@both_loops
@of_all
async def test_without_a_certificate_nobody_is_known(
    authority: Authority, dialect: Dialect
) -> None:
    tls = authority.tls("alpha", mutual=False)
    async with (
        node("alpha", tls, dialect.protocol) as alpha,
        raw_client(alpha.address, authority.client_context()) as peer,
    ):
        peers = peers_of(alpha)
        peer.send(dialect.opening(), dialect.introduction("beta"), dialect.request(1, "who"))
        await eventually(lambda: peers, "it was handled")
        assert peers == [None]


@of_all
async def test_without_a_certificate_nobody_is_a_member(
    authority: Authority, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        two_members(authority, dialect, mutual=False) as (alpha, beta),
        AsyncExitStack() as stack,
    ):
        callers = callers_of(alpha)
        await beta.communication.request("alpha", "transfer", b"")
        assert callers == ["beta"]

        monkeypatch.setattr(dialect, "port", beta.address.port)
        context = authority.client_context()
        peer = await stack.enter_async_context(raw_client(alpha.address, context))
        introduction = (
            dialect.hello(name="beta", cluster=NODES_CLUSTER)
            if isinstance(dialect, Version3)
            else dialect.introduction()
        )
        peer.send(dialect.opening(NODES_CLUSTER), introduction)
        peer.send(dialect.request(1, "transfer"))
        await eventually(
            lambda: alpha.communication.statistics().unknown_senders == 1, "it was refused"
        )
        assert callers == ["beta"]


@both_loops
async def test_without_a_certificate_nobody_is_a_namesake(authority: Authority) -> None:
    dialect = Version3()
    namesakes: list[Address] = []
    async with (
        node("alpha", authority.tls("alpha", mutual=False)) as alpha,
        raw_client(alpha.address, authority.client_context()) as peer,
    ):
        alpha.set_duplicate_name_callback(lambda address, _incarnation: namesakes.append(address))
        peers = peers_of(alpha)
        peer.send(dialect.opening(), dialect.introduction("alpha"), dialect.request(1, "who"))
        await eventually(lambda: peers, "it was handled")
        assert (peers, namesakes) == ([None], [])


@both_loops
async def test_without_a_certificate_nobody_gets_a_tunnel(authority: Authority) -> None:
    dialect = Version3()
    users = Recorders()
    async with (
        node("core-1", authority.tls("core-1", mutual=False)) as server,
        raw_client(server.address, authority.client_context()) as peer,
    ):
        server.set_hello_role("core", None)
        server.tunnels.accept(users)
        peer.send(dialect.opening(), dialect.hello(name="core-2", role="core", is_tunnel=True))
        assert b"only for nodes that show a certificate" in await peer.until_closed()
        assert users.all == []


async def test_without_a_certificate_nobody_tells_of_members(authority: Authority) -> None:
    dialect = Version3()
    async with (
        two_members(authority, dialect, mutual=False) as (alpha, beta),
        raw_client(alpha.address, authority.client_context()) as peer,
    ):
        peer.send(dialect.opening(NODES_CLUSTER), dialect.hello(name="beta", cluster=NODES_CLUSTER))
        peer.send(dialect.request(1, "cluster.membership", b"anything"))
        await peer.expect(dialect.answer())
        reply = await dialect.take_first_reply(peer)
        assert reply.status == ReplyStatus.HANDLER_FAILED
        assert b"a node with a certificate" in reply.payload
        await all_know([alpha, beta])
