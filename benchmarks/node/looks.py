"""Requests to a node, with nobody looking at it and with a dashboard open."""

from __future__ import annotations

import asyncio
from functools import partial
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING

import msgspec

from benchmarks.children import running
from benchmarks.harness import Comparison, Contender, Section
from benchmarks.messaging.processes import run
from postroad.admin.client import Client
from postroad.admin.serving import AdminServer
from postroad.net import MessagingService, RawMessage
from postroad.node import App, Node, NodeConfig

if TYPE_CHECKING:
    from benchmarks.children import Announce
    from benchmarks.harness import Settings

GOAL = 0.97
IN_FLIGHT = 64
PAYLOAD = bytes(100)
CLUSTER = "benchmark"
# What the first page of the dashboard watches, and the map besides.
WATCHED = ("node.overview", "cluster.ls", "queue.ls", "cluster.map")

BARE, WATCHED_NODE = "without the admin API", "with a dashboard open"


def section(settings: Settings) -> Section:
    """The same node and the same load, twice."""
    case = f"requests to a node, {IN_FLIGHT} in flight, {WATCHED_NODE}"
    return Section(
        "what being looked at costs",
        "requests/s",
        [
            Contender(BARE, partial(_measure, settings, is_watched=False)),
            Contender(WATCHED_NODE, partial(_measure, settings, is_watched=True)),
        ],
        [Comparison(case, WATCHED_NODE, BARE, GOAL)],
    )


def _measure(settings: Settings, *, is_watched: bool) -> float:
    with (
        TemporaryDirectory(dir=settings.scratch) as data,
        running(serve, data, settings.loop, is_watched) as node,
    ):
        address, url, token = node.receive()
        if not is_watched:
            return _load(address, settings)
        with running(watch, url, token) as watcher:
            watcher.receive()
            return _load(address, settings)


def _load(address: str, settings: Settings) -> float:
    with running(load, address, settings.loop, settings.warmup_s, settings.seconds) as caller:
        rate: float = caller.receive()
        return rate


def serve(announce: Announce, data: str, loop: str, is_watched: bool) -> None:
    """Be the node."""
    run(_serve(announce, data, is_watched), loop)


async def _serve(announce: Announce, data: str, is_watched: bool) -> None:
    said = {
        "node": {"name": "alpha", "cluster": CLUSTER, "data": data},
        "admin": {"bind": "127.0.0.1:0"},
    }
    async with Node(msgspec.convert(said, NodeConfig), App()) as node:
        node.service.serve("echo", _echo)
        address = str(node.service.address)
        if not is_watched:
            announce((address, "", ""))
            await asyncio.Event().wait()
        async with AdminServer(node) as admin:
            announce((address, admin.url, admin.token))
            await asyncio.Event().wait()


def _echo(message: RawMessage) -> bytes:
    return message.payload


def watch(announce: Announce, url: str, token: str) -> None:
    """Be what a browser does."""
    with Client(url, token) as client:
        for number, _ in enumerate(client.watch([(it, {}) for it in WATCHED])):
            if number == 0:
                announce(None)


def load(announce: Announce, address: str, loop: str, warmup_s: float, seconds: float) -> None:
    """Be the one who asks."""
    run(_ask(announce, address, warmup_s, seconds), loop)


async def _ask(announce: Announce, address: str, warmup_s: float, seconds: float) -> None:
    async with MessagingService(CLUSTER, "beta") as service:
        began_s = monotonic() + warmup_s
        ends_s = began_s + seconds
        counts = await asyncio.gather(
            *(_ask_repeatedly(service, address, began_s, ends_s) for _ in range(IN_FLIGHT))
        )
    announce(sum(counts) / seconds)


async def _ask_repeatedly(
    service: MessagingService, address: str, began_s: float, ends_s: float
) -> int:
    count = 0
    while (now_s := monotonic()) < ends_s:
        await service.request(address, "echo", PAYLOAD)
        count += now_s >= began_s
    return count
