"""Anything that has a name or an id, found by it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

import msgspec

from postroad.admin.jobs import jobs_of
from postroad.core.errors import PostroadError
from postroad.durable import DeadLetter
from postroad.node import Layer, Node
from postroad.node.tracing import SpanRecord

from .cluster import members_of
from .limits import Limit
from .office import Office
from .queues import to_number
from .services import list_actions, list_services
from .table import operation


class HitView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was found."""

    kind: str
    """As in `queue`, `message`, `dead letter`, `flow`."""
    id: str
    title: str
    noun: str
    """What shows more of it."""
    within: str | None = None
    """Of a message: the queue it waits in."""


@operation("search.find")
async def find(office: Office, text: str, limit: Limit = 50) -> list[HitView]:
    """Whatever is called like that, or has that id: the names that begin so come first."""
    wanted = text.strip().lower()
    if not wanted:
        return []
    hits: dict[tuple[str, str], HitView] = {}
    async for it in _everything(office, text.strip()):
        if wanted in it.id.lower() or wanted in it.title.lower():
            hits.setdefault((it.kind, it.id), it)
    ranked = sorted(hits.values(), key=lambda it: _rank(it, wanted))
    return ranked[:limit]


def _rank(hit: HitView, wanted: str) -> tuple[int, str, str]:
    id = hit.id.lower()
    place = 0 if id == wanted else 1 if id.startswith(wanted) else 2
    return place, hit.kind, hit.id


def _hits(kind: str, noun: str, named: Iterable[tuple[str, str]]) -> Iterator[HitView]:
    for id, title in named:
        yield HitView(kind=kind, id=id, title=title, noun=noun)


async def _everything(office: Office, text: str) -> AsyncIterator[HitView]:
    if office.is_running:
        async for it in _of_node(office, office.node, text):
            yield it
    if not office.is_running or office.node.config.has(Layer.QUEUES):
        async for it in _of_mail(office, text):
            yield it
    if not office.is_running or office.node.config.has(Layer.FLOWS):
        async for it in _of_flows(office, text):
            yield it


def _traces(spans: list[SpanRecord]) -> Iterator[HitView]:
    if spans:
        title = f"{spans[0].name}, and {len(spans) - 1} more spans"
        yield HitView(kind="trace", id=spans[0].trace_id, title=title, noun="trace")


async def _of_node(office: Office, node: Node, text: str) -> AsyncIterator[HitView]:
    members = ((it.name, f"{it.name} at {it.address}") for it in members_of(node))
    for it in _hits("node", "cluster", members):
        yield it
    if node.config.has(Layer.CELLS):
        domain = node.domain
        cells = ((f"{it}@{domain.name}", f"cell {it}") for it in domain.cells)
        for it in _hits("cell", "cells", cells):
            yield it
    if node.config.has(Layer.SERVICES):
        services = [(it.name, f"at {', '.join(it.nodes)}") for it in await list_services(office)]
        for it in _hits("service", "service", services):
            yield it
        actions = [(it.name, it.description) for it in await list_actions(office)]
        for it in _hits("action", "service", actions):
            yield it
    if node.config.has(Layer.FLOWS):
        for it in _hits(
            "flow definition", "flow", ((definition.name, "") for definition in node.flows.registry)
        ):
            yield it
    if node.recorder is not None:
        for it in _traces(node.recorder.spans(text)):
            yield it
    jobs = [(it.name, it.path) for it in await jobs_of(node)]
    for it in _hits("job", "job", jobs):
        yield it


async def _of_mail(office: Office, text: str) -> AsyncIterator[HitView]:
    statistics = await office.queues.statistics()
    queues = ((name, f"{it.depth} messages wait") for name, it in statistics.queues.items())
    for it in _hits("queue", "queue", queues):
        yield it
    peers = ((name, f"{it.depth} messages wait for it") for name, it in statistics.peers.items())
    for it in _hits("peer", "bridge", peers):
        yield it
    if not text.isdecimal():
        return
    number = to_number(text)
    for dead in await office.queues.dead_letters.find(number):
        yield _dead_hit(dead)
    for queue in statistics.queues:
        for letter in await office.queues.find_messages(queue, number):
            title = f"message {letter.id} in queue {queue}"
            id = str(letter.id)
            yield HitView(kind="message", id=id, title=title, noun="queue", within=queue)


def _dead_hit(dead: DeadLetter) -> HitView:
    title = f"message {dead.message.id} of queue {dead.queue}: {dead.reason}"
    return HitView(kind="dead letter", id=str(dead.id), title=title, noun="dlq")


async def _of_flows(office: Office, text: str) -> AsyncIterator[HitView]:
    try:
        flow = await office.flows.show(text.lower())
    except PostroadError:
        try:
            flow = await office.flows.show(text)
        except PostroadError:
            return
    begun_as = f", begun as {flow.client_id}" if flow.client_id else ""
    title = f"{flow.name} is {flow.status}{begun_as}"
    yield HitView(kind="flow", id=flow.id, title=title, noun="flow")
