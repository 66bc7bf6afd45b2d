"""Every number of a node that is worth a graph, for Prometheus."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import resource
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from postroad._version import __version__
from postroad.core import ThrottledLogger
from postroad.flows import FlowStatus
from postroad.node import Node
from postroad.node.settings import Layer

from .exposition import Exposition
from .jobs import jobs_of
from .pipeline_metrics import add_job

logger = logging.getLogger("postroad.admin")

Gather = Callable[[Node, Exposition], Awaitable[None]]

_WARN_INTERVAL_S = 60.0

_WIRE_COUNTERS = {
    "requests_sent": "Requests sent to other nodes.",
    "messages_sent": "One-way messages sent to other nodes.",
    "replies_received": "Replies that came.",
    "requests_received": "Requests of other nodes.",
    "replies_sent": "Replies sent to other nodes.",
    "local_requests": "Requests and messages to the node itself.",
    "tunnel_messages_sent": "Messages sent through tunnels.",
    "tunnel_messages_received": "Messages that came through tunnels.",
    "requests_timed_out": "Requests that were not answered in time.",
    "requests_expired": "Requests of others whose time was over before they were begun.",
    "replies_late": "Replies that nobody waited for any more.",
    "handlers_failed": "Handlers that raised.",
    "handlers_timed_out": "Handlers that took too long.",
    "no_handler": "Requests of others that nobody handles.",
    "connections_opened": "Connections made to other nodes.",
    "connections_failed": "Connections that could not be made.",
    "connections_accepted": "Connections that other nodes made.",
    "connections_rejected": "Connections above the limit.",
    "connections_lost": "Connections that ended without this node wanting it.",
    "versions_declined": "Connections of nodes that speak only older protocol versions.",
    "tls_failures": "Connections on which TLS could not be agreed.",
    "bytes_sent": "Bytes sent to other nodes.",
    "bytes_received": "Bytes that came from other nodes.",
}
_WIRE_GAUGES = {
    "requests_pending": "Requests that wait for a reply.",
    "handlers_running": "Handlers at work.",
    "tunnels": "Tunnels that are open.",
}
_CELL_COUNTERS = {
    "delivered": "Messages handed to cells.",
    "forwarded": "Messages handed to tunnels.",
    "undelivered": "Messages that nobody took.",
    "refused": "Messages refused, because something was full.",
    "expired": "Messages whose time was over.",
    "failed": "Messages whose handler raised.",
    "resent": "Messages that went another way after one had failed.",
}


class Metrics:
    """Gathers the numbers of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)

    async def collect(self) -> str:
        """All numbers now; a part that cannot tell its own is counted, and the rest is told."""
        metrics = Exposition()
        node = self._node
        metrics.gauge(
            "build_info",
            "Always 1; the labels tell what runs.",
            1,
            version=__version__,
            python=platform.python_version(),
            node=node.name,
            cluster=node.cluster,
        )
        metrics.gauge("up", "Whether everything of the node runs.", int(node.is_running))
        _gather_process(metrics)
        for part, layer, gather in _PARTS:
            is_there = layer is None or node.config.has(layer)
            if is_there and (node.is_running or part == "pipelines"):
                await self._gather(metrics, part, gather)
        return metrics.render()

    async def _gather(self, metrics: Exposition, part: str, gather: Gather) -> None:
        found = Exposition()
        failed = 0
        try:
            await gather(self._node, found)
        except Exception as error:
            failed = 1
            now = asyncio.get_running_loop().time()
            self._log.log(part, now, "the numbers of %s are missing: %r", part, error)
        else:
            metrics.take(found)
        metrics.gauge(
            "part_failed", "Whether a part could not tell its numbers.", failed, part=part
        )


def _gather_process(metrics: Exposition) -> None:
    metrics.counter("process_cpu_seconds", "Time of processors used.", time.process_time())
    metrics.gauge("process_memory_bytes", "Memory that is in use.", memory_bytes())
    try:
        metrics.gauge("process_open_files", "Files and sockets.", len(os.listdir("/proc/self/fd")))
    except OSError:
        pass  # Only Linux tells.


