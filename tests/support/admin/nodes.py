"""A node with its API, and a client that says exactly what a test wants it to say."""

import asyncio
import http.client
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from postroad.admin.client import Client
from postroad.admin.serving import AdminServer
from postroad.flows import FlowContext, flow
from postroad.node import App, Node, NodeConfig
from postroad.services import Context, Service, action
from tests.support.node import configs

TOKEN = "all-of-it-0123456789"
READ_TOKEN = "only-look-0123456789"


class Greeter(Service):
    name = "greeter"

    @action
    async def hello(self, ctx: Context, name: str) -> str:
        return f"Hello {name}!"


@flow
async def pack(ctx: FlowContext, item: str) -> str:
    return f"packed {item}"


class Reply(NamedTuple):
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class Served(NamedTuple):
    """A node and its API."""

    node: Node
    admin: AdminServer

    @property
    def client(self) -> Client:
        return Client(self.admin.url, self.admin.token)

    async def call(self, operation: str, **params: Any) -> Any:
        return await asyncio.to_thread(self.client.call, operation, params)

    async def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        token: str | None = TOKEN,
        data: Any = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> Reply:
        said = {} if token is None else {"Authorization": f"Bearer {token}"}
        if data is not None:
            body = json.dumps(data).encode()
            said["Content-Type"] = "application/json"
        said |= headers or {}
        return await asyncio.to_thread(exchange, self.admin.url, method, path, body, said, context)


def exchange(
    url: str,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    context: ssl.SSLContext | None,
) -> Reply:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = (
        http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
        if context is None
        else http.client.HTTPSConnection(parts.hostname, parts.port, timeout=120, context=context)
    )
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        told = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, told, response.read())
    finally:
        connection.close()


def config_of(directory: Path, name: str = "alpha", **more: Any) -> NodeConfig:
    admin = {
        "bind": "127.0.0.1:0",
        "token": TOKEN,
        "read_token": READ_TOKEN,
        # Of the members that tests start beside each other, on loopback and without certificates.
        "remote": "read",
        **more.pop("admin", {}),
    }
    return configs.config_of(directory, name, admin=admin, **more)


def make_app() -> App:
    return App(services=[Greeter()], flows=[pack])


@asynccontextmanager
async def served(directory: Path, name: str = "alpha", **more: Any) -> AsyncIterator[Served]:
    config = config_of(directory, name, **more)
    async with Node(config, make_app()) as node, AdminServer(node) as admin:
        yield Served(node, admin)


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which nothing was said yet."""
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    try:
        await writer.wait_closed()
    except OSError:
        pass  # The other side was faster.
