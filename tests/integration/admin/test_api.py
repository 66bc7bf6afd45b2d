"""The API of a real node: operations, problems, methods and headers."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from postroad.admin.operations import OPERATIONS
from tests.support.admin.nodes import READ_TOKEN, Served, served

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROBLEM = "application/problem+json"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("alpha")) as found:
        await found.node.queues.declare("orders")
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def node(shared: Served) -> Served:
    await shared.node.queues.admin.resume("orders")
    return shared


async def test_reads_and_changes(node: Served) -> None:
    shown = await node.ask("/api/v1/queue/show?queue=orders")
    assert shown.status == 200
    assert shown.headers["content-type"] == "application/json"
    assert shown.headers["cache-control"] == "no-store"
    assert shown.headers["postroad-role"] == "change"
    assert shown.headers["postroad-node"] == "alpha"
    assert shown.data["is_paused"] is False
    paused = await node.ask("/api/v1/queue/pause", method="POST", data={"queue": "orders"})
    assert paused.data["is_paused"] is True
    assert (await node.call("queue.show", queue="orders"))["is_paused"] is True
    assert "orders" in {it["name"] for it in (await node.ask("/api/v1/queue/ls")).data}


PROBLEMS = [
    ("/api/v1/queue/shw?queue=orders", 404, "did you mean 'queue.show'"),
    ("/api/v1/queue/show?queue=ordres", 404, "did you mean 'orders'"),
    ("/api/v1/queue/show?queues=orders", 400, "did you mean 'queue'"),
    ("/api/v1/queue/show", 400, "queue"),
    ("/api/v1/queue/show?queue=orders&queue=bills", 400, "queue is given twice"),
    ("/api/v1/queue/peek?queue=orders&limit=many", 400, "limit"),
    ("/api/v1/queue/peek?queue=orders&limit=0", 400, "limit"),
    ("/api/v1/queue/show?queue=%ff", 400, "query string"),
    ("/api/v1/queue/show?queue=a%00b", 400, "zero byte"),
    ("/api/v1/queue/show?queue=orders&node=omega", 404, "no member 'omega'"),
    ("/api/v1/watch", 400, "say what"),
    ("/api/v1/watch?operation=queue.pause", 403, "changes something"),
    ("/api/v1/watch?operation=queue.shw", 404, "did you mean"),
    ("/api/v2", 404, "nothing"),
    ("/api/v1/", 404, "nothing"),
    ("/no/../such", 404, "nothing"),
    ("/%2e%2e/%2e%2e/pyproject.toml", 404, "nothing"),
    ("//etc/passwd", 404, "nothing"),
]


async def test_problems_name_what_is_wrong(node: Served) -> None:
    for path, status, words in PROBLEMS:
        reply = await node.ask(path)
        assert (reply.status, reply.headers["content-type"]) == (status, PROBLEM), path
        assert reply.data["status"] == status, path
        assert words in reply.data["detail"], path


JSON = "application/json"
BODIES = [
    (b"{", JSON, 400, "no JSON"),
    (b"[1]", JSON, 400, "object"),
    (b"[" * 100_000, JSON, 400, "nested"),
    (b'{"queue": "\xff"}', JSON, 400, "no JSON"),
    (b'{"queue": 7}', JSON, 400, "queue"),
    (b"", JSON, 400, "queue"),
    (b"queue=orders", "application/x-www-form-urlencoded", 415, "not understood"),
    (b'{"queue": "orders"}', "text/plain", 415, "not understood"),
    (b'{"queue": "' + b"x" * 2_000_000 + b'"}', JSON, 413, "larger"),
]


async def test_bodies_that_cannot_be_read_are_refused(node: Served) -> None:
    for body, kind, status, words in BODIES:
        reply = await node.ask(
            "/api/v1/queue/pause", method="POST", body=body, headers={"Content-Type": kind}
        )
        assert (reply.status, reply.headers["content-type"]) == (status, PROBLEM), body[:80]
        assert words in reply.data["detail"], body[:80]


async def test_parameters_of_changes_are_not_read_from_the_query(node: Served) -> None:
    reply = await node.ask("/api/v1/queue/pause?queue=orders", method="POST")
    assert reply.status == 400
    assert "in its body" in reply.data["detail"]
    assert (await node.call("queue.show", queue="orders"))["is_paused"] is False


METHODS = [
    ("GET", "/api/v1/queue/pause", "POST, OPTIONS"),
    ("POST", "/api/v1/queue/ls", "GET, HEAD, OPTIONS"),
    ("DELETE", "/api/v1/queue/ls", "GET, HEAD, OPTIONS"),
    ("POST", "/api/v1/watch?operation=queue.ls", "GET, OPTIONS"),
    ("PUT", "/livez", "GET, HEAD, OPTIONS"),
    ("POST", "/", "GET, HEAD, OPTIONS"),
]


async def test_other_methods_are_told_which_are_allowed(node: Served) -> None:
    for method, path, allow in METHODS:
        reply = await node.ask(path, method=method)
        assert (reply.status, reply.headers["allow"]) == (405, allow), path
        assert reply.headers["content-type"] == PROBLEM, path
        asked = await node.ask(path, method="OPTIONS")
        assert (asked.status, asked.headers["allow"], asked.body) == (204, allow, b""), path
        assert not [name for name in asked.headers if name.startswith("access-control")], path


async def test_head_is_get_without_the_body(node: Served) -> None:
    got = await node.ask("/api/v1/queue/ls")
    asked = await node.ask("/api/v1/queue/ls", method="HEAD")
    assert (asked.status, asked.body) == (200, b"")
    assert asked.headers["content-length"] == got.headers["content-length"]


async def test_every_answer_tells_browsers_to_be_strict(node: Served) -> None:
    for path in ("/", "/livez", "/api/v1/queue/ls", "/nothing"):
        headers = (await node.ask(path, token=None)).headers
        assert "'unsafe-inline'" not in headers["content-security-policy"]
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers


async def test_what_nobody_expected_is_told_to_the_log_alone(
    node: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise RuntimeError("the secret is hush")

    monkeypatch.setattr(node.node.queues.admin, "statistics", fail)
    reply = await node.ask("/api/v1/queue/ls")
    assert reply.status == 500
    assert b"hush" not in reply.body
    assert reply.data["id"] in caplog.text
    assert "the secret is hush" in caplog.text


async def test_operation_taking_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async with served(tmp_path, admin={"request_timeout_s": 0.2}) as node:
        monkeypatch.setattr(node.node.queues.admin, "statistics", wait_for_ever)
        reply = await node.ask("/api/v1/queue/ls")
        assert reply.status == 503
        assert reply.headers["retry-after"] == "1"
        assert "longer than 0.2 s" in reply.data["detail"]
        assert reply.data["retryable"] is True


async def test_errors_of_services_tell_each_field(node: Served) -> None:
    data = {"action": "greeter.hello", "params": {}}
    reply = await node.ask("/api/v1/service/call", method="POST", data=data)
    assert reply.status == 422
    assert [it["field"] for it in reply.data["data"]] == ["name"]
    assert "'name'" in reply.data["detail"]


async def test_changes_by_the_read_token(node: Served) -> None:
    reply = await node.ask(
        "/api/v1/queue/pause", method="POST", data={"queue": "orders"}, token=READ_TOKEN
    )
    assert reply.status == 403
    assert reply.headers["postroad-role"] == "read"
    assert (await node.call("queue.show", queue="orders"))["is_paused"] is False


async def test_document_has_every_operation(node: Served) -> None:
    document = json.loads((await node.ask("/api/v1/openapi.json")).body)
    for operation in OPERATIONS.values():
        path = document["paths"][f"/api/v1/{operation.noun}/{operation.verb}"]
        [method] = path
        assert method == ("get" if operation.is_read else "post")
