"""Nodes for the tests of transporters: each a transporter with a listener that remembers."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import trustme

from postroad.services.kinds import Kind
from postroad.services.topics import BalancedTopic, Topics
from postroad.services.transporters import Transporter
from tests.support.deadlines import DEADLINE_S, eventually

NODE_IDS = ("alpha", "beta", "gamma", "d.el-ta_4")
"""The nodes of all tests."""

_namespaces = count(1)


class Wiring(Protocol):
    """How the nodes of one kind get at each other: by a server that tests share, or by none."""

    def make(self, node_id: str) -> Transporter:
        """A new transporter for one of NODE_IDS; it is bound and connected by the test."""


class ServedWiring(Wiring, Protocol):
    """With a server that is the test's own, and running; a test may stop and start it."""

    def make_impatient(self, node_id: str) -> Transporter:
        """One that gives up a silent server after about a second."""

    async def kill(self) -> None:
        """End the server at once."""

    async def start(self) -> None:
        """Start it again at the same place; returns when it accepts connections."""

    async def pause(self) -> None:
        """Make it hang: connections stay open, and nothing is read or answered."""

    async def resume(self) -> None: ...


class Stoppable(Protocol):
    """As the servers of tests/support/servers are."""

    def kill(self) -> None: ...
    def start(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class ServerWiring:
    """A ServedWiring around a running server. Waiting for the process does not stop the nodes."""

    def __init__(
        self,
        server: Stoppable,
        make: Callable[[], Transporter],
        make_impatient: Callable[[], Transporter],
    ) -> None:
        self._server = server
        self._make = make
        self._make_impatient = make_impatient
        self._is_up = True
        self._is_paused = False

    def make(self, node_id: str) -> Transporter:
        return self._make()

    def make_impatient(self, node_id: str) -> Transporter:
        return self._make_impatient()

    async def kill(self) -> None:
        self._is_up = self._is_paused = False
        await asyncio.to_thread(self._server.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)
        self._is_up = True

    async def pause(self) -> None:
        self._is_paused = True
        await asyncio.to_thread(self._server.pause)

    async def resume(self) -> None:
        await asyncio.to_thread(self._server.resume)
        self._is_paused = False

    async def revived(self) -> ServerWiring:
        """The same, running, whatever a test did to the server."""
        if not self._is_up:
            await self.start()
        elif self._is_paused:
            await self.resume()
        return self


class SharedWiring:
    """Nodes at a server that tests share and leave alone."""

    def __init__(self, make: Callable[[], Transporter]) -> None:
        self._make = make

    def make(self, node_id: str) -> Transporter:
        return self._make()


class Received(NamedTuple):
    """A packet that came."""

    kind: Kind
    data: bytes


class Recorder:
    """A listener that remembers all it is told.

    Args:
        slowness_s: how long the loop stands still for each packet; packets to be confirmed are
            confirmed as much later again.
    """

    def __init__(self, slowness_s: float = 0.0) -> None:
        self._slowness_s = slowness_s
        self.packets: list[Received] = []
        self.by_kind: defaultdict[Kind, list[bytes]] = defaultdict(list)
        self.connections: list[bool] = []
        """The `is_again` of each."""
        self.losses: list[str] = []
        self.lost_nodes: list[str] = []
        self._changed = asyncio.Event()

    def received(
        self,
        kind: Kind,
        data: bytes,
        done: Callable[[], None] | None = None,
        sender: str | None = None,
    ) -> None:
        asyncio.get_running_loop()  # Raises in any other thread.
        assert type(data) is bytes
        self.packets.append(Received(kind, data))
        self.by_kind[kind].append(data)
        self._changed.set()
        if self._slowness_s:
            time.sleep(self._slowness_s)
        if done is not None:
            asyncio.get_running_loop().call_later(self._slowness_s, done)

    def connected(self, *, is_again: bool) -> None:
        self.connections.append(is_again)
        self._changed.set()

    def disconnected(self, reason: str) -> None:
        assert reason
        self.losses.append(reason)
        self._changed.set()

    def node_lost(self, node_id: str, *, is_unexpected: bool) -> None:
        self.lost_nodes.append(node_id)
        self._changed.set()

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Return as soon as the condition, which depends on what is told, holds."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"not within {DEADLINE_S:g} s: {what}; {self!r}") from None

    def __repr__(self) -> str:
        last = [(kind.value, data[:40]) for kind, data in self.packets[-3:]]
        told = f"connected {self.connections}, lost {self.losses}"
        return f"<Recorder {told}, {len(self.packets)} packets, the last {last}>"


class Node:
    """A transporter in use."""

    def __init__(self, node_id: str, transporter: Transporter, topics: Topics, heard: Recorder):
        self.node_id = node_id
        self.transporter = transporter
        self.topics = topics
        self.heard = heard
        transporter.bind(topics, heard)

    def send(self, kind: Kind, to: Node | None, data: bytes) -> None:
        self.transporter.publish(kind, to.node_id if to else None, data)

    def send_balanced(self, topic: BalancedTopic, data: bytes) -> None:
        self.transporter.publish_balanced(topic.name, topic.kind, data)

    def action(self, name: str) -> BalancedTopic:
        return BalancedTopic(self.topics.for_request(name), Kind.REQUEST, name)

    def event(self, group: str, name: str) -> BalancedTopic:
        return BalancedTopic(self.topics.for_event(group, name), Kind.EVENT, group)

    def data_of(self, kind: Kind) -> list[bytes]:
        """What came in packets of a kind."""
        return self.heard.by_kind[kind].copy()

    async def until_received(self, kind: Kind, *data: bytes) -> None:
        """Return when all of these came; there may be others before and between."""
        wanted = set(data)
        what = f"{self.node_id} got {kind} {sorted(data)!r:.80}"
        await self.heard.until(lambda: wanted.issubset(self.data_of(kind)), what)

    async def until_count(self, kind: Kind, number: int) -> list[bytes]:
        """Return when so many came of a kind, with what they are."""
        what = f"{self.node_id} got {number} packets of kind {kind}"
        await self.heard.until(lambda: len(self.data_of(kind)) >= number, what)
        return self.data_of(kind)

    async def until_lost(self, times: int = 1) -> None:
        what = f"{self.node_id} is told of the loss"
        await self.heard.until(lambda: len(self.heard.losses) >= times, what)

    async def until_back(self, times: int = 1) -> None:
        what = f"{self.node_id} is connected again"
        await self.heard.until(lambda: self.heard.connections.count(True) >= times, what)


class Nodes:
    """The nodes of one test, with a namespace that no other test has."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._all: list[Node] = []
        self.namespace = f"test{next(_namespaces)}"

    def make(self, node_id: str, *, transporter: Transporter | None = None, **options: Any) -> Node:
        """A node that is not connected; `options` are a `namespace` and those of Recorder."""
        assert node_id in NODE_IDS
        topics = Topics(node_id, options.pop("namespace", self.namespace))
        made = self._wiring.make(node_id) if transporter is None else transporter
        node = Node(node_id, made, topics, Recorder(**options))
        self._all.append(node)
        return node

    async def join(
        self, node_id: str, *, transporter: Transporter | None = None, **options: Any
    ) -> Node:
        """A node that is connected."""
        node = self.make(node_id, transporter=transporter, **options)
        async with asyncio.timeout(DEADLINE_S):
            await node.transporter.connect()
        return node

    async def join_all(self, node_ids: Iterable[str], **options: Any) -> list[Node]:
        return [await self.join(node_id, **options) for node_id in node_ids]

    async def close(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            for node in self._all:
                await node.transporter.disconnect()


@asynccontextmanager
async def nodes_of(wiring: Wiring) -> AsyncIterator[Nodes]:
    """Nodes that are disconnected at the end."""
    nodes = Nodes(wiring)
    try:
        yield nodes
    finally:
        await nodes.close()


def with_user(url: str, user: str) -> str:
    """The URL of a server with credentials in it."""
    return url.replace("://", f"://{user}@")


class TlsFiles:
    """An authority, and a certificate with its key in one file, for either side."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self.both = directory / "both.pem"
        authority.cert_pem.write_to_path(self.ca)
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(self.both)

    def context(self, *, mutual: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if mutual:
            context.load_cert_chain(self.both)
        return context


Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def posing(scheme: str, conversation: Conversation) -> AsyncIterator[str]:
    """The URL of somebody who poses as a server."""

    async def talk_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await conversation(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(talk_and_close, "127.0.0.1", 0)
    async with server:
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def saying(data: bytes) -> Conversation:
    """Say something at once, and hear the other out."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await reader.read()

    return say


def numbered(number: int) -> list[bytes]:
    """Packets to send."""
    return [b"packet %d" % index for index in range(number)]


async def until_shared(number: int, kind: Kind, *nodes: Node) -> list[bytes]:
    """Return when these nodes have so many packets of a kind together, with what they are."""

    def came() -> list[bytes]:
        return [data for node in nodes for data in node.data_of(kind)]

    await eventually(lambda: len(came()) >= number, f"{number} packets came", DEADLINE_S)
    return came()
