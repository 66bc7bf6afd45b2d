"""How fast nodes are on this machine: one measures, another one in a second process answers."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from postroad._version import __version__
from postroad.core.errors import ConfigError, ConnectError
from postroad.durable import Message, Transaction
from postroad.net import run
from postroad.node import App, Consuming, Node, NodeConfig
from postroad.node.settings import ClusterSettings, NodeSettings
from postroad.services import Context, Service, action

_CLUSTER = "bench"
_ASKING, _ANSWERING = "asking", "answering"
_SUBJECT, _QUEUE = "bench.echo", "bench"
_START_S = 30.0

Once = Callable[[], Awaitable[object]]


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """How one way of sending did."""

    name: str
    at_once: int
    """How many were on their way at the same time."""
    count: int
    rate_per_s: float
    p50_ms: float
    p99_ms: float


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured."""

    system: str
    processor: str
    cores: int
    load: float
    python: str
    postroad: str

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        return cls(
            system=f"{platform.system()} {platform.release()}",
            processor=platform.machine(),
            cores=os.cpu_count() or 1,
            load=os.getloadavg()[0],
            python=platform.python_version(),
            postroad=__version__,
        )


class Echo(Service):
    """Answers what it is asked."""

    name = "bench"

    @action
    async def echo(self, ctx: Context, text: str) -> str:
        """The same text."""
        return text


def _config(name: str, data: Path, seeds: tuple[str, ...] = ()) -> NodeConfig:
    return NodeConfig(
        node=NodeSettings(cluster=_CLUSTER, name=name, data=str(data)),
        cluster=ClusterSettings(seeds=seeds),
    )


async def answer(data: Path) -> None:
    """Be the node in the second process, until the first one goes away."""

    async def take(message: Message, tx: Transaction) -> None:
        tx.send(_QUEUE, message.body, to=_ASKING)

    app = App(services=[Echo()], consumers=[Consuming(queue=_QUEUE, handler=take, concurrency=32)])
    async with Node(_config(_ANSWERING, data), app) as node:
        node.service.serve(_SUBJECT, lambda message: message.payload)
        sys.stdout.write(f"{node.service.address}\n")
        sys.stdout.flush()
        # It ends when the process that started it has.
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def _second_process(data: Path) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-m", __name__, str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise ConnectError("the second process of the benchmark did not start")
            yield address
        finally:
            process.stdin.close()
            process.wait(timeout=_START_S)


async def measure(
    ways: list[str], *, seconds: float, size: int, at_once: int, on_done: Callable[[Speed], None]
) -> list[Speed]:
    """Send in each way as fast as it goes, alone and many at once.

    Args:
        ways: some of `WAYS`.
        seconds: for each measurement.
        size: bytes of a message.
        on_done: told each result as it is known.
    """
    unknown = [it for it in ways if it not in WAYS]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is no way of sending: choose of {', '.join(WAYS)}")
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as directory:
        data = Path(directory)
        with _second_process(data / _ANSWERING) as address:
            async with Node(_config(_ASKING, data / _ASKING, (address,)), App()) as node:
                await node.broker.wait_for_services([Echo.name], timeout_s=_START_S)
                results = []
                for way in ways:
                    once = await WAYS[way](node, address, b"x" * size)
                    for number in dict.fromkeys((1, at_once)):
                        results.append(await _repeat(way, once, number, seconds))
                        on_done(results[-1])
                return results


async def _request(node: Node, address: str, payload: bytes) -> Once:
    return lambda: node.service.request(address, _SUBJECT, payload)


async def _call(node: Node, address: str, payload: bytes) -> Once:
    params = {"text": payload.decode()}
    return lambda: node.broker.call(f"{Echo.name}.echo", params)


async def _mail(node: Node, address: str, payload: bytes) -> Once:
    waiting: dict[bytes, asyncio.Future[None]] = {}
    numbers = iter(range(1 << 62))

    async def take(message: Message, tx: Transaction) -> None:
        arrived = waiting.pop(message.body[:8], None)
        if arrived is not None and not arrived.done():
            arrived.set_result(None)

    await node.queues.consume(_QUEUE, take, concurrency=32)

    async def once() -> None:
        key = next(numbers).to_bytes(8)
        arrived = waiting[key] = asyncio.get_running_loop().create_future()
        await node.queues.send(_QUEUE, key + payload, to=_ANSWERING)
        await arrived

    return once


WAYS: dict[str, Callable[[Node, str, bytes], Awaitable[Once]]] = {
    "request": _request,
    "call": _call,
    "mail": _mail,
}
"""Ways of sending: requests to a node, calls of an action, durable messages there and back."""


async def _repeat(name: str, once: Once, at_once: int, seconds: float) -> Speed:
    times: list[float] = []
    await once()
    started = time.perf_counter()

    async def work() -> None:
        begun = time.perf_counter()
        while begun < started + seconds:
            await once()
            now = time.perf_counter()
            times.append(now - begun)
            begun = now

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    elapsed_s = time.perf_counter() - started
    times.sort()
    return Speed(
        name=name,
        at_once=at_once,
        count=len(times),
        rate_per_s=len(times) / elapsed_s,
        p50_ms=times[len(times) // 2] * 1000,
        p99_ms=times[min(len(times) - 1, len(times) * 99 // 100)] * 1000,
    )


if __name__ == "__main__":
    run(answer(Path(sys.argv[1])))
