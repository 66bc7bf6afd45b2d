"""Discovery by a real ZooKeeper: what is entered there, and what others left there."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from postroad.cluster.discovery import ZooKeeperDiscovery
from postroad.core import Address
from tests.integration.cluster.registered_node import registered_node
from tests.support.cluster.discovery_behaviour import OTHER, OWN, THIRD, Told
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import holds_for
from tests.support.servers.zookeeper import (
    SESSION_TIMEOUT_S,
    ZooKeeperServer,
    zookeeper_client,
    zookeeper_server,
)

CLUSTER = "clearing"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def client(server: ZooKeeperServer) -> Iterator[Any]:
    with zookeeper_client(server) as client:
        yield client


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A path of the test's own."""
    return f"/{tmp_path.name}"


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
) -> AsyncIterator[Told]:
    told = Told()
    await discovery.start(name, address, told)
    try:
        yield told
    finally:
        await discovery.stop()


def entry(address: Address) -> bytes:
    return json.dumps({"address": str(address)}).encode()


async def test_the_entry_is_as_documented(
    server: ZooKeeperServer, client: Any, root: str, members: str
) -> None:
    async with running(make_discovery(server, root)):
        data, stat = client.get(f"{members}/own")
        assert json.loads(data) == {"address": "127.0.0.1:7001"}
        assert stat.ephemeralOwner != 0


async def test_a_clean_stop_removes_the_entry_at_once(
    server: ZooKeeperServer, client: Any, root: str, members: str
) -> None:
    async with running(make_discovery(server, root)):
        assert client.get_children(members) == ["own"]
    assert client.get_children(members) == []


async def test_nodes_find_each_other(server: ZooKeeperServer, root: str) -> None:
    one, two = make_discovery(server, root), make_discovery(server, root)
    async with running(one) as told, running(two, "other", OTHER) as told_two:
        await told_two.until(OWN)
        await told.until(OTHER)


async def test_clusters_do_not_see_each_other(server: ZooKeeperServer, root: str) -> None:
    # Names that would be paths, were they not encoded.
    names = ("a", "a/members", "..", "")
    clusters = [ZooKeeperDiscovery(server.hosts, name, root) for name in names]
    for number, discovery in enumerate(clusters):
        told = Told()
        await discovery.start("..", Address("127.0.0.1", 7100 + number), told)
        assert told.calls == [frozenset()]
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
        await eventually(lambda: discovery.statistics().contacts == 1, "the event has a path")


