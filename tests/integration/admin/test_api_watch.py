"""Live changes: what watchers are sent, how often it is asked for, and how it ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from postroad.admin.client import Client
from postroad.admin.errors import Forbidden, NotFound
from postroad.core.errors import ConnectionClosedError
from tests.support.admin.nodes import TOKEN, Served, connect, hang_up, served
from tests.support.deadlines import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("alpha")) as found:
        await found.node.queues.declare("orders")
        yield found


class Stream:
    """What a watcher reads."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def block(self) -> str:
        """Everything up to the next empty line; chunk sizes are left out."""
        lines = []
        while line := (await self._reader.readline()).decode().rstrip("\r\n"):
            lines.append(line)
        return "\n".join(lines)

    async def next_event(self) -> tuple[str, Any]:
        while True:
            lines = (await self.block()).splitlines()
            event = [it[7:] for it in lines if it.startswith("event: ")]
            data = [it[6:] for it in lines if it.startswith("data: ")]
            if event:
                return event[0], json.loads(data[0])

    async def until(self, name: str, is_it: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(10.0):
            while True:
                event, data = await self.next_event()
                if event == name and is_it(data):
                    return data

    async def read_to_end(self) -> bytes:
        async with asyncio.timeout(10.0):
            return await self._reader.read()


@asynccontextmanager
async def watching(node: Served, query: str) -> AsyncIterator[Stream]:
    reader, writer = await connect(node.admin.url)
    writer.write(
        f"GET /api/v1/watch?{query} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    )
    stream = Stream(reader)
    head = await stream.block()
    assert "200 OK" in head
    assert "text/event-stream" in head
    assert "postroad-role: change" in head
    try:
        yield stream
    finally:
        await hang_up(writer)


def watch_of(node: Served) -> Any:
    found = node.admin.watch
    assert found is not None
    return found


async def test_first_at_once_then_each_change(node: Served) -> None:
    async with watching(node, "operation=queue.show&queue.show.queue=orders") as stream:
        first = await stream.until("queue.show", lambda it: True)
        assert first["depth"] == 0
        await node.node.queues.send("orders", b"apples", to="alpha")
        assert await stream.until("queue.show", lambda it: it["depth"] == 1)


async def test_several_operations_in_one_stream(node: Served) -> None:
    query = "operation=queue.ls&operation=queue.show&queue.show.queue=orders"
    async with watching(node, query) as stream:
        names = {(await stream.next_event())[0], (await stream.next_event())[0]}
        assert names == {"queue.ls", "queue.show"}


async def test_a_problem_is_told_and_does_not_end_the_stream(node: Served) -> None:
    async with watching(node, "operation=queue.show&queue.show.queue=late") as stream:
        problem = await stream.until("problem", lambda it: True)
        assert (problem["operation"], problem["status"]) == ("queue.show", 404)
        await node.node.queues.declare("late")
        assert await stream.until("queue.show", lambda it: it["name"] == "late")


async def test_the_same_is_asked_for_once_and_only_while_somebody_watches(node: Served) -> None:
    watch = watch_of(node)
    await eventually(lambda: watch.polled == 0, "nobody watches")
    async with (
        watching(node, "operation=queue.ls") as one,
        watching(node, "operation=queue.ls") as other,
        watching(node, "operation=queue.show&queue.show.queue=orders") as third,
    ):
        for stream in (one, other, third):
            await stream.next_event()
        assert (watch.watchers, watch.polled) == (3, 2)
    await eventually(lambda: (watch.watchers, watch.polled) == (0, 0), "all have left")


async def test_a_hundred_watchers_are_told_the_same(node: Served) -> None:
    watch = watch_of(node)
    async with asyncio.TaskGroup() as group:

        async def watch_until_changed() -> None:
            async with watching(node, "operation=queue.show&queue.show.queue=many") as stream:
                await stream.until("queue.show", lambda it: it["depth"] == 3)

        await node.node.queues.declare("many")
        tasks = [group.create_task(watch_until_changed()) for _ in range(100)]
        await eventually(lambda: watch.watchers == 100, "all watch")
        assert watch.polled == 1
        for _ in range(3):
            await node.node.queues.send("many", b"pears", to="alpha")
    assert all(it.done() for it in tasks)


async def test_a_watcher_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    async with served(tmp_path, admin={"request_timeout_s": 0.5}) as node:
        for _ in range(600):
            await node.node.queues.send("large", b"x" * 16_000, to="alpha")
        _reader, writer = await connect(node.admin.url)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(
            b"GET /api/v1/watch?operation=queue.peek&queue.peek.queue=large&queue.peek.limit=1000"
            b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
        )
        watch = watch_of(node)
        try:
            await eventually(lambda: watch.watchers == 1, "it watches")
            await eventually(lambda: watch.watchers == 0, "it is dropped", 20.0)
        finally:
            await hang_up(writer)


async def test_stop_ends_streams(tmp_path: Path) -> None:
    async with served(tmp_path) as node, watching(node, "operation=queue.ls") as stream:
        await stream.next_event()
        ending = asyncio.create_task(node.admin.stop())
        assert (await stream.read_to_end()).endswith(b"0\r\n\r\n")
        await ending


async def test_client_watches(node: Served) -> None:
    changes = node.client.watch([("queue.show", {"queue": "orders"}), ("queue.ls", {})])
    found = dict([await asyncio.to_thread(next, changes), await asyncio.to_thread(next, changes)])
    assert found["queue.show"]["name"] == "orders"
    assert {it["name"] for it in found["queue.ls"]} >= {"orders"}
    changes.close()


async def test_client_is_told_what_is_wrong(node: Served) -> None:
    with pytest.raises(NotFound):
        await asyncio.to_thread(next, node.client.watch([("queue.show", {"queue": "none"})]))
    with pytest.raises(Forbidden):
        await asyncio.to_thread(next, Client(node.admin.url).watch([("queue.ls", {})]))


async def test_client_learns_of_the_end(tmp_path: Path) -> None:
    async with served(tmp_path) as node:
        changes = node.client.watch([("queue.show", {"queue": "services.events"})])
        assert await asyncio.to_thread(next, changes)
        ending = asyncio.create_task(node.admin.stop())
        with pytest.raises(ConnectionClosedError):
            await asyncio.to_thread(lambda: [*changes])
        await ending
