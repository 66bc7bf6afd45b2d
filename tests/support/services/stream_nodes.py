"""Brokers with a service for streams, and peers whose packets a test writes itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, TypeVar

from postroad.services.broker import Broker
from postroad.services.context import Context
from postroad.services.incoming_stream import IncomingStream
from postroad.services.info_form import write_info
from postroad.services.kinds import VERSION, Kind
from postroad.services.packet_form import from_wire
from postroad.services.packets import Packet, Request, Response, StreamProgress
from postroad.services.schema import ActionInfo, ClientInfo, NodeInfo, ServiceInfo
from postroad.services.serializers import make_serializer
from postroad.services.service import Service, action
from postroad.services.stream_sources import Objects
from postroad.services.topics import Topics
from postroad.services.transporters import MemoryHub, MemoryTransporter
from tests.support.deadlines import DEADLINE_S, eventually

P = TypeVar("P", Request, Response, StreamProgress)

KIB = 1_024


class Tape:
    """A stream that remembers how far it was read, and whether it was closed."""

    def __init__(
        self, chunks: int, chunk: Any = bytes(16 * KIB), error: Exception | None = None
    ) -> None:
        self._chunks = chunks
        self._chunk = chunk
        self._error = error
        self.given = 0
        self.is_closed = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def play(self) -> AsyncGenerator[Any]:
        """The chunks, then the error if there is one; waits at the gate before each."""
        try:
            for _ in range(self._chunks):
                await self.gate.wait()
                self.given += 1
                yield self._chunk
            if self._error is not None:
                raise self._error
        finally:
            self.is_closed = True

    async def until_closed(self) -> None:
        await eventually(lambda: self.is_closed, "the stream is closed", DEADLINE_S)


class Files(Service):
    """Reads and gives streams."""

    name = "files"

    def __init__(self) -> None:
        self.tape = Tape(0)
        self.seen: list[Any] = []
        self.failure: BaseException | None = None
        self.gate = asyncio.Event()

    @action
    async def put(self, ctx: Context) -> Any:
        """All chunks together, with what else came."""
        assert ctx.stream is not None
        try:
            async for chunk in ctx.stream:
                self.seen.append(chunk)
        except BaseException as error:
            self.failure = error
            raise
        return {"chunks": len(self.seen), "params": ctx.params, "meta": ctx.meta}

    @action
    async def get(self, ctx: Context) -> AsyncIterator[Any]:
        """The tape."""
        ctx.meta["told"] = "by files"
        async with aclosing(self.tape.play()) as chunks:
            async for chunk in chunks:
                yield chunk

    @action
    async def play(self, ctx: Context) -> AsyncIterable[Any]:
        """The same, from an action that waits first."""
        ctx.meta["told"] = "by files"
        if ctx.params.get("waits"):
            await self.gate.wait()
        return Objects(self.tape.play()) if ctx.params.get("objects") else self.tape.play()

    @action
    async def echo(self, ctx: Context) -> Any:
        """What comes, as it comes."""
        return ctx.stream

    @action
    async def ignore(self, ctx: Context) -> bool:
        """Leaves the stream alone."""
        return ctx.stream is not None

    @action
    async def hold(self, ctx: Context) -> int:
        """Reads one chunk, waits for the gate, and reads the rest."""
        assert ctx.stream is not None
        self.seen.append(await anext(ctx.stream))
        await self.gate.wait()
        async for chunk in ctx.stream:
            self.seen.append(chunk)
        return len(self.seen)

    @action
    async def refuse(self, ctx: Context) -> None:
        raise ValueError("not this one")


class Pair:
    """Two nodes, one of which has the files."""

    def __init__(self, hub: MemoryHub, near: Broker, far: Broker, files: Files) -> None:
        self.hub = hub
        self.near = near
        self.far = far
        self.files = files

    def caller(self, where: str) -> Broker:
        """The node to call from: `local` has the files itself."""
        return self.far if where == "local" else self.near

    def streams_of(self, broker: Broker) -> tuple[int, int]:
        """How many come in, and go out."""
        told = broker.statistics()
        return told["streamsIn"], told["streamsOut"]

    def bytes_waiting(self, broker: Broker) -> int:
        engine = broker._engine
        assert engine is not None
        assert engine.network is not None
        return engine.network.streaming.incoming.bytes_waiting

    async def until_idle(self) -> None:
        """Return when no stream is left anywhere."""

        def is_idle() -> bool:
            return all(
                self.streams_of(it) == (0, 0)
                and self.bytes_waiting(it) == 0
                and it.statistics()["pending"] == 0
                for it in (self.near, self.far)
            )

        await eventually(is_idle, "all streams are over", DEADLINE_S)


def make_broker(node_id: str, hub: MemoryHub, **settings: Any) -> Broker:
    quick: dict[str, Any] = {
        "start_wait_s": 0.02,
        "announce_delay_s": 0.0,
        "stop_delay_s": 0.0,
        "stop_timeout_s": 0.5,
    }
    return Broker(node_id, transporter=MemoryTransporter(hub), **{**quick, **settings})


@asynccontextmanager
async def pair_of(
    *, hub: MemoryHub | None = None, far: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Pair]:
    """Two nodes with the same settings; `far` are those of the node with the files."""
    hub = hub or MemoryHub()
    caller = make_broker("near", hub, **settings)
    owner = make_broker("far", hub, **{**settings, **(far or {})})
    files = Files()
    owner.add(files)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(caller)
        await stack.enter_async_context(owner)
        await caller.wait_for_services("files", timeout_s=DEADLINE_S)
        yield Pair(hub, caller, owner, files)


class RawPeer:
    """A node whose packets a test writes and reads; it offers the action `raw.run`."""

    def __init__(self, hub: MemoryHub, node_id: str, client: str) -> None:
        self.node_id = node_id
        self.packets: list[Packet] = []
        self._client = client
        self._serializer = make_serializer("JSON")
        self._transporter = MemoryTransporter(hub)
        self._transporter.bind(Topics(node_id), self)

    async def join(self, broker: Broker) -> None:
        """Connect, and tell a broker of the node."""
        await self._transporter.connect()
        self._introduce("first", broker.node_id)
        await broker.wait_for_services("raw", timeout_s=DEADLINE_S)

    def restart(self, node_id: str) -> None:
        """Tell a node of a new life."""
        self._introduce("second", node_id)

    def _introduce(self, instance_id: str, node_id: str) -> None:
        offered = ServiceInfo(
            name="raw", full_name="raw", actions=(ActionInfo(name="raw.run", raw_name="run"),)
        )
        body = write_info(
            NodeInfo(
                instance_id=instance_id,
                seq=1,
                services=(offered,),
                client=ClientInfo(type=self._client),
            )
        )
        names = {"ver": VERSION, "sender": self.node_id}
        self.send(from_wire(Kind.INFO, {**body, **names}), node_id)

    async def leave(self) -> None:
        await self._transporter.disconnect()

    def send(self, packet: Packet, node_id: str) -> None:
        self._transporter.publish(packet.KIND, node_id, self._serializer.serialize(packet))

    def of(self, kind: type[P]) -> list[P]:
        """What came, of a kind."""
        return [it for it in self.packets if isinstance(it, kind)]

    async def until(self, kind: type[P], is_wanted: Callable[[P], object] = bool) -> P:
        """The first packet of a kind that is wanted, once it has come."""

        def wanted() -> list[P]:
            return [it for it in self.of(kind) if is_wanted(it)]

        await eventually(wanted, f"{self.node_id} got a {kind.__name__}", DEADLINE_S)
        return wanted()[0]

    # As the transporter's listener.

    def received(
        self,
        kind: Kind,
        data: bytes,
        done: Callable[[], None] | None = None,
        sender: str | None = None,
    ) -> None:
        self.packets.append(self._serializer.deserialize(kind, data))

    def connected(self, *, is_again: bool) -> None:
        assert not is_again

    def disconnected(self, reason: str) -> None:
        raise AssertionError(reason)

    def node_lost(self, node_id: str, *, is_unexpected: bool) -> None:
        raise AssertionError(node_id)


@asynccontextmanager
async def raw_peer_of(
    pair: Pair, broker: Broker, *, client: str = "nodejs", node_id: str = "raw"
) -> AsyncIterator[RawPeer]:
    """A node of the original system, or of this package if `client` says so."""
    peer = RawPeer(pair.hub, node_id, client)
    await peer.join(broker)
    try:
        yield peer
    finally:
        await peer.leave()


async def chunks_of(stream: AsyncIterable[Any]) -> list[Any]:
    return [chunk async for chunk in stream]


async def joined(stream: IncomingStream) -> bytes:
    return b"".join(await chunks_of(stream))


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    """Some bytes, piece by piece."""
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


async def values(*items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item