def memory_bytes() -> int:
    """Memory of this process now; at its most where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


async def _gather_wire(node: Node, metrics: Exposition) -> None:
    found = node.service.statistics()
    for name, text in _WIRE_COUNTERS.items():
        metrics.counter(f"wire_{name}", text, getattr(found, name))
    for name, text in _WIRE_GAUGES.items():
        metrics.gauge(f"wire_{name}", text, getattr(found, name))
    links = "Connections to other nodes that are open."
    metrics.gauge("wire_links", links, found.client_connections, direction="dialed")
    metrics.gauge("wire_links", links, found.server_connections, direction="accepted")
    errors = "Connections closed because the peer broke the protocol."
    metrics.counter("wire_protocol_errors", errors, found.protocol_errors)


async def _gather_cluster(node: Node, metrics: Exposition) -> None:
    found = node.agent.statistics()
    metrics.gauge("cluster_members", "Members, this node included.", found.members)
    metrics.gauge("cluster_suspects", "Members that may be dead.", found.suspects)
    metrics.gauge(
        "cluster_doubt", "How much the node doubts itself; 0 is well.", found.local_health
    )
    for member, seconds in sorted(found.round_trips_s.items()):
        metrics.gauge(
            "cluster_round_trip_seconds", "Time to a member and back.", seconds, member=member
        )


async def _gather_cells(node: Node, metrics: Exposition) -> None:
    domain = node.domain
    found = domain.statistics()
    metrics.gauge("cells", "Cells of this domain.", len(domain.cells))
    for name, text in _CELL_COUNTERS.items():
        metrics.counter(f"cells_{name}", text, getattr(found, name))


async def _gather_queues(node: Node, metrics: Exposition) -> None:
    found = await node.queues.statistics()
    for name, queue in sorted(found.queues.items()):
        metrics.gauge("queue_depth", "Messages that are not handled.", queue.depth, queue=name)
        metrics.gauge(
            "queue_in_flight", "Messages that are being handled.", queue.in_flight, queue=name
        )
        metrics.gauge(
            "queue_oldest_age_seconds",
            "Age of the oldest message.",
            queue.oldest_age_s or 0.0,
            queue=name,
        )
        metrics.gauge("queue_paused", "Whether it is paused.", queue.is_paused, queue=name)
        metrics.counter("queue_messages_processed", "Messages handled.", queue.handled, queue=name)
        metrics.counter(
            "queue_messages_failed", "Attempts whose handler raised.", queue.failed, queue=name
        )
    for peer, it in sorted(found.peers.items()):
        metrics.gauge("bridge_depth", "Messages that wait for a peer.", it.depth, peer=peer)
        metrics.gauge(
            "bridge_oldest_age_seconds",
            "Age of the oldest of them.",
            it.oldest_age_s or 0.0,
            peer=peer,
        )
        if it.bridge is not None:
            metrics.counter(
                "bridge_messages_delivered", "Messages a peer accepted.", it.bridge.sent, peer=peer
            )
            metrics.gauge(
                "bridge_failing",
                "1 if the last attempt to deliver failed.",
                it.bridge.last_error is not None,
                peer=peer,
            )
    metrics.gauge("dead_letters", "Dead letters.", found.dead_letters)
    metrics.counter("store_commits", "Commits of the store.", found.commits)
    metrics.counter("durable_messages_sent", "Messages stored in the outbox.", found.sent)


async def _gather_services(node: Node, metrics: Exposition) -> None:
    broker = node.broker
    metrics.gauge("services", "Services of this node.", len(broker.services()))
    nodes = broker.registry.nodes(only_available=True)
    metrics.gauge("services_nodes", "Nodes with services that can be called.", len(nodes))
    found = broker.statistics()
    metrics.gauge("services_running", "Actions at work.", found["running"])
    metrics.gauge("services_events_running", "Handlers of events at work.", found["eventsRunning"])
    metrics.counter("services_events_dropped", "Events that were dropped.", found["eventsDropped"])
    metrics.counter("services_events_failed", "Handlers that raised.", found["eventsFailed"])
    if "pending" in found:
        metrics.gauge("services_calls_pending", "Calls to other nodes.", found["pending"])


async def _gather_flows(node: Node, metrics: Exposition) -> None:
    counts = await node.flows.admin.counts()
    for status in FlowStatus:
        count = counts.get(status, 0)
        metrics.gauge("flows", "Flows that are known.", count, status=status.value)


async def _gather_pipelines(node: Node, metrics: Exposition) -> None:
    for job in await jobs_of(node):
        add_job(metrics, job.name, job.progress)


_PARTS: tuple[tuple[str, Layer | None, Gather], ...] = (
    ("wire", None, _gather_wire),
    ("cluster", Layer.CLUSTER, _gather_cluster),
    ("cells", Layer.CELLS, _gather_cells),
    ("queues", Layer.QUEUES, _gather_queues),
    ("services", Layer.SERVICES, _gather_services),
    ("flows", Layer.FLOWS, _gather_flows),
    ("pipelines", None, _gather_pipelines),
)
