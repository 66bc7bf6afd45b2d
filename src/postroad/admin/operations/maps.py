"""The map of a cluster: what there is, and what talks to what, as this node knows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from postroad.admin.jobs import JobView, jobs_of
from postroad.admin.pipeline import load_job
from postroad.admin.vitals import vitals_of
from postroad.cells import CellDomain
from postroad.cells.shell.views import cell_view
from postroad.core.errors import PostroadError
from postroad.durable import DurableQueuesStatistics, PeerStatistics, QueueStatistics
from postroad.node import Layer, Node

from .cluster import members_of
from .office import Office
from .services import list_services
from .table import operation

Kind = Literal["node", "domain", "cell", "queue", "peer", "service", "flow", "pipeline"]
EdgeKind = Literal["member", "tunnel", "bridge", "consumes", "subscribes", "serves"]
Status = Literal["ok", "warning", "failing", "unknown"]


class MapNode(msgspec.Struct, frozen=True, kw_only=True):
    """Something on the map."""

    id: str
    """As in `queue:orders`."""
    kind: Kind
    label: str
    status: Status
    noun: str
    """What shows more of it, as in `queue`."""
    detail: str


class MapEdge(msgspec.Struct, frozen=True, kw_only=True):
    """Something has to do with something else."""

    source: str
    target: str
    kind: EdgeKind
    label: str
    status: Status


class MapView(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    nodes: list[MapNode]
    edges: list[MapEdge]


@operation("cluster.map")
async def show_map(office: Office) -> MapView:
    """Nodes, domains, cells, queues, peers, services, flows and jobs, and what connects them."""
    node = office.node
    drawing = _Drawing(node)
    drawing.add_members()
    if node.config.has(Layer.CELLS):
        drawing.add_cells(node.domain)
    if node.config.has(Layer.QUEUES):
        drawing.add_mail(await vitals_of(node).mail.take())
    if node.config.has(Layer.SERVICES):
        for service in await list_services(office):
            drawing.add("service", service.name, "ok", "service", ", ".join(service.actions))
            for name in service.nodes:
                drawing.connect(drawing.node_id(name), f"service:{service.name}", "serves")
    if node.config.has(Layer.FLOWS):
        drawing.add_flows()
    for job in await jobs_of(node):
        drawing.add_job(job)
    return MapView(nodes=[*drawing.nodes.values()], edges=drawing.edges)


class _Drawing:
    """A map that is being drawn."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.here = f"node:{node.name}"
        self.nodes: dict[str, MapNode] = {}
        self.edges: list[MapEdge] = []

    def add(self, kind: Kind, name: str, status: Status, noun: str, detail: str) -> str:
        id = f"{kind}:{name}"
        self.nodes[id] = MapNode(
            id=id, kind=kind, label=name, status=status, noun=noun, detail=detail
        )
        return id

    def connect(
        self, source: str, target: str, kind: EdgeKind, label: str = "", status: Status = "ok"
    ) -> None:
        self.edges.append(
            MapEdge(source=source, target=target, kind=kind, label=label, status=status)
        )

    def node_id(self, name: str) -> str:
        """A node by its name; one that is no member is a peer."""
        id = f"node:{name}"
        if id in self.nodes:
            return id
        if f"peer:{name}" not in self.nodes:
            self.add("peer", name, "unknown", "bridge", "no member of the cluster")
        return f"peer:{name}"

    def add_members(self) -> None:
        for it in members_of(self.node):
            status: Status = "ok" if it.state == "alive" else "failing"
            id = self.add("node", it.name, status, "cluster", f"{it.state} at {it.address}")
            if not it.is_local:
                trip = "" if it.round_trip_ms is None else f"{it.round_trip_ms:.1f} ms"
                self.connect(self.here, id, "member", trip, status)

    def add_cells(self, domain: CellDomain) -> None:
        id = self.add("domain", domain.name, "ok", "cells", domain.identity.role.value)
        self.connect(self.here, id, "serves")
        for name, link in sorted(domain.links.by_domain.items()):
            now = link.statistics()
            other = self.add("domain", name, "ok", "cells", now.domain.role.value)
            trip = "" if now.round_trip_s is None else f"{now.round_trip_s * 1000:.1f} ms"
            self.connect(id, other, "tunnel", trip, "warning" if now.waiting else "ok")
            if f"node:{name}" in self.nodes:
                self.connect(f"node:{name}", other, "serves")
        for cell in domain.cells:
            view = cell_view(domain, cell)
            if not view.is_system:
                label = f"{cell}@{domain.name}"
                self.connect(id, self.add("cell", label, "ok", "cells", view.description), "serves")

    def add_mail(self, statistics: DurableQueuesStatistics) -> None:
        for name, queue in sorted(statistics.queues.items()):
            self._add_queue(name, queue)
        for name, peer in sorted(statistics.peers.items()):
            if name != self.node.name:
                self._add_bridge(name, peer)

    def _add_queue(self, name: str, queue: QueueStatistics) -> None:
        is_stuck = queue.is_paused or (queue.depth and not queue.has_consumer)
        status: Status = "warning" if is_stuck else "ok"
        state = "paused, " if queue.is_paused else ""
        id = self.add("queue", name, status, "queue", f"{state}{queue.depth} messages wait")
        kind: EdgeKind = "consumes" if queue.has_consumer else "serves"
        self.connect(self.here, id, kind, str(queue.depth) if queue.depth else "", status)

    def _add_bridge(self, name: str, peer: PeerStatistics) -> None:
        trouble = None if peer.bridge is None else peer.bridge.last_error
        status: Status = "ok"
        if peer.depth:
            status = "warning" if trouble is None else "failing"
        elif peer.is_paused:
            status = "warning"
        label = "paused" if peer.is_paused else f"{peer.depth} waiting" if peer.depth else ""
        self.connect(self.here, self.node_id(name), "bridge", label, status)

    def add_flows(self) -> None:
        for definition in sorted(self.node.flows.registry, key=lambda definition: definition.name):
            id = self.add(
                "flow", definition.name, "ok", "flow", definition.description.partition("\n")[0]
            )
            self.connect(self.here, id, "serves")
            if definition.responds_to is not None and self.node.flows.registry.find(
                definition.responds_to
            ):
                self.connect(id, f"flow:{definition.responds_to}", "subscribes", "responds to")

    def add_job(self, job: JobView) -> None:
        status: Status = "failing" if job.state == "failed" else "warning" if job.dead else "ok"
        id = self.add("pipeline", job.name, status, "job", job.state)
        self.connect(self.here, id, "serves")
        for queue in _queues_of(job):
            if f"queue:{queue}" in self.nodes:
                self.connect(id, f"queue:{queue}", "consumes")


def _queues_of(job: JobView) -> Iterator[str]:
    """Queues that a job takes messages of."""
    try:
        catalog = load_job(job.path).catalog
    except PostroadError:
        return
    for task in catalog:
        if task.type == "input" and task.connector == "queue" and "queue" in task.options:
            yield str(task.options["queue"])
