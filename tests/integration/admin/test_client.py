"""The client of programs that wait: calls, errors, and servers that are no Postroad."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from postroad.admin.client import Client, Tls, find_nodes
from postroad.admin.errors import Forbidden, InvalidRequest, NotFound
from postroad.admin.problems import Refused
from postroad.admin.serving import AdminServer
from postroad.core.errors import (
    ConfigError,
    ConnectError,
    ConnectionClosedError,
    PostroadError,
    ReplyTimeoutError,
    UsageError,
)
from postroad.node import App, Node
from tests.support.admin.nodes import TOKEN, Served, config_of, served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("alpha")) as found:
        await found.node.queues.declare("orders")
        yield found


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("is_read", [None, True])
async def test_reads(node: Served, is_read: bool | None) -> None:
    client = node.client
    for _ in range(2):
        found = await asyncio.to_thread(
            client.call, "queue.peek", {"queue": "orders", "limit": 3}, is_read=is_read
        )
        assert found == []


@pytest.mark.asyncio(loop_scope="module")
async def test_values_arrive_as_they_are(node: Served) -> None:
    body = {"text": "ä&=? \n", "number": 2**53, "list": [None, True, 1.5]}
    posted = await node.call("queue.post", queue="odd", body=body, headers={"a": "b"}, key=None)
    [letter] = await node.call("queue.peek", queue="odd")
    assert letter["id"] == posted["id"]
    assert letter["headers"] == {"a": "b"}
    assert await node.call("dlq.ls", queue="odd &?=ä") == []


@pytest.mark.asyncio(loop_scope="module")
async def test_errors_are_typed_and_tell_what_to_try(node: Served) -> None:
    with pytest.raises(NotFound, match="did you mean") as found:
        await node.call("queue.show", queue="order")
    assert found.value.__notes__ == ["postroad errors 10100"]
    with pytest.raises(NotFound, match="no operation"):
        await node.call("queue.lst")
    with pytest.raises(InvalidRequest, match="limit"):
        await node.call("queue.peek", queue="orders", limit=0)
    with pytest.raises(Forbidden) as refused:
        await asyncio.to_thread(Client(node.admin.url, "x" * 20).call, "queue.ls")
    assert "Authorization" in refused.value.__notes__[0]


@pytest.mark.asyncio(loop_scope="module")
async def test_other_texts_of_the_server(node: Served) -> None:
    assert await asyncio.to_thread(node.client.fetch, "/livez") == "alive\n"
    assert "openapi" in await asyncio.to_thread(node.client.fetch, "/api/v1/openapi.json")
    with pytest.raises(NotFound):
        await asyncio.to_thread(node.client.fetch, "/nothing")


async def test_layers_that_are_not_there(tmp_path: Path) -> None:
    config = config_of(tmp_path, node={"layers": ["cluster"]})
    async with Node(config, App()) as node, AdminServer(node) as admin:
        with pytest.raises(UsageError, match="has no DurableQueues"):
            await Served(node, admin).call("queue.ls")


async def test_nobody_is_there(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        client = node.client
        [card] = find_nodes(tmp_path)
    with pytest.raises(ConnectError, match="postroad node start"):
        await asyncio.to_thread(client.call, "queue.ls")
    with pytest.raises(ConnectError):
        await asyncio.to_thread(Client.of(card, tmp_path).call, "queue.ls")
    with pytest.raises(ConnectError):
        await asyncio.to_thread(next, client.watch([("queue.ls", {})]))


def test_addresses_and_tokens_that_are_none_are_refused() -> None:
    for url in (
        *("", "ftp://127.0.0.1", "http://", "http:///x"),
        *("http://a:http", "http://[::1", "http://a:99999"),
    ):
        with pytest.raises(ConfigError, match="8222"):
            Client(url)
            pytest.fail(f"{url} was taken")
    for token in ("a\nb", "ä" * 20, "a\x00b"):
        with pytest.raises(ConfigError, match="printable"):
            Client("http://127.0.0.1:8222", token)
            pytest.fail(f"{token} was taken")


def test_the_scheme_can_be_left_out() -> None:
    assert Client("127.0.0.1:8222").url == "http://127.0.0.1:8222"


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        Client("https://127.0.0.1:1", tls=Tls(trust=str(tmp_path / "missing.pem")))


# Servers that are no Postroad.


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[Client]:
    """A server that says always the same, and hangs up; with None it says nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is not None:
            writer.write(answer)
            await writer.drain()
        else:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with server:
        yield Client(f"http://{host}:{port}", TOKEN, timeout_s=0.5)


def reply(status: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


ODD_ANSWERS: list[tuple[bytes | None, type[PostroadError]]] = [
    (b"", ConnectionClosedError),
    (b"hello\r\n\r\n", ConnectionClosedError),
    (reply("200 OK", b"{}")[:-1], ConnectionClosedError),
    (reply("200 OK", b"<p>"), Refused),
    (reply("200 OK", b"\xff"), Refused),
    (reply("500 Oops", b"<p>"), Refused),
    (reply("404 Not Found", b""), NotFound),
    (reply("418 Teapot", b"{", "application/problem+json"), Refused),
    (None, ReplyTimeoutError),
]


async def test_other_servers_are_told_apart() -> None:
    for answer, error in ODD_ANSWERS:
        async with answering(answer) as client:
            with pytest.raises(error):
                await asyncio.to_thread(client.call, "queue.ls", is_read=True)
                pytest.fail(f"{answer!r} was taken")


async def test_events_that_are_none() -> None:
    text = b"data: {\n\n"
    async with answering(reply("200 OK", text, "text/event-stream")) as client:
        with pytest.raises(Refused):
            await asyncio.to_thread(next, client.watch([("queue.ls", {})]))