async def test_a_changed_address_is_told(
    server: ZooKeeperServer, client: Any, root: str, members: str
) -> None:
    client.create(f"{members}/other", entry(OTHER), makepath=True)
    async with running(make_discovery(server, root)) as told:
        client.set(f"{members}/other", entry(THIRD))
        await told.until(THIRD)
        client.delete(f"{members}/other")
        client.create(f"{members}/other", entry(OTHER))
        await told.until(OTHER)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff\xfe", b"127.0.0.1:7002", b"[]", b"{}", b'{"address":1}', b'{"address":"x"}'],
)
async def test_garbage_is_skipped(
    server: ZooKeeperServer,
    client: Any,
    root: str,
    members: str,
    garbage: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.create(f"{members}/broken", garbage, makepath=True)
    client.create(f"{members}/third", entry(THIRD))
    discovery = make_discovery(server, root)
    async with running(discovery) as told:
        assert told.calls == [{THIRD}]
        assert discovery.statistics().skipped == 1
        assert f"{members}/broken holds no address" in caplog.text
        client.set(f"{members}/broken", entry(OTHER))
        await told.until(OTHER, THIRD)


async def test_an_entry_that_somebody_removed_is_made_again(
    server: ZooKeeperServer, client: Any, root: str, members: str
) -> None:
    discovery = make_discovery(server, root)
    async with running(discovery):
        client.delete(f"{members}/own")
        await eventually(lambda: client.exists(f"{members}/own"), "the entry is back")
        client.set(f"{members}/own", b"garbage")
        await eventually(lambda: discovery.statistics().registrations == 3, "the entry is mended")
        assert json.loads(client.get(f"{members}/own")[0]) == {"address": str(OWN)}
    assert client.get_children(members) == []


async def test_the_entry_of_an_earlier_life_is_replaced(
    server: ZooKeeperServer, root: str, members: str
) -> None:
    with zookeeper_client(server) as earlier:
        earlier.create(f"{members}/own", entry(OWN), ephemeral=True, makepath=True)
        discovery = make_discovery(server, root)
        async with running(discovery):
            stat = earlier.exists(f"{members}/own")
            assert stat.ephemeralOwner not in (0, earlier.client_id[0])
            assert discovery.statistics().conflicts == 0


async def test_a_foreign_entry_under_the_own_name_is_loud_and_awaited(
    server: ZooKeeperServer, root: str, members: str, caplog: pytest.LogCaptureFixture
) -> None:
    discovery = make_discovery(server, root)
    with zookeeper_client(server) as foreign:
        foreign.create(f"{members}/own", entry(OTHER), ephemeral=True, makepath=True)
        told = Told()
        await discovery.start("own", OWN, told)
        assert told.calls == [{OTHER}], "where somebody is, is told all the same"
        await eventually(lambda: discovery.statistics().conflicts > 1, "it is tried again")
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "'own' is taken by a node at 127.0.0.1:7002" in errors[0].getMessage()
        assert discovery.statistics().registrations == 0
    await told.until()
    assert discovery.statistics().registrations == 1
    await discovery.stop()


async def test_two_nodes_with_one_name_and_address_do_not_take_turns(
    server: ZooKeeperServer, root: str
) -> None:
    first, second = make_discovery(server, root), make_discovery(server, root)
    async with running(first), running(second):
        await eventually(
            lambda: first.statistics().conflicts + second.statistics().conflicts > 1, "conflict"
        )
        total = first.statistics().registrations + second.statistics().registrations
        assert total <= 4


async def test_access_that_is_refused_is_told_and_granted_with_credentials(
    server: ZooKeeperServer, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    auth = [("digest", "clearing:secret")]
    acl = [make_digest_acl("clearing", "secret", all=True)]
    with zookeeper_client(server, auth_data=auth) as owner:
        owner.create(root, acl=acl)
        stranger = make_discovery(server, root)
        async with running(stranger) as told:
            assert told.calls == [frozenset()]
            assert f"access to {root}/{CLUSTER}/members" in stranger.statistics().last_error
            assert "refused (NoAuthError)" in caplog.text
        friend = make_discovery(server, root, auth=auth)
        async with running(friend):
            assert owner.exists(f"{root}/{CLUSTER}/members/own")
        assert "secret" not in repr(friend)


async def test_credentials_of_an_unknown_kind_are_told(
    server: ZooKeeperServer, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    discovery = make_discovery(server, root, auth=[("nonsense", "x")])
    async with running(discovery):
        refused = discovery._entries.session
        # As the client, or as the session put it, whichever noticed it first.
        assert "refused (AuthFailedError)" in caplog.text or "AUTH_FAILED" in caplog.text
        await eventually(lambda: discovery._entries.session is not refused, "a new session", 20)


async def test_a_session_that_is_ended_by_others_is_made_again(
    server: ZooKeeperServer, client: Any, root: str, members: str
) -> None:
    client.create(f"{members}/other", entry(OTHER), makepath=True)
    discovery = make_discovery(server, root)
    async with running(discovery) as told:
        before = client.exists(f"{members}/own").ephemeralOwner
        await asyncio.to_thread(expire, server, discovery)
        await eventually(lambda: discovery.statistics().registrations == 2, "registered again")
        assert client.exists(f"{members}/own").ephemeralOwner != before
        assert told.calls == [{OTHER}]
        client.create(f"{members}/third", entry(THIRD))
        await told.until(OTHER, THIRD)


def expire(server: ZooKeeperServer, discovery: ZooKeeperDiscovery) -> None:
    """End a session from outside: a second client takes it over and closes it."""
    assert discovery._entries.session is not None
    thief = KazooClient(server.hosts, client_id=discovery._entries.session._client.client_id)
    thief.start()
    thief.stop()
    thief.close()


async def test_the_entry_of_a_killed_process_goes_with_its_session(
    server: ZooKeeperServer, client: Any, root: str, members: str
) -> None:
    async with (
        running(make_discovery(server, root)) as told,
        registered_node(server.hosts, CLUSTER, root) as process,
    ):
        await told.until(OTHER)
        process.send_signal(signal.SIGKILL)
        await told.until()
        assert client.get_children(members) == ["own"]


async def test_many_entries(server: ZooKeeperServer, client: Any, root: str, members: str) -> None:
    client.ensure_path(members)
    addresses = [Address("10.0.0.1", port) for port in range(20_000, 20_350)]
    made = [client.create_async(f"{members}/n{a.port}", entry(a)) for a in addresses]
    assert all(one.get(timeout=10) for one in made)
    async with running(make_discovery(server, root)) as told:
        assert told.calls == [frozenset(addresses)]
        client.delete(f"{members}/n20000")
        await told.until(*addresses[1:])
    await holds_for(lambda: len(told.calls) == 2, "told twice", 0.05)
