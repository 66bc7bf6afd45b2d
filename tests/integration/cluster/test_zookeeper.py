"""Discovery by a real ZooKeeper: registrations of this node and of others."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kazoo.security import make_digest_acl

from postroad.cluster.discovery import ZooKeeperDiscovery
from postroad.core import Address
from tests.support.cluster.discovery_behaviour import OTHER, OWN, THIRD, Recorder
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.raw_peers import holds_for
from tests.support.servers.zookeeper import (
    SESSION_TIMEOUT_S,
    ZooKeeperServer,
    fresh_root,
    shared_zookeeper,
    zookeeper_client,
)

CLUSTER = "clearing"


@pytest.fixture(scope="module")
def server() -> ZooKeeperServer:
    return shared_zookeeper()


@pytest.fixture(scope="module")
def client(server: ZooKeeperServer) -> Iterator[Any]:
    with zookeeper_client(server) as client:
        yield client


@pytest.fixture
def root() -> str:
    return fresh_root()


@pytest.fixture
def members(root: str) -> str:
    return f"{root}/{CLUSTER}/members"


def make_discovery(server: ZooKeeperServer, root: str, **options: Any) -> ZooKeeperDiscovery:
    return ZooKeeperDiscovery(
        server.hosts, CLUSTER, root, session_timeout_s=SESSION_TIMEOUT_S, **options
    )


@asynccontextmanager
async def running(
    discovery: ZooKeeperDiscovery, name: str = "own", address: Address = OWN
) -> AsyncIterator[Recorder]:
    reported = Recorder()
    await discovery.start(name, address, reported)
    try:
        yield reported
    finally:
        await discovery.stop()


def entry(address: Address) -> bytes:
    return json.dumps({"address": str(address)}).encode()


async def test_entry_is_as_documented_and_goes_with_a_clean_stop(
    server: ZooKeeperServer, client: Any, root: str, members: str
) -> None:
    async with running(make_discovery(server, root)):
        data, stat = client.get(f"{members}/own")
        assert json.loads(data) == {"address": "127.0.0.1:7001"}
        assert stat.ephemeralOwner != 0
        assert client.get_children(members) == ["own"]
    assert client.get_children(members) == []


async def test_clusters_do_not_see_each_other(server: ZooKeeperServer, root: str) -> None:
    # Names that would be paths, were they not encoded.
    names = ("a", "a/members", "..", "")
    clusters = [ZooKeeperDiscovery(server.hosts, name, root) for name in names]
    for number, discovery in enumerate(clusters):
        reported = Recorder()
        await discovery.start("..", Address("127.0.0.1", 7100 + number), reported)
        assert reported.calls == [frozenset()]
    for discovery in clusters:
        assert discovery.statistics().conflicts == 0
        await discovery.stop()


async def test_everything_can_be_kept_below_a_path(
    server: ZooKeeperServer, client: Any, root: str
) -> None:
    client.create(root)
    discovery = ZooKeeperDiscovery(server.hosts + root, CLUSTER, "/")
    async with running(discovery):
        assert client.get_children(f"{root}/{CLUSTER}/members") == ["own"]
        client.create(f"{root}/{CLUSTER}/members/other", entry(OTHER))
        await eventually(lambda: discovery.statistics().seeds == 1, "the event has a path")


async def test_changed_address_is_reported(
    server: ZooKeeperServer, client: Any, root: str, members: str
) -> None:
    client.create(f"{members}/other", entry(OTHER), makepath=True)
    async with running(make_discovery(server, root)) as reported:
        client.set(f"{members}/other", entry(THIRD))
        await reported.until(THIRD)
        client.delete(f"{members}/other")
        client.create(f"{members}/other", entry(OTHER))
        await reported.until(OTHER)


GARBAGE = [b"", b"\xff\xfe", b"127.0.0.1:7002", b"[]", b"{}", b'{"address":1}', b'{"address":"x"}']


async def test_garbage_is_skipped(
    server: ZooKeeperServer, client: Any, root: str, members: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number, garbage in enumerate(GARBAGE):
        client.create(f"{members}/broken-{number}", garbage, makepath=True)
    client.create(f"{members}/third", entry(THIRD))
    discovery = make_discovery(server, root)
    async with running(discovery) as reported:
        assert reported.calls == [{THIRD}]
        assert discovery.statistics().skipped == len(GARBAGE)
        assert f"{members}/broken-" in caplog.text and " holds no address" in caplog.text
        client.set(f"{members}/broken-0", entry(OTHER))
        await reported.until(OTHER, THIRD)


async def test_two_nodes_with_one_registration_do_not_replace_each_other_forever(
    server: ZooKeeperServer, root: str
) -> None:
    first, second = make_discovery(server, root), make_discovery(server, root)
    async with running(first), running(second):
        await eventually(
            lambda: first.statistics().conflicts + second.statistics().conflicts > 1, "conflict"
        )
        total = first.statistics().registrations + second.statistics().registrations
        assert total <= 4


async def test_denied_access_is_reported_and_granted_with_credentials(
    server: ZooKeeperServer, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    auth = [("digest", "clearing:secret")]
    acl = [make_digest_acl("clearing", "secret", all=True)]
    with zookeeper_client(server, auth_data=auth) as owner:
        owner.create(root, acl=acl)
        unknown_node = make_discovery(server, root)
        async with running(unknown_node) as reported:
            assert reported.calls == [frozenset()]
            assert f"access to {root}/{CLUSTER}/members" in unknown_node.statistics().last_error
            assert "denied (NoAuthError)" in caplog.text
        friend = make_discovery(server, root, auth=auth)
        async with running(friend):
            assert owner.exists(f"{root}/{CLUSTER}/members/own")
        assert "secret" not in repr(friend)


@pytest.mark.slow
async def test_credentials_of_an_unknown_scheme_are_reported(
    server: ZooKeeperServer, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    discovery = make_discovery(server, root, auth=[("nonsense", "x")])
    async with running(discovery):
        refused = discovery._entries.session
        # As the client, or as the session put it, whichever noticed it first.
        assert "denied (AuthFailedError)" in caplog.text or "AUTH_FAILED" in caplog.text
        await eventually(lambda: discovery._entries.session is not refused, "a new session")


async def test_many_entries(server: ZooKeeperServer, client: Any, root: str, members: str) -> None:
    client.ensure_path(members)
    addresses = [Address("10.0.0.1", port) for port in range(20_000, 20_350)]
    results = [client.create_async(f"{members}/n{a.port}", entry(a)) for a in addresses]
    assert all(one.get(timeout=10) for one in results)
    async with running(make_discovery(server, root)) as reported:
        assert reported.calls == [frozenset(addresses)]
        client.delete(f"{members}/n20000")
        await reported.until(*addresses[1:])
    await holds_for(lambda: len(reported.calls) == 2, "told twice", 0.05)


async def test_server_that_accepts_and_says_nothing_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        silent = ZooKeeperDiscovery(
            f"{host}:{port}", CLUSTER, connect_timeout_s=0.5, request_timeout_s=0.5
        )
        reported = Recorder()
        async with asyncio.timeout(DEADLINE_S):
            await silent.start("own", OWN, reported)
            assert reported.calls == [frozenset()]
            await silent.stop()


async def test_server_that_speaks_nonsense_is_tried_again() -> None:
    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\4what" * 10)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as listener:
        host, port = listener.sockets[0].getsockname()
        odd = ZooKeeperDiscovery(
            str(Address(host, port)), CLUSTER, connect_timeout_s=0.5, request_timeout_s=0.5
        )
        await odd.start("own", OWN, Recorder())
        await eventually(lambda: odd.statistics().failures > 1, "it is tried again")
        await odd.stop()


async def test_hosts_that_do_not_resolve_are_tried_again() -> None:
    lost = ZooKeeperDiscovery("no-such-host.invalid:2181", CLUSTER, connect_timeout_s=0.2)
    await lost.start("own", OWN, Recorder())
    await eventually(lambda: lost.statistics().failures > 2, "it is tried again")
    assert "no-such-host.invalid" in lost.statistics().last_error
    await lost.stop()
