"""Clients that are slow, many or large take nothing from the node: messages go on meanwhile."""

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from tests.support.admin.nodes import TOKEN, Served, connect, hang_up, served
from tests.support.deadlines import DEADLINE_S
from tests.support.tiers import by_tier

logger = logging.getLogger(__name__)

MEGABYTE = 1024 * 1024
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Traffic:
    """Requests of the node to itself, over a socket as others would."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def __str__(self) -> str:
        times = sorted(self.times_s)
        share = [times[int(len(times) * it)] * 1000 for it in (0.5, 0.99)]
        return f"{len(times)} requests, p50 {share[0]:.2f} ms, p99 {share[1]:.2f} ms"


@asynccontextmanager
async def traffic(node: Served, other: Served) -> AsyncIterator[Traffic]:
    """Send requests all the time; one that fails fails the test."""
    counted = Traffic()
    node.node.service.serve("echo", lambda message: message.payload)
    is_over = False

    async def run() -> None:
        while not is_over:
            begun = time.perf_counter()
            reply = await other.node.service.request(
                node.node.service.address, "echo", b"hello", timeout=20.0
            )
            assert reply == b"hello"
            counted.times_s.append(time.perf_counter() - begun)
            await asyncio.sleep(0.001)

    async with asyncio.TaskGroup() as group:
        group.create_task(run())
        yield counted
        is_over = True
    assert counted.times_s


@asynccontextmanager
async def pair(directory: Path, **admin: object) -> AsyncIterator[tuple[Served, Served]]:
    async with (
        served(directory, admin=admin) as node,
        served(directory, "beta", cluster={"seeds": [str(node.node.service.address)]}) as other,
    ):
        yield node, other


async def test_many_slow_clients_take_nothing_from_others(tmp_path: Path) -> None:
    async with pair(tmp_path, request_timeout_s=3.0) as (node, other), traffic(node, other) as went:
        heads = [
            b"",
            b"GET /api/v1/queue/ls HTT",
            b"GET /api/v1/queue/ls HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
            b"POST /api/v1/queue/pause HTTP/1.1\r\nHost: localhost\r\n"
            b"Authorization: Bearer " + TOKEN.encode() + b"\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{",
            b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx",
        ]
        clients = []
        for number in range(by_tier(test=200, nightly=500)):
            clients.append(await connect(node.admin.url))
            clients[-1][1].write(heads[number % len(heads)])
        # Others are served meanwhile.
        assert (await node.ask("/api/v1/queue/ls")).status == 200
        async with asyncio.timeout(DEADLINE_S):
            answers = [await _rest(reader) for reader, _ in clients]
        for number, answer in enumerate(answers):
            kind = number % len(heads)
            if kind == 0:
                assert answer == b""
            elif kind == 4:
                assert answer.startswith(b"HTTP/1.1 200 OK")
            else:
                assert answer.startswith(b"HTTP/1.1 408 Request Timeout")
                assert b"did not arrive within 3 s" in answer
        for _, writer in clients:
            await hang_up(writer)
    logger.info("messages meanwhile: %s", went)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_a_client_that_sends_byte_by_byte(tmp_path: Path) -> None:
    async with served(tmp_path, admin={"request_timeout_s": 0.5}) as node:
        reader, writer = await connect(node.admin.url)
        answer = asyncio.create_task(_rest(reader))
        async with asyncio.timeout(DEADLINE_S):
            while not answer.done():
                writer.write(b"GET / HTTP/1.1\r\n" if not writer.is_closing() else b"")
                writer.write(b"X: 1\r\n")
                await asyncio.wait({answer}, timeout=0.05)
        await hang_up(writer)


@pytest.mark.parametrize("has_length", [True, False])
async def test_a_body_of_100_megabytes(tmp_path: Path, has_length: bool) -> None:
    async with pair(tmp_path) as (node, other), traffic(node, other) as went:
        reader, writer = await connect(node.admin.url)
        length = f"Content-Length: {100 * MEGABYTE}" if has_length else "Transfer-Encoding: chunked"
        writer.write(
            f"POST /api/v1/queue/pause HTTP/1.1\r\nHost: localhost\r\n{length}\r\n"
            f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n\r\n".encode()
        )
        answering = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        sent = await _send_until_answered(writer, answering, has_length)
        assert (await answering).startswith(b"HTTP/1.1 413 ")
        # Refused early: not after all of it.
        assert sent < 100 * MEGABYTE
        await hang_up(writer)
    logger.info("messages meanwhile: %s", went)


async def _send_until_answered(
    writer: asyncio.StreamWriter, answering: asyncio.Task[bytes], has_length: bool
) -> int:
    part = b" " * 65_536
    chunk = part if has_length else b"%x\r\n%b\r\n" % (len(part), part)
    sent = 0
    while not answering.done() and sent < 100 * MEGABYTE:
        try:
            writer.write(chunk)
            await writer.drain()
        except ConnectionError:
            break
        sent += len(part)
        await asyncio.sleep(0)
    return sent


BEARER = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
IDLERS = {
    "says nothing": b"",
    "begins a request": b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "keeps the connection": b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "begins a body": b"POST /api/v1/queue/pause HTTP/1.1\r\nHost: localhost\r\n" + BEARER
    + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
    "does not read": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2_000,
}  # fmt: skip
PLACES = 20


@asynccontextmanager
async def idling(node: Served, count: int, head: bytes) -> AsyncIterator[list[Client]]:
    """Connections of clients that keep the node waiting."""
    clients: list[Client] = []
    try:
        for _ in range(count):
            reader, writer = await connect(node.admin.url)
            clients.append((reader, writer))
            if head.count(b"\r\n\r\n") > 1:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(head)
            await asyncio.sleep(0)
        yield clients
    finally:
        for _, writer in clients:
            await hang_up(writer)


@pytest.mark.parametrize("what", IDLERS)
async def test_probes_are_served_while_more_connections_idle_than_there_are_places(
    tmp_path: Path, what: str
) -> None:
    settings = {"clients_max": PLACES, "request_timeout_s": 600.0}
    count = PLACES * by_tier(test=3, nightly=500)
    async with (
        served(tmp_path, admin=settings) as node,
        idling(node, count, IDLERS[what]) as clients,
    ):
        for path in ("/livez", "/readyz", "/api/v1/queue/ls"):
            assert (await node.ask(path)).status == 200, path
        assert node.admin.connections <= PLACES
        # Who came first made room.
        clients[0][1].transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(DEADLINE_S):
            await _rest(clients[0][0])


async def test_probes_are_served_while_more_handshakes_of_tls_idle_than_there_are_places(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = {"certificate": str(tmp_path / "a.pem"), "key": str(tmp_path / "a.key")}
    issued.cert_chain_pems[0].write_to_path(files["certificate"])
    issued.private_key_pem.write_to_path(files["key"])
    context = ssl.create_default_context()
    authority.configure_trust(context)
    settings = {"clients_max": PLACES, "request_timeout_s": 600.0, **files}
    async with served(tmp_path, admin=settings) as node, idling(node, PLACES * 3, b""):
        for path in ("/livez", "/readyz"):
            assert (await node.ask(path, context=context)).status == 200
        assert node.admin.connections <= PLACES


async def test_clients_that_wait_for_the_node_are_not_closed_for_others(tmp_path: Path) -> None:
    async with served(tmp_path, admin={"clients_max": PLACES}) as node:
        changes = node.client.watch([("queue.ls", {})])
        assert (await asyncio.to_thread(next, changes))[0] == "queue.ls"
        async with idling(node, PLACES * 2, b""):
            await node.node.queues.declare("bills")
            assert (await asyncio.to_thread(next, changes))[1][0]["name"] == "bills"
        changes.close()


async def test_watchers_leave_places_to_others(tmp_path: Path) -> None:
    watch = b"GET /api/v1/watch?operation=queue.ls HTTP/1.1\r\nHost: localhost\r\n"
    async with (
        served(tmp_path, admin={"clients_max": PLACES}) as node,
        idling(node, PLACES + 5, watch + BEARER + b"\r\n") as clients,
    ):
        async with asyncio.timeout(DEADLINE_S):
            heads = [await _head(reader) for reader, _ in clients]
        assert heads[: PLACES - 2] == ["HTTP/1.1 200 OK"] * (PLACES - 2)
        # Those above made room for each other.
        assert {*heads[PLACES - 2 :]} <= {"HTTP/1.1 503 Service Unavailable", ""}
        assert (await node.ask("/livez")).status == 200


async def test_connections_above_the_limit_close_the_longest_idle_one(tmp_path: Path) -> None:
    async with (
        served(tmp_path, admin={"clients_max": 5}) as node,
        idling(node, 5, IDLERS["keeps the connection"]) as clients,
    ):
        for reader, _ in clients:
            assert (await reader.readuntil(b"alive\n")).startswith(b"HTTP/1.1 200")
        assert (await node.ask("/livez")).status == 200
        async with asyncio.timeout(DEADLINE_S):
            assert await _rest(clients[0][0]) == b""
        # The others are as they were.
        for reader, writer in clients[1:]:
            writer.write(IDLERS["keeps the connection"])
            assert (await reader.readuntil(b"alive\n")).startswith(b"HTTP/1.1 200")
        assert node.admin.connections == 4


async def _head(reader: asyncio.StreamReader) -> str:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return ""
    return head.decode().partition("\r\n")[0]


async def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    async with served(tmp_path, admin={"request_timeout_s": 0.5}) as node:
        _reader, writer = await connect(node.admin.url)
        # More answers than buffers hold, of which none is read.
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        try:
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(ConnectionError):
                    while True:
                        writer.write(request * 100)
                        await writer.drain()
                        await asyncio.sleep(0.01)
        finally:
            await hang_up(writer)
        assert (await node.ask("/livez")).status == 200


async def test_pipelined_requests_are_all_answered(tmp_path: Path) -> None:
    async with served(tmp_path, admin={"request_timeout_s": 5.0}) as node:
        reader, writer = await connect(node.admin.url)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            answers = await reader.read()
        assert answers.count(b"HTTP/1.1 200 OK") == 51
        await hang_up(writer)


NO_HTTP = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /api/v1/queue/ls HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    # Where a proxy may see another end of the request than we do.
    b"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Length: 0\r\n\r\n0\r\n\r\n",
    b"GET /livez HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"\0" * 1000,
)


async def test_what_is_no_http_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path, admin={"request_timeout_s": 1.0}) as node:
        for data in NO_HTTP:
            reader, writer = await connect(node.admin.url)
            writer.write(data)
            try:
                async with asyncio.timeout(DEADLINE_S):
                    answer = await _rest(reader)
            finally:
                await hang_up(writer)
            assert not answer or answer.startswith(b"HTTP/1.1 4"), data[:80]
            # Of one that is reset, while more of it is sent, nothing is read.
            assert not answer or b"application/problem+json" in answer, data[:80]
            warnings = [it for it in caplog.records if it.levelno >= logging.WARNING]
            assert warnings == [], data[:80]
            assert (await node.ask("/livez")).status == 200, data[:80]
